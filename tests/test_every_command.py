"""Every command that README and docs show is run here, or has a line that says where it is run or why it cannot be.

A command runs as it is written, in a folder with the files that it names. Only addresses are changed: ports that other
programs may have, and folders of the system. A command that serves is asked for its readiness and stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cells import free_port
from certificates import Authority, write_pair
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
PHONE_KEY = "a-key-for-telephones"
START_S, STOP_S = 300.0, 60


@dataclass(frozen=True, slots=True)
class Shown:
    """A command that is run here."""

    command: str
    prints: str = ""  # a part of what it prints
    makes: str = ""  # a file that it makes
    reads: str = ""  # its standard input
    first: str = ""  # what makes the files that it reads
    code: int = 0
    further: str = ""  # arguments that are added
    serves: bool = False


OURS = "--url http://127.0.0.1:8000"
AT_ONCE = "--at-once 10"
SMALL = f"--model {NAME}"

HERE = (
    # README
    Shown("voxlane talk --in question.wav --out answer.wav", makes="answer.wav", further=OURS),
    Shown("voxlane lab run mhm --url planted:stops_for_mhm", prints="false_stop", code=1, further=AT_ONCE),
    Shown("voxlane chat --model ./model.gguf", reads="Hello!\n"),
    Shown("voxlane serve --model ./Qwen3-0.6B", serves=True),
    Shown("voxlane chat --model ./Qwen3-0.6B --adapter ./my-lora", reads="Hello!\n"),
    Shown("voxlane chat", reads="Hello!\n"),
    Shown("voxlane say 'The library opens at 9:30 and a ticket costs $4.50.' -o hello.wav", makes="hello.wav"),
    Shown("voxlane transcribe hello.wav", prints="library"),
    Shown("voxlane models", prints="smollm2-135m-instruct"),
    Shown("voxlane voices", prints="heart", further=OURS),
    Shown("voxlane perplexity tests/data/prose.txt", prints="perplexity"),
    Shown("voxlane serve --port 9000 --trace trace.json", makes="trace.json", further=SMALL, serves=True),
    Shown("voxlane check-config --keys", prints="[engine]"),
    Shown("voxlane doctor", prints="engine"),
    Shown("voxlane serve", serves=True),
    # docs/keys.md
    Shown(
        "voxlane keys add acme --file /etc/voxlane/keys.json --conversations 20 --requests-per-minute 600 "
        "--audio-minutes-per-minute 20 --priority high",
        makes="etc/voxlane/keys.json",
    ),
    Shown("voxlane keys list --file /etc/voxlane/keys.json", prints="acme"),
    Shown("voxlane keys revoke acme --file /etc/voxlane/keys.json"),
    # docs/lab.md
    Shown("voxlane lab sounds mhm hard_stop", prints="clips are ready"),
    Shown("voxlane lab agent --list", prints="stops_for_mhm"),
    Shown("voxlane lab agent --fault stops_for_mhm --port 8765 &", prints="ws://", code=130),
    Shown("voxlane lab run stop_and_ask --url planted:talks_over", code=1, further=AT_ONCE),
    Shown("voxlane lab report lab-results/", makes="lab-results/report.html"),
    Shown("voxlane lab replay lab-results/", code=1),
    Shown("voxlane lab compare before/ after/", first="cp -r lab-results before && cp -r lab-results after"),
    Shown("voxlane lab score call.wav", first="cp $(find lab-results -name '*.wav' | head -1) call.wav", code=1),
    # docs/proxies.md
    Shown("voxlane serve --host 0.0.0.0 --port 8443 --tls-cert cert.pem --tls-key key.pem", further=SMALL, serves=True),
    # docs/telephony.md
    Shown("export VOXLANE_PHONE_KEY=$(openssl rand -hex 24)"),
    Shown("export VOXLANE_API_KEY=$(openssl rand -hex 24)"),
    Shown("voxlane serve --config voxlane.toml", further=SMALL, serves=True),
    Shown(
        'curl -X POST "https://voice.example.org/v1/phone/twiml?token=$VOXLANE_PHONE_KEY" -d From=%2B4917012345678',
        prints="<Response>",
    ),
)

IN_CI = "CI runs it: .ci/run"
PART_OF_TEST = "`make test` does it"
SYSTEM = "it changes the system; the files that it installs are checked by tests/test_deploying.py"
DOCKER = "it needs Docker; tests/test_deploying.py runs the Dockerfile's steps in a fresh Debian"
CLUSTER = "it needs several machines; tests/faults/test_cluster.py runs a cluster on one"
CLONING = "it needs weights that can clone a voice; tests/e2e/test_cloned_voices.py has random ones"
HTTP = "tests/test_documents_run.py runs it"
CALLS = "it holds calls for many minutes; tests/server/lab/test_served_calls.py holds a few"

ELSEWHERE = {
    "make serve": "benchmarks/first_hour.py runs it in a fresh home",
    "make test": IN_CI,
    "make soak": IN_CI,
    "make test-client": PART_OF_TEST,
    "make check": PART_OF_TEST,
    "make weights": PART_OF_TEST,
    "make test-clients": "`make soak` runs the table, tests/clients",
    "make format": "it changes the tree",
    "make bench": "it measures for a quarter of an hour",
    "make clean": "it removes the environment that runs the tests",
    "make phone": "it rings a server on port 8000; tests/e2e/test_true_call.py makes the same call",
    'make phone ARGS="--stay --address 0.0.0.0"': "it waits for a person's telephone",
    "voxlane talk": "it needs a microphone and a loudspeaker",
    "voxlane serve --model hf:Qwen/Qwen3-0.6B": "it needs Hugging Face; tests/engine/weights/test_hub.py has a hub",
    "pip install -e '.[gpu]'": "it needs a GPU",
    "pip install voxlane": "the package is not in the index; tests/test_packaging.py installs its wheel",
    "cd client_js && npm pack": "tests/test_npm_package.py runs it",
    "npm install ../voxlane/client_js/voxlane-0.1.0.tgz": "tests/test_npm_package.py runs it",
    "python3 -m venv /opt/voxlane && /opt/voxlane/bin/pip install '.[opus,otel,phone]'": SYSTEM,
    "install -D docs/deploying/voxlane.toml /etc/voxlane/voxlane.toml": SYSTEM,
    "install -m 0600 /dev/null /etc/voxlane/environment && editor /etc/voxlane/environment": SYSTEM,
    "install -m 0644 docs/deploying/voxlane.service /etc/systemd/system/ && systemctl enable --now voxlane": SYSTEM,
    "journalctl -u voxlane -o cat | jq .": SYSTEM,
    "docker build -f docs/deploying/Dockerfile -t voxlane:cpu .": DOCKER,
    "docker build -f docs/deploying/Dockerfile -t voxlane:gpu --build-arg DEVICE=gpu .": DOCKER,
    "docker compose -f docs/deploying/compose.yaml up --detach": DOCKER,
    "voxlane lab run quick --url ws://127.0.0.1:8000/v1/voice": CALLS,
    "voxlane lab run mhm --url ws://127.0.0.1:8765/v1/voice": CALLS,
    "voxlane lab run quick --url 'wss://voice.example.com/v1/realtime?model=my-model'": "the server is the reader's",
    "voxlane lab run hard_stop mhm --repeat 10 --url ws://127.0.0.1:8000/v1/voice "
    "--against ws://127.0.0.1:8001/v1/voice": CALLS,
    "pytest --lab-url ws://127.0.0.1:8080/v1/realtime --lab-dialect realtime --lab-out lab": (
        "the tests are the reader's; tests/server/lab/test_pytest_plugin.py uses the options"
    ),
    "ray start --head --num-cpus 0": CLUSTER,
    "ray start --address 10.0.3.1:6379": CLUSTER,
    "voxlane cluster up --file cluster.toml": CLUSTER,
    "voxlane cluster status": CLUSTER,
    "voxlane cluster drain cell2": CLUSTER,
    "voxlane cluster upgrade": CLUSTER,
    "voxlane cluster sync --haproxy-socket /run/haproxy/admin.sock": CLUSTER,
    "voxlane serve --tts-model ./Qwen3-TTS-12Hz-1.7B-Base": CLONING,
    "voxlane voices add narrator --from clip.wav --transcript 'What is said in the clip.' --consent": CLONING,
    "voxlane say 'Good morning.' --voice narrator --url http://127.0.0.1:8000 -o morning.wav": CLONING,
    "voxlane talk --voice narrator": CLONING,
    "voxlane voices rm narrator": CLONING,
}
"""Commands that are not run here, each with the place that runs it or the reason why none does."""

CURLS = {"README.md": HTTP, "docs/voices.md": CLONING}
"""Pages whose curl commands are not run here."""


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


def environment() -> dict[str, str]:
    """Return a command's environment: the tests' own, and keys as a reader has set them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "VOXLANE_PHONE_KEY": PHONE_KEY}


