"""Run the steps of a Dockerfile in a fresh Debian root, without Docker. Needs root, debootstrap and the network.

    python docs/deploying/dockerfile_steps.py /tmp/root [--arg TORCH_INDEX=] [--bind /opt/wheels] [--ca our-proxy.crt]

FROM makes or copies a root, RUN runs in it with chroot, COPY copies; ENV, ARG, WORKDIR and USER are kept. Other
instructions say how a container is run, and are read only. It knows as much of the format as our file uses.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parent.parent
MIRROR_VARIABLE = "VOXLANE_DEBIAN_MIRROR"  # unset: debootstrap's own
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARED = "VOXLANE_STEPS_UNSHARED"
READ_ONLY = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "STOPSIGNAL", "VOLUME"})
KNOWN = READ_ONLY | {"ARG", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in capitals and the rest of its line."""

    name: str
    text: str


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile; raise ValueError for one that is not known."""
    joined = ""
    for raw in text.splitlines():
        if raw.lstrip().startswith("#") or not (joined or raw.strip()):
            continue
        joined += raw
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        name, _, rest = joined.strip().partition(" ")
        if name not in KNOWN:
            raise ValueError(f"{name} is not known")
        yield Instruction(name, rest.strip())
        joined = ""


@dataclass(slots=True)
class Stage:
    """One stage of a build: its root and what its instructions have set."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0"

    def expanded(self, text: str) -> str:
        """Return text with variables in the place of $NAME and ${NAME}."""
        known = self.arguments | self.environment
        return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: known.get(found[1] or found[2], ""), text)


class Build:
    """Carries out the instructions below one folder."""

    def __init__(self, place: Path, given: dict[str, str], binds: list[Path], authorities: list[Path]) -> None:
        self._place = place
        self._given = given
        self._binds = binds
        self._authorities = authorities
        self._before: dict[str, str] = {}  # arguments before the first stage
        self._stages: dict[str, Stage] = {}
        self.stage: Stage | None = None

    def carry_out(self, step: Instruction) -> None:
        """Carry out one instruction."""
        print(f"== {step.name} {step.text}", flush=True)
        match step.name, self.stage:
            case "FROM", _:
                self._begin(step.text)
            case "ARG", _:
                name, _, usual = step.text.partition("=")
                arguments = self._before if self.stage is None else self.stage.arguments
                arguments[name] = self._given.get(name, usual)
            case "ENV", Stage() as stage:
                for pair in shlex.split(step.text):
                    name, _, value = pair.partition("=")
                    stage.environment[name] = stage.expanded(value)
            case "WORKDIR", Stage() as stage:
                stage.folder = step.text
                (stage.root / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER", Stage() as stage:
                stage.user = step.text
            case "COPY", Stage() as stage:
                self._copy(stage, shlex.split(step.text))
            case "RUN", Stage() as stage:
                self.run(stage, ["/bin/sh", "-c", step.text])
            case _:
                pass

    def _begin(self, text: str) -> None:
        image, _, name = text.partition(" AS ")
        image = Stage(Path(), arguments=self._before).expanded(image)
        system, _, release = image.partition(":")
        assert system == "debian", image
        base = self._place / "base"
        if not base.exists():
            suite = release.removesuffix("-slim")
            mirror = [os.environ[MIRROR_VARIABLE]] if os.environ.get(MIRROR_VARIABLE) else []
            subprocess.run(["debootstrap", "--variant=minbase", suite, str(base), *mirror], check=True)
        root = self._place / (name.strip() or "final")
        subprocess.run(["cp", "-a", str(base), str(root)], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        trusted = root / "usr/local/share/ca-certificates"
        trusted.mkdir(parents=True, exist_ok=True)
        for authority in self._authorities:  # the root's own ca-certificates package takes it in
            shutil.copy(authority, trusted)
        self.stage = self._stages[root.name] = Stage(root)

    def _copy(self, stage: Stage, words: list[str]) -> None:
        source = TREE
        if words[0].startswith("--from="):
            source = self._stages[words.pop(0).removeprefix("--from=")].root
        *names, target = words
        into = stage.root / os.path.join(stage.folder, target).lstrip("/")
        for name in names:
            found = source / name.lstrip("/")
            if found.is_dir():
                subprocess.run(["mkdir", "-p", str(into)], check=True)
                subprocess.run(["cp", "-a", f"{found}/.", str(into)], check=True)
            else:
                shutil.copy(found, into)

    def run(self, stage: Stage, command: list[str], check: bool = True) -> int:
        """Run a command in a root; the machine lends it /proc, /dev and, to be read only, /sys and --bind's folders."""
        to_read = [Path("/sys"), *self._binds]  # as Docker has it: torch counts cores in /sys
        lent = [Path("/proc"), Path("/dev"), *to_read]
        for one in lent:
            there = stage.root / str(one).lstrip("/")
            there.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--rbind", str(one), str(there)], check=True)
            if one in to_read:  # a step that installs a package would change the machine's own files
                subprocess.run(["mount", "-o", "remount,bind,ro", str(there)], check=True)
        try:
            environment = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
            environment |= stage.arguments | stage.environment
            who = [f"--userspec={stage.user}"] if stage.user != "0" else []
            inner = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', stage.folder, *command]
            done = subprocess.run(["chroot", *who, str(stage.root), *inner], env=environment)
        finally:
            for one in reversed(lent):
                subprocess.run(["umount", "-R", "-l", str(stage.root / str(one).lstrip("/"))], check=True)
        if check and done.returncode:
            sys.exit(f"exit status {done.returncode}: {command}")
        return done.returncode


def main() -> int:
    """Carry out all instructions, then run the command of --then in the last root."""
    if UNSHARED not in os.environ:
        # In a mount namespace of its own: whatever happens, nothing of this machine stays mounted below the folder.
        inner = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(inner, env={**os.environ, UNSHARED: "1"}).returncode
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("place", type=Path, help="an empty folder; base/ in it may be a Debian root that is there")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="as docker's --build-arg")
    parser.add_argument("--bind", action="append", default=[], type=Path, help="a folder that RUN steps may read")
    parser.add_argument("--ca", action="append", default=[], type=Path, help="a certificate that the roots trust")
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[], help="run this in the finished root")
    given = parser.parse_args()
    build = Build(given.place, dict(one.split("=", 1) for one in given.arg), given.bind, given.ca)
    for step in instructions((HERE / "Dockerfile").read_text(encoding="utf-8")):
        build.carry_out(step)
    assert build.stage is not None
    return build.run(build.stage, given.then, check=False) if given.then else 0


if __name__ == "__main__":
    sys.exit(main())
