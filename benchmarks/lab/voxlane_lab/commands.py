"""`voxlane-lab`: what each of its commands does, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from voxlane_lab import results
from voxlane_lab.agents.planted import FAULTS
from voxlane_lab.agents.server import PATHS, agent_server
from voxlane_lab.agents.voice import AgentVoice, counting_wanted, spoken_wanted
from voxlane_lab.compare import compare
from voxlane_lab.errors import LabError
from voxlane_lab.report.again import replay, report_again
from voxlane_lab.results import RunResult
from voxlane_lab.runner import HeldCall, RunOptions, make_run_folder, run_scenarios, wanted_speech, write_run
from voxlane_lab.scenario_library import GROUPS, load, schema_text, shipped
from voxlane_lab.score import score
from voxlane_lab.sounds.beds import BEDS
from voxlane_lab.sounds.corpus import SOUNDS, Corpus, sound_wanted
from voxlane_lab.sounds.voices import VOICES
from voxlane_lab.speech_engine import INSTALL, speech_is_installed
from voxlane_lab.table import print_differences, print_result
from voxlane_lab.terminal import write_text
from voxlane_lab.values import USER_RATE
from voxlane_lab.versus import FOLDERS, run_versus
from voxlane_lab.waveform import write_wav

OUT = Path("lab-results")
RESULT = "result.json"
MET, MISSED, NOT_MEASURABLE = 0, 1, 2
WIDE = 100  # columns of a progress line, at most


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was asked for."""
    return _COMMANDS[arguments.command](arguments)


def _run(arguments: argparse.Namespace) -> int:
    scenarios = load(arguments.scenarios)
    options = RunOptions(
        repeat=arguments.repeat,
        seed=arguments.seed,
        model=arguments.model,
        voice=arguments.voice,
        turn_detection=arguments.turn_detection,
        mapping=_read(arguments.mapping) if arguments.mapping else "",
        naive=arguments.naive,
        at_once=arguments.at_once,
    )
    out = arguments.out or OUT
    if any(step.recalls for one in scenarios for step in one.step) and not speech_is_installed():
        write_text(sys.stderr, f"memory is not measured: the recogniser is not installed: {INSTALL}\n")
    if arguments.against:
        with ProgressLine() as line:
            urls = (arguments.url, arguments.against)
            both = run_versus(
                scenarios, urls=urls, dialect=arguments.dialect, options=options, out=out, progress=line.tell
            )
        return _told_both(both, arguments, out)
    with ProgressLine() as line:
        result = run_scenarios(
            scenarios, url=arguments.url, dialect=arguments.dialect, options=options, out=out, progress=line.tell
        )
    return _told(result, arguments, f"report: {out / 'report.html'}")


def _told_both(both: tuple[RunResult, RunResult], arguments: argparse.Namespace, out: Path) -> int:
    """Print what two servers did, and how the second differs; a missed gate of both is no difference."""
    if not arguments.json:
        for name, result in zip(FOLDERS, both, strict=True):
            print(f"{name} server, {result.url}:")
            print_result(result)
            print(f"report: {out / name / 'report.html'}\n")
    if any(results.exit_code(result) == NOT_MEASURABLE for result in both):
        return NOT_MEASURABLE
    return _told_differences(*both, arguments)


def _compare(arguments: argparse.Namespace) -> int:
    return _told_differences(_result(arguments.before), _result(arguments.after), arguments)


def _told_differences(before: RunResult, after: RunResult, arguments: argparse.Namespace) -> int:
    """Print how the second result differs from the first; return the exit code."""
    comparison = compare(before, after)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(comparison), indent=1).decode() + "\n")
    else:
        print_differences(comparison)
    if all(one.verdict == "too few pairs" for one in comparison.differences):
        print("not measurable: the runs have too few calls of the same scenarios")
        return NOT_MEASURABLE
    return MISSED if comparison.worse else MET


def _score(arguments: argparse.Namespace) -> int:
    labels = _read(arguments.labels) if arguments.labels else None
    worst = MET
    if arguments.out:
        make_run_folder(arguments.out)
    for path in arguments.recordings:
        scored = score(_bytes(path), labels, name=path.stem)
        note = ""
        if arguments.out:
            out = arguments.out if len(arguments.recordings) == 1 else arguments.out / path.stem
            write_run(out, scored.result, [HeldCall(scored.scenario, scored.recording, "")])
            note = f"report: {out / 'report.html'}"
        if scored.guessed and not arguments.json:
            count = len(scored.guessed)
            print(f"{path.name}: what {count} utterances mean was guessed; --labels FILE says it")
        worst = max(worst, _told(scored.result, arguments, note))
    return worst


def _replay(arguments: argparse.Namespace) -> int:
    return _told(replay(arguments.run), arguments, "")


def _report(arguments: argparse.Namespace) -> int:
    print(report_again(arguments.run))
    return MET


