"""Every command that README and docs show is run here, or has a line that says where it is run or why it cannot be.

A command runs as it is written, in a folder with the files that it names. Only addresses are changed: ports that other
programs may have, and folders of the system. A command that serves is asked for its readiness and stopped with Ctrl-C.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cells import free_port
from certificates import Authority, write_pair
from ctrl_c import HEARS_CTRL_C
from shown_commands import CURLS, ELSEWHERE, HERE, PHONE_KEY, Shown, environment, run
from small_model import NAME
from small_qwen3 import write_adapter, write_qwen3
from voice_server import VoiceServer
from waiting import until

from voxlane.codecs.wav import encode_wav
from voxlane.engine.weights.store import resolve

pytestmark = pytest.mark.weights

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELLS = ("", "sh", "bash", "console")
PROGRAMS = {
    "cd", "curl", "docker", "export", "install", "journalctl", "make", "npm", "pip", "pytest", "python3", "ray",
    "voxlane",
}  # fmt: skip
COMMENT = re.compile(r"\s+#\s.*$")

USUAL, PUBLIC = "127.0.0.1:8000", "https://voice.example.org"
START_S, STOP_S = 300.0, 60


def commands(page: Path) -> Iterator[str]:
    """Yield the commands in a page's blocks, without comments; a backslash joins a line with the next one."""
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        first = [line.split()[0] for line in lines if line.strip()]
        if kind in SHELLS and first and first[0] in PROGRAMS:
            assert set(first) <= PROGRAMS, f"{page.name}: {text}"
            yield from (COMMENT.sub("", line).strip() for line in lines)


def test_every_command_has_its_place() -> None:
    here = {one.command for one in HERE}
    shown = set()
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        shown |= {one for one in commands(page) if not (one.startswith("curl ") and name in CURLS)}
    assert shown - here - ELSEWHERE.keys() == set(), "run these here, or say where they are run"
    assert (here | ELSEWHERE.keys()) - shown == set(), "no page shows these any more"
    assert here & ELSEWHERE.keys() == set()


@pytest.mark.parametrize("place", sorted({*ELSEWHERE.values(), *CURLS.values()}))
def test_the_place_exists(place: str) -> None:
    for path in re.findall(r"(?:tests|benchmarks|\.ci)/[\w/]+(?:\.py)?", place):
        assert (ROOT / path).exists(), path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """The server that commands talk to; telephone systems may call it."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "voxlane.toml"
    config.write_text(f'[phone]\npublic_url = "{PUBLIC}"\n')
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VOXLANE_PHONE_KEY", PHONE_KEY)
        server = VoiceServer(folder / "log", "--config", str(config))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: VoiceServer) -> Path:
    """A folder with the files that commands name."""
    folder = tmp_path_factory.mktemp("commands")
    rate = 48_000
    (folder / "question.wav").write_bytes(encode_wav(server.say("What color is the sky on a clear day?"), rate))
    (folder / "model.gguf").symlink_to(resolve(NAME))
    write_qwen3(folder / "Qwen3-0.6B")
    write_adapter(folder / "Qwen3-0.6B", folder / "my-lora")
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "etc" / "voxlane").mkdir(parents=True)
    write_pair(folder, Authority().pair("127.0.0.1"))
    (folder / "voxlane.toml").write_text('[phone]\npublic_url = "https://voice.example.org"\n')
    return folder


def local(one: Shown, server: VoiceServer, folder: Path) -> str:
    """Return a command with addresses of this machine."""
    text = f"{one.command}{one.further and ' '}{one.further}"
    changes = {USUAL: server.url.removeprefix("http://"), PUBLIC: server.url, "/etc/": f"{folder}/etc/"}
    for old, new in changes.items():
        text = text.replace(old, new)
    return re.sub(r"--port \d+", f"--port {free_port()}", text)


@pytest.mark.parametrize(
    "one", [one for one in HERE if not one.serves and not one.by_the_clock], ids=lambda one: one.command
)
def test_a_command_runs(one: Shown, server: VoiceServer, folder: Path) -> None:
    run(one, local(one, server, folder), folder)


@pytest.mark.parametrize("one", [one for one in HERE if one.serves], ids=lambda one: one.command)
def test_a_command_serves(one: Shown, server: VoiceServer, folder: Path) -> None:
    log = folder / "log"
    port = free_port()
    command = local(one, server, folder)
    command = re.sub(r"--port \d+", f"--port {port}", command) if "--port" in command else f"{command} --port {port}"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*HEARS_CTRL_C, "bash", "-c", f"exec {command}"],
            cwd=folder,
            env={**environment(), "VOXLANE_API_KEY": "a-key"},
            stdout=file,
            stderr=file,
        )
    scheme = "https" if "--tls-cert" in command else "http"
    try:
        until(lambda: process.poll() is not None or ready(f"{scheme}://127.0.0.1:{port}"), command, START_S)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert (folder / one.makes).exists()


def ready(url: str) -> bool:
    """Return whether a server is ready."""
    try:
        return httpx.get(f"{url}/readyz", verify=False).is_success
    except httpx.TransportError:
        return False
