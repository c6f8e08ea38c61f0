"""Run scenarios: make the sounds, hold the calls, judge them, and write the folder of the run.

A run against an address is held in real time. A run against `planted:FAULT` is held with an agent of this process on
the virtual clock: a minute of call takes a fraction of a second, and the same seed gives the same bytes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from voxlane_lab import results
from voxlane_lab.agents.planted import FAULTS, planted
from voxlane_lab.agents.voice import AgentVoice, counting_wanted
from voxlane_lab.call import LabCall
from voxlane_lab.dialects.choice import DIALECTS, guess_dialect, make_dialect, websocket_address
from voxlane_lab.dialects.dialect import DialectOptions, LabDialect, LabTool
from voxlane_lab.errors import LabError
from voxlane_lab.gates import gate_limits
from voxlane_lab.holding import hold, hold_virtually, shown_url
from voxlane_lab.judge import judged_call, judged_scenario, note_recalled, recall_sounds
from voxlane_lab.person import PlannedStep, clips, digest, plan
from voxlane_lab.recording_file import call_folder, save
from voxlane_lab.report.html import write_report
from voxlane_lab.report.junit import write_junit
from voxlane_lab.results import RunResult, ScenarioResult
from voxlane_lab.scenario import Scenario
from voxlane_lab.sounds.beds import bed_wanted
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.speech_engine import speech_is_installed
from voxlane_lab.understanding import understand
from voxlane_lab.values import USER_RATE, Clip, Pcm, Recording

PLANTED = "planted:"
PLANTED_URL = "ws://planted.invalid/"  # a dialect wants an address; nothing is sent there
BED_S = 60.0  # a bed is repeated after that
KEY_VARIABLES = {"native": "VOXLANE_API_KEY", "realtime": "OPENAI_API_KEY"}
KEY_VARIABLE = "VOXLANE_LAB_KEY"

Progress = Callable[[str], None]
"""Is told what is going on, in a few words, about once a second."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run wants beside its scenarios."""

    repeat: int | None = None
    seed: int | None = None
    model: str = ""
    voice: str = ""
    turn_detection: str = ""  # of the dialect realtime; "": as the server has it
    mapping: str = ""  # the text of the mapping file of plain PCM
    naive: bool = False
    at_once: int = 1  # calls that are held at the same time
    corpus: Corpus | None = None  # None: the user's own


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that can be held at once: making noise takes time, in which no other call must wait."""

    scenario: Scenario
    repeat: int
    planned: list[PlannedStep]
    sounds: list[Clip]
    bed: Pcm | None


@dataclass(slots=True)
class HeldCall:
    """A call that was held."""

    scenario: Scenario
    recording: Recording
    sent_sha256: str


def run_scenarios(
    scenarios: Sequence[Scenario],
    *,
    url: str,
    dialect: str | None = None,
    options: RunOptions | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Hold all calls of the scenarios and return the result; with `out`, write the folder of the run."""
    runner = LabRunner(scenarios, url, dialect, options or RunOptions(), progress or (lambda text: None))
    return asyncio.run(runner.run(out))


