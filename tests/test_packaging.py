"""The wheel is what the tree is: built, installed in a clean environment, imported there module by module."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from voxlane.server.api.assets import read_assets

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "codecs")
PAGES = ("client_js", "client_js/demo")  # files that the server serves: no Python in them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def modules() -> list[str]:
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(".".join(("voxlane", *(parts[:-1] if parts[-1] == "__init__" else parts))))
    return found


def test_the_package_list_is_the_tree() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    folders |= {Path(folder) for folder in PAGES}
    assert {".".join(("voxlane", *folder.parts)) for folder in folders} == listed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from what a clone holds, not from what lies around in a build folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # What other tests compile meanwhile comes and goes while it is copied.
    passing = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("client_js", *PACKAGES):
        shutil.copytree(ROOT / name, source / name, ignore=passing)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into a new environment that borrows the dependencies of this one; return its Python."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip()
    # A path line, unlike addsitedir, does not run the .pth files over there: the editable voxlane stays out of sight.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc"):
                assert f"voxlane/{path.relative_to(ROOT).as_posix()}" in held
    served = {f"voxlane/client_js/{name}" for name in read_assets(ROOT / "client_js")}
    assert {name for name in held if "client_js" in name} == served


def test_the_command_runs(installed: Path) -> None:
    command = installed.with_name("voxlane")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "voxlane serve" in done.stdout


def test_the_installed_server_finds_its_page(installed: Path) -> None:
    code = "from voxlane.server.api.assets import read_assets; print(len(read_assets()['demo/index.html'].body))"
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def test_every_module_can_be_imported(installed: Path) -> None:
    names = [name for name in modules() if not name.endswith("__main__")]
    code = (
        "import importlib, pathlib, sys\n"
        f"for name in {names!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    assert pathlib.Path(sys.prefix) in pathlib.Path(module.__file__).parents, module.__file__\n"
    )
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
