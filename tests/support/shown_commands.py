"""The commands that README and docs show: those that tests run, and the reasons why others are not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ctrl_c import HEARS_CTRL_C
from small_model import NAME

PHONE_KEY = "a-key-for-telephones"


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
    by_the_clock: bool = False  # it holds calls in real time: tests/e2e/test_shown_calls.py runs it


OURS = "--url http://127.0.0.1:8000"
AT_ONCE = "--at-once 10"
SMALL = f"--model {NAME}"

HERE = (
    # README
    Shown("voxlane talk --in question.wav --out answer.wav", makes="answer.wav", further=OURS),
    Shown(
        "voxlane lab run mhm --url planted:stops_for_mhm",
        prints="false_stop",
        code=1,
        further=AT_ONCE,
        by_the_clock=True,
    ),
    Shown("voxlane chat --model ./model.gguf", reads="Hello!\n"),
    Shown("voxlane serve --model ./Qwen3-0.6B", serves=True),
    Shown("voxlane chat --model ./Qwen3-0.6B --adapter ./my-lora", reads="Hello!\n"),
    Shown("voxlane chat", reads="Hello!\n"),
    Shown("voxlane say 'The library opens at 9:30 and a ticket costs $4.50.' -o hello.wav", makes="hello.wav"),
    Shown("voxlane transcribe hello.wav", prints="library"),
    Shown("voxlane models", prints="smollm2-135m-instruct"),
    Shown("voxlane models recommend", prints="SPEED"),
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
    Shown("voxlane lab run stop_and_ask --url planted:talks_over", code=1, further=AT_ONCE, by_the_clock=True),
    Shown("voxlane lab report lab-results/", makes="lab-results/report.html", by_the_clock=True),
    Shown("voxlane lab replay lab-results/", code=1, by_the_clock=True),
    Shown(
        "voxlane lab compare before/ after/",
        first="cp -r lab-results before && cp -r lab-results after",
        by_the_clock=True,
    ),
    Shown(
        "voxlane lab score call.wav",
        first="cp $(find lab-results -name '*.wav' | head -1) call.wav",
        code=1,
        by_the_clock=True,
    ),
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
    "voxlane serve --speech-model hf:LiquidAI/LFM2-Audio-1.5B --model '' --tts-model ''": (
        "it needs Hugging Face; tests/e2e/test_speech_model.py serves a folder"
    ),
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


def environment() -> dict[str, str]:
    """Return a command's environment: the tests' own, and keys as a reader has set them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "VOXLANE_PHONE_KEY": PHONE_KEY}


def run(one: Shown, command: str, folder: Path) -> None:
    """Run a command in a folder; raise if it does not do what is written here about it."""
    command, background = command.removesuffix("&"), one.command.endswith("&")
    made = folder / one.makes
    if one.makes and made.is_file():
        made.unlink()
    subprocess.run(["bash", "-c", one.first], cwd=folder, check=True)
    process = subprocess.Popen(
        [*HEARS_CTRL_C, "bash", "-c", f"exec {command}" if background else command],
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
