"""A newcomer's path: from a clone to the first spoken answer, each step timed, with the disk and the memory it takes.

In a new folder with a home of its own and no cache: `git clone` of this repository's last commit, the set-up that `make
serve` does (pip without its cache), `make serve` itself until it is ready, a question recorded with `voxlane say`, the
answer with `voxlane talk --in`, and a second start. Only the operating system and its packages are taken as
they are. Memory is the server's with all its processes, shared pages counted once: after the answer, and at most during
each start. No peer.

Time: 4 to 8 minutes with a fast connection to the package index. A torch with CUDA's libraries takes 4 GB of the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from support.command_line import REPOSITORY, command_line
from support.common import machine, table
from support.process_times import family

QUESTION = "What color is the sky on a clear day?"
INHERITED = ("LANG", "PATH", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_INDEX_URL")
"""What a newcomer's environment has of this one's: how the package index is reached. Neither a cache, nor wheels that
lie on this machine, nor a file with pip's settings."""

READY_S, STOP_S, POLL_S = 1800.0, 60.0, 0.2


@dataclass(slots=True)
class Steps:
    """The steps so far."""

    rows: list[list[str]] = field(default_factory=list)
    total_s: float = 0.0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self.total_s += took
        self.rows.append([name, f"{took:.1f}", f"{self.total_s:.1f}"])
        print(f"{name}: {took:.1f} s", flush=True)


class Newcomer:
    """A home without anything, and a clone in it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.clone = folder / "home", folder / "home" / "voxlane"
        self.home.mkdir()
        kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.environment = {**kept, "HOME": str(self.home), "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run a command to its end; return what it prints."""
        done = subprocess.run(
            command,
            cwd=cwd or self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
        return done.stdout

    def voxlane(self, *arguments: str) -> str:
        """Run a command of the clone's own package."""
        return self.run(str(self.clone / ".venv" / "bin" / "voxlane"), *arguments)


class Server:
    """`make serve`, from its start until it is stopped."""

    def __init__(self, newcomer: Newcomer, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = ["make", "serve", f"ARGS=--port {port}"]
        self._log = newcomer.home / "serve.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=newcomer.clone, env=newcomer.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.most_mib = 0.0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def wait(self) -> str:
        """Wait until it is ready; return its banner."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz").is_success:
                    return self._log.read_text()
            time.sleep(POLL_S)
        raise SystemExit(f"the server is not ready:\n{self._log.read_text()}")

    def memory_mib(self, kind: str = "Pss") -> float:
        """Return the memory of all its processes now; a page that several share is counted once."""
        return sum(_proportional_mib(member, kind) for member in family(self._process.pid))

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(STOP_S)
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self.most_mib = max(self.most_mib, self.memory_mib())


def _proportional_mib(pid: int, kind: str) -> float:
    with suppress(OSError):
        found = re.search(rf"^{kind}: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found.group(1)) / 1024 if found else 0.0
    return 0.0


def disk_mib(folder: Path) -> float:
    """Return the disk that a folder takes."""
    files = (path.lstat() for path in folder.rglob("*") if not path.is_symlink())
    return sum(each.st_blocks for each in files) * 512 / 2**20


def go(newcomer: Newcomer, port: int, installed: Sequence[str]) -> None:
    """Walk the path and print it."""
    path = Steps()
    with path.step("git clone"):
        newcomer.run("git", "clone", "--quiet", str(REPOSITORY), str(newcomer.clone), cwd=newcomer.home)
    if installed:
        newcomer.run("python3", "-m", "venv", ".venv")
        with path.step(f"pip install {' '.join(installed)}"):
            newcomer.run(".venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", *installed)
    with path.step("make serve: packages"):
        newcomer.run("make", ".venv/.ready")
    with path.step("make serve: models, kernels, until it is ready"):
        server = Server(newcomer, port)
        banner = server.wait()
    first_most = server.most_mib
    with path.step("voxlane say: a question recorded"):
        newcomer.voxlane("say", QUESTION, "--url", server.url, "-o", "question.wav")
    with path.step("voxlane talk: asked and answered aloud"):
        answer = newcomer.voxlane("talk", "--url", server.url, "--in", "question.wav", "--out", "answer.wav")
    spoken = (newcomer.clone / "answer.wav").stat().st_size
    held, of_files = server.memory_mib(), server.memory_mib("Pss_File")
    server.stop()
    began = time.monotonic()
    server = Server(newcomer, port)
    server.wait()
    again_s = time.monotonic() - began
    server.stop()
    table(f"first hour ({machine()})", ["step", "s", "s in all"], path.rows)
    rows = [
        ["Python packages (.venv)", f"{disk_mib(newcomer.clone / '.venv'):.0f}"],
        ["models and compiled kernels (cache)", f"{disk_mib(newcomer.home / '.cache'):.0f}"],
        ["the clone without them", f"{disk_mib(newcomer.clone) - disk_mib(newcomer.clone / '.venv'):.0f}"],
        ["memory after the answer", f"{held:.0f}"],
        ["of it pages of files, which the system may drop", f"{of_files:.0f}"],
        ["memory at most, first start", f"{first_most:.0f}"],
        ["memory at most, second start", f"{server.most_mib:.0f}"],
    ]
    table("disk and memory", ["what", "MiB"], rows)
    print(f"\nready again after {again_s:.1f} s\n\n{banner}\n{answer}\nthe answer is {spoken} bytes of WAV")


def main() -> None:
    """Make the folder, walk, and remove it."""
    parser = command_line(__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--folder", type=Path, help="where the new home is made (default: a temporary folder)")
    parser.add_argument("--first", nargs="+", default=(), metavar="ARG", help="pip install this before `make serve`")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="first-hour-", dir=options.folder))
    try:
        go(Newcomer(folder), options.port, options.first)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
