"""The files under docs/deploying: they parse, agree with one another and with the server, and their steps work."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from voxlane.server import config as configuration
from voxlane.server import limits
from voxlane.server.watching.metrics import Metrics

ROOT = Path(__file__).parent.parent
DEPLOYING = ROOT / "docs" / "deploying"
KUBERNETES = "1.31"
ENDING_S = limits.STOP_SECONDS - limits.DRAIN_SECONDS


def steps_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dockerfile_steps", DEPLOYING / "dockerfile_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def dockerfile() -> list[tuple[str, str]]:
    text = (DEPLOYING / "Dockerfile").read_text(encoding="utf-8")
    return [(step.name, step.text) for step in steps_module().instructions(text)]


def manifests() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOYING / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {one["kind"]: one for one in found}


def drain_s() -> float:
    return configuration.load(DEPLOYING / "voxlane.toml").server.drain_s


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# ---- the Dockerfile


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = [
        line[1:]
        for line in (DEPLOYING / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    copied = [
        name
        for step, text in dockerfile()
        if step == "COPY" and not text.startswith("--from")
        for name in text.split()[:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch(name, one) for one in kept), name
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    assert set(packages.values()) <= set(copied)


def test_the_dockerfiles_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = " ".join(text for step, text in dockerfile() if step == "RUN")
    named = re.findall(r"extras=\"?(?:\$extras,)?([\w,]+)", text)
    assert {extra for one in named for extra in one.split(",")} <= set(project["optional-dependencies"])
    # The line that torch is taken from pyproject.toml with.
    found = re.findall(r'^    "(torch==[^"]*)",$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1


def test_the_container_is_nobody_special_and_is_stopped_softly() -> None:
    steps = dockerfile()
    last_user = [text for step, text in steps if step == "USER"][-1]
    assert last_user == "10001"
    assert ("STOPSIGNAL", "SIGTERM") in steps
    assert [step for step, _ in steps].index("USER") < [step for step, _ in steps].index("ENTRYPOINT")


def test_an_instruction_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="ONBUILD"):
        list(steps_module().instructions("FROM debian:x\nONBUILD RUN true"))


def test_steps_that_go_over_several_lines_are_one() -> None:
    found = list(steps_module().instructions("# hello\nRUN a \\\n # between\n && b\n\nENV X=1"))
    assert [(one.name, one.text.split()) for one in found] == [("RUN", ["a", "&&", "b"]), ("ENV", ["X=1"])]


# ---- the other files


def test_the_configuration_is_valid_here_and_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "voxlane.toml"
    path.write_text(manifests()["ConfigMap"]["data"]["voxlane.toml"], encoding="utf-8")
    assert configuration.load(path).server.drain_s == drain_s()
    assert configuration.load(path).log.format == "json"


def test_every_supervisor_waits_for_the_drain() -> None:
    needed = drain_s() + ENDING_S
    unit = (DEPLOYING / "voxlane.service").read_text(encoding="utf-8")
    timeout = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert timeout is not None
    assert float(timeout[1]) >= needed
    compose = yaml.safe_load((DEPLOYING / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        assert seconds(service["stop_grace_period"]) >= needed
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    slept = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= needed + slept


def test_the_manifests_are_kubernetes() -> None:
    found = manifests()
    assert set(found) == {"ConfigMap", "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"}
    for one in found.values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_the_check_of_manifests_finds_a_mistake() -> None:
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_probes_ask_what_they_mean() -> None:
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    asked = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/readyz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert any("/readyz" in text for step, text in dockerfile() if step == "HEALTHCHECK")


def test_the_unit_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOYING / "voxlane.service").read_text(encoding="utf-8")
    assert "KillMode=mixed" in text  # else the engine gets the signal, too, and every answer is cut
    unit = tmp_path / "voxlane.service"
    unit.write_text(text.replace("/opt/voxlane/bin/voxlane", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text(encoding="utf-8").replace("KillMode=mixed", "KillMood=mixed"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert "KillMood" in done.stderr


def test_alerts_are_about_metrics_that_exist() -> None:
    told = Metrics().text().decode()
    known = set(re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE))
    rules = yaml.safe_load((DEPLOYING / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    for rule in rules:
        names = {name.removesuffix("_bucket") for name in re.findall(r"\bvoxlane_\w+", rule["expr"])}
        assert names
        assert names <= known, names - known
        assert rule["alert"] in page


def local_pip() -> tuple[list[str], dict[str, str]]:
    """Return the folders that this machine's pip reads, and what a pip elsewhere must be told to read them, too."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = {Path(one) for one in re.findall(r"(?:file://)?(/[\w./-]+)", told)}
    folders = sorted({path.parent if path.name == "simple" else path for path in found})  # its files lie beside it
    indexes = re.findall(r"file:///\S+", told.replace("'", " ").replace("\\n", " "))
    binds = [str(path) for path in folders if path.is_dir()]
    return binds, {"PIP_EXTRA_INDEX_URL": " ".join(indexes)} if indexes else {}


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap")
def test_the_dockerfiles_steps_work_in_a_fresh_debian(tmp_path: Path) -> None:
    binds, variables = local_pip()
    command = [sys.executable, str(DEPLOYING / "dockerfile_steps.py"), str(tmp_path), "--arg", "TORCH_INDEX="]
    for bind in binds:
        command += ["--bind", bind]
    for authority in sorted(Path("/usr/local/share/ca-certificates").glob("*.crt")):
        command += ["--ca", str(authority)]
    try:
        check = [
            "/bin/sh",
            "-c",
            "voxlane --version && voxlane check-config && touch /var/lib/voxlane/cache/x && id -u",
        ]
        done = subprocess.run(
            [*command, "--then", *check], capture_output=True, text=True, env={**os.environ, **variables}
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert done.stdout.endswith("\n10001\n")
    finally:
        # pytest keeps folders; this one has two gigabytes. Nothing of the machine is mounted in it any more.
        assert str(tmp_path) not in Path("/proc/mounts").read_text()
        shutil.rmtree(tmp_path, ignore_errors=True)