class LabRunner:
    """One run."""

    def __init__(
        self, scenarios: Sequence[Scenario], url: str, dialect: str | None, options: RunOptions, tell: Progress
    ) -> None:
        self._scenarios = [_adjusted(one, options) for one in scenarios]
        self._fault = _fault(url)
        self._url = PLANTED_URL if self._fault else url
        self._dialect = dialect or ("pcm" if options.mapping else _dialect_of(url, planted=bool(self._fault)))
        if options.mapping and self._dialect != "pcm":
            raise LabError(f"a mapping file is for the dialect pcm, and this run speaks {self._dialect}")
        if options.turn_detection and self._dialect != "realtime":
            raise LabError(f"turn detection is named in the dialect realtime, and this run speaks {self._dialect}")
        self._options = options
        self._tell = tell
        self._corpus = options.corpus or Corpus()
        self._voice: AgentVoice | None = None
        # What is wrong with an address, a mapping or a scenario is said before any work.
        self._make_dialect(self._scenarios[0], 0)
        _check_names(self._scenarios)
        for one in self._scenarios:
            gate_limits(one.gates, name=one.name)

    async def run(self, out: Path | None) -> RunResult:
        """Hold and judge all calls."""
        if out is not None:
            make_run_folder(out)
        await self.prepare()
        held: list[HeldCall] = []
        try:
            await self._hold_all(held)
        finally:  # a run that is stopped keeps the calls that were held
            if held:
                result = await self.conclude(held, out)
        return result

    @property
    def scenarios(self) -> Sequence[Scenario]:
        """The scenarios as this run holds them."""
        return self._scenarios

    async def conclude(self, held: Sequence[HeldCall], out: Path | None) -> RunResult:
        """Judge calls, and write the folder of the run."""
        result = await self._judge(held)
        if out is not None:
            write_run(out, result, held)
        return result

    async def prepare(self) -> None:
        """Make all speech that is not here yet."""
        wanted = wanted_speech(self._scenarios)
        counts = any(step.recalls for scenario in self._scenarios for step in scenario.step)
        if self._fault and counts:
            wanted += counting_wanted()
        await self._corpus.prepare(wanted, lambda done, total: self._tell(f"making speech: {done} of {total} clips"))
        if self._fault:  # a recogniser must understand an agent that counts; for all others tones will do
            self._voice = AgentVoice.counting(self._corpus) if counts else AgentVoice.synthetic(1)

    async def _hold_all(self, held: list[HeldCall]) -> None:
        """Hold every call, and add them in their order."""
        for scenario in self._scenarios:
            await self._hold_scenario(scenario, held)
            if all(one.recording.failure for one in held):
                break  # no call could be held yet, and the next one would fail in the same way

    async def _hold_scenario(self, scenario: Scenario, all_held: list[HeldCall]) -> None:
        """Hold the calls of a scenario, some at the same time; their sounds are made before."""
        calls = iter([self.make_call(scenario, repeat) for repeat in range(scenario.repeat)])
        held: dict[int, HeldCall] = {}

        async def hold_some() -> None:
            for call in calls:
                held[call.repeat] = await self.hold(call)
                if held[call.repeat].recording.failure:
                    for _ in calls:  # the next repeat would fail in the same way
                        pass

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.at_once):
                    group.create_task(hold_some())
        finally:
            all_held += [held[repeat] for repeat in sorted(held)]

    def make_call(self, scenario: Scenario, repeat: int) -> PlannedCall:
        """Make the sounds of a call."""
        planned = plan(scenario, repeat)
        return PlannedCall(scenario, repeat, planned, clips(planned, self._corpus), self._bed(scenario, repeat))

    async def hold(self, one: PlannedCall) -> HeldCall:
        """Hold a call; if this machine was busy for a moment, once more."""
        held = await self._hold(one)
        return await self._hold(one) if _late(held) else held

    async def _hold(self, one: PlannedCall) -> HeldCall:
        scenario = one.scenario
        dialect = self._make_dialect(scenario, one.repeat)
        call = LabCall(scenario, one.repeat, dialect, one.planned, one.sounds, one.bed)
        what = f"{scenario.name}: call {one.repeat + 1} of {scenario.repeat}"
        self._tell(what)
        if self._fault:
            assert self._voice is not None
            counts = any(step.recalls for step in scenario.step)
            hold_virtually(
                call, planted(self._fault, self._dialect, self._voice, counts=counts, greets=scenario.greets)
            )
        else:
            await hold(call, dialect.handshake(), lambda now: self._tell(_state(what, now)))
        return HeldCall(scenario, call.recording(), digest(one.sounds))

    def _bed(self, scenario: Scenario, repeat: int) -> Pcm | None:
        noise = scenario.user.noise
        if noise is None:
            return None
        return self._corpus.bed(noise.bed, round(BED_S * USER_RATE), scenario.seed + repeat)

    def _make_dialect(self, scenario: Scenario, repeat: int) -> LabDialect:
        tools = tuple(LabTool(one.name, one.description, one.result, one.takes_s) for one in scenario.tool)
        options = DialectOptions(
            self._url,
            key=_key(self._dialect) if not self._fault else "",
            model=self._options.model,
            voice=self._options.voice,
            turn_detection=self._options.turn_detection,
            instructions=scenario.instructions,
            tools=tools,
            naive=self._options.naive or scenario.client == "naive",
            mapping=self._options.mapping,
        )
        return make_dialect(self._dialect, options, f"{scenario.name} {repeat}")

    async def _judge(self, held: Sequence[HeldCall]) -> RunResult:
        """Return the figures of all calls; numbers that were counted aloud are written down first."""
        sounds = [sound for one in held for sound in recall_sounds(one.recording)]
        if sounds and speech_is_installed():
            said = iter(await understand(sounds, self._tell_listening))
            for one in held:
                note_recalled(one.recording, said)
        shown = f"{PLANTED}{self._fault}" if self._fault else shown_url(self._url)
        return RunResult(
            scenarios=[_judged(one, held) for one in self._scenarios if any(call.scenario is one for call in held)],
            dialect=self._dialect,
            url=shown,
            virtual=bool(self._fault),
        )

    def _tell_listening(self, done: int, total: int) -> None:
        self._tell(f"writing down what was counted: {done} of {total} sounds")