def _sounds(arguments: argparse.Namespace) -> int:
    corpus = Corpus()
    if arguments.write:
        return _write_sound(arguments, corpus)
    if arguments.scenarios:
        wanted = wanted_speech(load(arguments.scenarios))
        with ProgressLine() as line:
            asyncio.run(corpus.prepare(wanted, line.clips))
        print(f"{len(dict.fromkeys(wanted))} clips are ready")
        return MET
    for title, table in (("sounds", SOUNDS), ("noise beds", BEDS)):
        print(f"{title}:")
        for name, sentence in table.items():
            print(f"  {name:<16} {sentence}")
    print(f"voices:\n  {', '.join(VOICES)}")
    return MET


def _write_sound(arguments: argparse.Namespace, corpus: Corpus) -> int:
    if len(arguments.scenarios) != 1:
        raise LabError("--write takes one sound: voxlane-lab sounds --write cough.wav cough")
    name = arguments.scenarios[0]
    wanted = sound_wanted(name, arguments.seed)
    with ProgressLine() as line:
        asyncio.run(corpus.prepare([wanted] if wanted else [], line.clips))
    clip = corpus.sound(name, arguments.seed)
    try:
        arguments.write.write_bytes(write_wav(clip.pcm, USER_RATE))
    except OSError as error:
        raise LabError(f"{arguments.write}: {error.strerror}") from None
    return MET


def _agent(arguments: argparse.Namespace) -> int:
    if arguments.list:
        for name, sentence in FAULTS.items():
            print(f"  {name:<16} {sentence}")
        return MET
    if arguments.fault not in FAULTS:
        raise LabError(f"there is no fault {arguments.fault}: there are {', '.join(FAULTS)}")
    corpus = Corpus()
    wanted = spoken_wanted() if arguments.spoken else counting_wanted() if arguments.counts else ()
    with ProgressLine() as line:
        asyncio.run(corpus.prepare(wanted, line.clips))
    if arguments.spoken:
        voice = AgentVoice.spoken(corpus)
    else:
        voice = AgentVoice.counting(corpus) if arguments.counts else AgentVoice.synthetic(1)
    asyncio.run(_serve_agent(arguments, voice))
    return MET


async def _serve_agent(arguments: argparse.Namespace, voice: AgentVoice) -> None:
    try:
        async with agent_server(
            arguments.fault, voice, host=arguments.host, port=arguments.port, counts=arguments.counts
        ) as server:
            for dialect in dict.fromkeys(PATHS.values()):
                print(f"  {dialect:<10} {server.url(dialect)}", flush=True)
            await asyncio.Event().wait()
    except OSError as error:
        # The loop's own words for an address in use are long; those of the system are not.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise LabError(f"cannot listen on port {arguments.port}: {reason}") from None


def _list(arguments: argparse.Namespace) -> int:
    for one in shipped().values():
        print(f"  {one.name:<26} {one.description.partition('. ')[0].rstrip('.')}.")
    print("\ngroups:")
    for name, members in GROUPS.items():
        print(f"  {name:<26} {', '.join(members)}")
    print(f"  {'all':<26} every scenario")
    return MET


def _schema(arguments: argparse.Namespace) -> int:
    sys.stdout.write(schema_text())
    return MET


def _told(result: RunResult, arguments: argparse.Namespace, note: str) -> int:
    """Print a result; return its exit code."""
    if arguments.json:
        sys.stdout.buffer.write(results.encode(result))
    else:
        print_result(result)
        if note:
            print(note)
    return results.exit_code(result)


def _result(path: Path) -> RunResult:
    path = path / RESULT if path.is_dir() else path
    return results.decode(_bytes(path), name=str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None


class ProgressLine:
    """One line on stderr that says what is going on; none where stderr is no terminal, but for what is new."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._wide = min(WIDE, shutil.get_terminal_size().columns - 1)  # a longer line could not be written over
        self._last = ""
        self._told: set[str] = set()  # what was written where stderr is no terminal

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live and self._last:
            self._show("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def tell(self, text: str) -> None:
        """Show a text."""
        if self._live:
            self._show(text)
        elif (new := text.partition(",")[0]) not in self._told:  # calls that are held at once take turns to tell
            self._told.add(new)
            write_text(sys.stderr, f"{new}\n")
        self._last = self._last or text

    def _show(self, text: str) -> None:
        """Write over what the line says."""
        sys.stderr.write("\r")  # write_text would leave it out, as it does with all that moves a cursor
        write_text(sys.stderr, f"{text[: self._wide]:<{self._wide}}")

    def clips(self, done: int, total: int) -> None:
        """Show how many clips are made."""
        self.tell(f"making speech: {done} of {total} clips")


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "compare": _compare,
    "score": _score,
    "replay": _replay,
    "report": _report,
    "sounds": _sounds,
    "agent": _agent,
    "list": _list,
    "schema": _schema,
}