def local(one: Shown, server: VoiceServer, folder: Path) -> str:
    """Return a command with addresses of this machine."""
    text = f"{one.command}{one.further and ' '}{one.further}"
    changes = {USUAL: server.url.removeprefix("http://"), PUBLIC: server.url, "/etc/": f"{folder}/etc/"}
    for old, new in changes.items():
        text = text.replace(old, new)
    return re.sub(r"--port \d+", f"--port {free_port()}", text)


@pytest.mark.parametrize("one", [one for one in HERE if not one.serves], ids=lambda one: one.command)
def test_a_command_runs(one: Shown, server: VoiceServer, folder: Path) -> None:
    command, background = local(one, server, folder).removesuffix("&"), one.command.endswith("&")
    made = folder / one.makes
    if one.makes and made.is_file():
        made.unlink()
    subprocess.run(["bash", "-c", one.first], cwd=folder, check=True)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}" if background else command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if background:
        assert process.stdout is not None
        assert one.prints in process.stdout.readline()
        process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(one.reads)
    assert process.returncode == one.code, printed
    assert background or one.prints in printed, printed
    assert made.exists()


@pytest.mark.parametrize("one", [one for one in HERE if one.serves], ids=lambda one: one.command)
def test_a_command_serves(one: Shown, server: VoiceServer, folder: Path) -> None:
    log = folder / "log"
    port = free_port()
    command = local(one, server, folder)
    command = re.sub(r"--port \d+", f"--port {port}", command) if "--port" in command else f"{command} --port {port}"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
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