def _late(held: HeldCall) -> bool:
    return any(step.result == "late" for step in held.recording.steps)


def _judged(scenario: Scenario, held: Sequence[HeldCall]) -> ScenarioResult:
    calls = [
        judged_call(one.recording, answer_s=scenario.answer_s, sent_sha256=one.sent_sha256)
        for one in held
        if one.scenario is scenario
    ]
    return judged_scenario(
        scenario.name,
        calls,
        scenario.gates,
        description=scenario.description,
        seed=scenario.seed,
        answer_s=scenario.answer_s,
    )


def wanted_speech(scenarios: Sequence[Scenario]) -> list[Wanted]:
    """Return all that must be spoken for scenarios; raise LabError if one names a sound or voice that is not."""
    wanted: list[Wanted] = []
    for scenario in scenarios:
        try:
            for repeat in range(scenario.repeat):
                wanted += [one.wanted for one in plan(scenario, repeat) if one.wanted is not None]
            if scenario.user.noise is not None:
                wanted += bed_wanted(scenario.user.noise.bed)
        except LabError as error:
            raise LabError(f"{scenario.name}: {error}") from None
    return wanted


def make_run_folder(out: Path) -> None:
    """Make the folder of a run; raise LabError if it cannot be written, or has calls that are not the lab's."""
    if (out / "calls").exists() and not (out / "result.json").is_file():
        raise LabError(f"{out} has a folder calls that no run of the lab wrote: name another folder with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot write into {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise LabError(f"cannot write into {out}: Permission denied")


def write_run(out: Path, result: RunResult, held: Sequence[HeldCall]) -> None:
    """Write the folder of a run; calls of an earlier run there are removed."""
    make_run_folder(out)
    shutil.rmtree(out / "calls", ignore_errors=True)
    for one in held:
        save(one.recording, out / "calls" / call_folder(one.scenario.name, one.recording.repeat))
    (out / "result.json").write_bytes(results.encode(result))
    write_junit(result, out / "junit.xml")
    write_report(
        result, {(one.scenario.name, one.recording.repeat): one.recording for one in held}, out / "report.html"
    )


def _adjusted(scenario: Scenario, options: RunOptions) -> Scenario:
    changes = {"repeat": options.repeat, "seed": options.seed}
    return replace(scenario, **{name: value for name, value in changes.items() if value is not None})


def _check_names(scenarios: Sequence[Scenario]) -> None:
    """Raise LabError if two scenarios would write their calls into the same folders."""
    folders = [call_folder(one.name, 0) for one in scenarios]
    for one, folder in zip(scenarios, folders, strict=True):
        if folders.count(folder) > 1:
            raise LabError(f"two scenarios have the name {one.name}: give one of them another name")


def _fault(url: str) -> str:
    """Return the fault of a planted agent; "": the address is a server's."""
    if not url.startswith(PLANTED):
        return ""
    fault = url.removeprefix(PLANTED)
    if fault not in FAULTS:
        raise LabError(f"there is no planted agent {fault!r}; there are {', '.join(FAULTS)}")
    return fault


def _dialect_of(url: str, *, planted: bool) -> str:
    if planted:
        return "native"
    websocket_address(url)
    found = guess_dialect(url)
    if found is None:
        raise LabError(f"which protocol does the server speak? Give --dialect: {', '.join(DIALECTS)}")
    return found


def _key(dialect: str) -> str:
    return os.environ.get(KEY_VARIABLE) or os.environ.get(KEY_VARIABLES.get(dialect, ""), "")


def _state(what: str, call: LabCall) -> str:
    done, total = call.progress
    return f"{what}, step {done} of {total}, {call.now_s:.0f} s"
