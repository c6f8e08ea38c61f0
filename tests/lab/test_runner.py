"""Whole runs with planted agents on the virtual clock: each fault fails its own gate, in every dialect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

import pytest
from examples import SOAK, sweep
from lab_voices import humming_corpus

from voxlane_lab import results
from voxlane_lab.agents.planted import planted
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.call import LabCall
from voxlane_lab.errors import LabError
from voxlane_lab.holding import hold_virtually
from voxlane_lab.judge import judged_again
from voxlane_lab.recording_file import call_folder, load
from voxlane_lab.results import RunResult
from voxlane_lab.runner import LabRunner, RunOptions, run_scenarios
from voxlane_lab.scenario import Scenario, read_scenario
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.summary import Summary

DIALECTS = ("native", "realtime", "twilio", "pcm")
REPEATS = 10 if SOAK else 2
"""How often a scenario is held where the agent does the same in every call."""

HEAD = """
name = "{name}"
repeat = {repeat}
[[step]]
say = "Tell me a long story about the sea."
"""
BACKCHANNEL = HEAD.format(name="mhm", repeat=10) + '[[step]]\nsound = "mhm"\nmeans = "nothing"\n'
INTERRUPTION = (
    HEAD.format(name="stop", repeat=10)
    + '[[step]]\nmeans = "stop"\n'
    + 'say = "Stop, that is enough of it, I would like to hear something else from you now."\n'
)
PAUSE = 'name = "pause"\nrepeat = 10\n[[step]]\nsay = ["I would like to go", 0.45, "to the old harbour."]\n'
GATES = """
[gates]
yield_ms.p95 = 900
talk_over_ms.p95 = 2200
stale_ms.max = 0
response_ms.p95 = 1200
missed.share = 0
unanswered.share = 0
answered_twice.share = 0
"""
PAUSE_GATES = "[gates]\ncut_off.share = 0.1\nunanswered.share = 0\nanswered_twice.share = 0\n"
SCENARIOS = [
    read_scenario(text, name="test")
    for text in (BACKCHANNEL + "[gates]\nfalse_stop.share = 0.1\n", INTERRUPTION + GATES, PAUSE + PAUSE_GATES)
]

FAILS = {
    "none": set(),
    "talks_over": {"talk_over_ms"},
    "stops_for_mhm": {"false_stop"},
    "pauses_850": set(),
    "slow_yield": {"yield_ms"},
    "stale": {"stale_ms"},
    "answers_twice": {"answered_twice"},
    "never_answers": {"unanswered"},
    "cuts_off": {"cut_off"},
}
"""Which gates each fault misses; keeps_words and forgets_words need a recogniser: tests/e2e."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return humming_corpus(tmp_path_factory.mktemp("corpus"))


def run(corpus: Corpus, fault: str, dialect: str, scenarios: list[Scenario] = SCENARIOS, **options: int) -> RunResult:
    return run_scenarios(
        scenarios, url=f"planted:{fault}", dialect=dialect, options=RunOptions(corpus=corpus, **options)
    )


def missed(result: RunResult) -> set[str]:
    assert not [call.failure for one in result.scenarios for call in one.calls if call.failure]
    return {gate.metric for _, gate in result.gates if gate.verdict == "missed"}


def scenario_of(fault: str) -> Scenario:
    """Return the scenario that shows a fault."""
    return SCENARIOS[{"stops_for_mhm": 0, "pauses_850": 0, "cuts_off": 2}.get(fault, 1)]


EVERY_FAULT = [
    pytest.param(fault, dialect, marks=() if turn % len(DIALECTS) == place else pytest.mark.soak)
    for turn, fault in enumerate(FAILS)
    for place, dialect in enumerate(DIALECTS)
]
"""Each fault in each dialect: `make test` holds each fault once, and each dialect with some of them."""


@pytest.mark.parametrize(("fault", "dialect"), EVERY_FAULT)
def test_a_fault_misses_its_own_gate(corpus: Corpus, fault: str, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxlane_lab.gates.FEWEST", REPEATS)
    assert missed(run(corpus, fault, dialect, [scenario_of(fault)], repeat=REPEATS)) == FAILS[fault]


@pytest.mark.parametrize(("fault", "dialect"), EVERY_FAULT)
def test_no_gate_of_another_fault_is_missed(corpus: Corpus, fault: str, dialect: str) -> None:
    """All scenarios but those in which a fault also shows as another: an early answer is stale sound without names."""
    others = [one for one in SCENARIOS if one is not scenario_of(fault) and fault != "cuts_off"]
    assert missed(run(corpus, fault, dialect, others or SCENARIOS[:1])) <= FAILS[fault]


@cache
def figures(corpus: Corpus, fault: str, dialect: str, scenario: str = INTERRUPTION) -> Summary:
    """Return the figures of a scenario's calls."""
    read = [read_scenario(scenario, name="test")]
    return run(corpus, fault, dialect, read, repeat=REPEATS).scenarios[0].summary


@pytest.mark.parametrize("dialect", sweep(DIALECTS))
def test_planted_times_are_measured_to_20_ms(corpus: Corpus, dialect: str) -> None:
    slow = figures(corpus, "slow_yield", dialect).numbers["yield_ms"]
    assert slow.n == REPEATS
    assert (slow.min, slow.max) == (pytest.approx(1600, abs=20), pytest.approx(1600, abs=20))
    paused = figures(corpus, "pauses_850", dialect, BACKCHANNEL)
    assert paused.numbers["pause_ms"].min == pytest.approx(850, abs=20)
    assert paused.numbers["pause_ms"].max == pytest.approx(850, abs=20)
    assert paused.numbers["skipped_ms"].max == paused.numbers["repeated_ms"].max == 0
    stale, good = (figures(corpus, fault, dialect) for fault in ("stale", "none"))
    assert stale.numbers["stale_ms"].p50 == pytest.approx(1000, abs=60)
    assert stale.numbers["response_ms"].p50 == pytest.approx(good.numbers["response_ms"].p50, abs=20)


@pytest.mark.parametrize("dialect", sweep(DIALECTS))
def test_delay_each_way_is_added_twice(corpus: Corpus, dialect: str) -> None:
    near = figures(corpus, "none", dialect).numbers
    far = figures(corpus, "none", dialect, INTERRUPTION + "[line]\ndelay_ms = 100\n").numbers
    for metric in ("yield_ms", "response_ms"):
        assert far[metric].p50 - near[metric].p50 == pytest.approx(200, abs=20)


def test_a_naive_loudspeaker_changes_the_number(corpus: Corpus) -> None:
    """The same server is slower to be silent where the loudspeaker plays what was already sent."""
    heard = figures(corpus, "none", "native", 'client = "naive"\n' + INTERRUPTION).numbers["yield_ms"]
    assert heard.p50 > figures(corpus, "none", "native").numbers["yield_ms"].p50


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_sound(corpus: Corpus) -> None:
    first, again, other = (run(corpus, "stale", "native", SCENARIOS[1:2], seed=seed, repeat=2) for seed in (1, 1, 2))
    assert results.encode(first) == results.encode(again)
    hashes = [[call.sent_sha256 for one in run.scenarios for call in one.calls] for run in (first, other)]
    assert hashes[0] != hashes[1]
    assert len(set(hashes[0])) == 2


def test_a_step_whose_moment_does_not_come_is_a_result_of_its_own(corpus: Corpus) -> None:
    waits = (
        'name = "x"\nrepeat = 1\n[[step]]\nsay = "Stop."\nmeans = "stop"\nwhen = { agent = "audible", within_s = 2 }\n'
    )
    result = run(corpus, "none", "native", [read_scenario(waits, name="test")])
    assert result.scenarios[0].calls[0].steps[0].result == "nothing_to_interrupt"
    assert results.exit_code(result) == 2


def test_a_trigger_that_the_dialect_cannot_know(corpus: Corpus) -> None:
    waits = HEAD.format(name="x", repeat=1) + '[[step]]\nsay = "Stop."\nmeans = "stop"\nwhen = { agent_left_s = 0.4 }\n'
    scenario = read_scenario(waits, name="test")
    phone, native = (
        run(corpus, "none", dialect, [scenario]).scenarios[0].calls[0].steps[1] for dialect in ("twilio", "native")
    )
    assert phone.result == "not_in_dialect"
    assert native.result == "done"


def test_a_run_is_written_and_judged_again_with_the_same_result(corpus: Corpus, tmp_path: Path) -> None:
    result = run_scenarios(
        SCENARIOS[:2], url="planted:stale", options=RunOptions(corpus=corpus, repeat=2), out=tmp_path
    )
    assert results.decode((tmp_path / "result.json").read_bytes()) == results.decode(results.encode(result))
    assert {path.name for path in tmp_path.iterdir()} == {"calls", "junit.xml", "report.html", "result.json"}
    loaded = [load(folder) for folder in sorted((tmp_path / "calls").iterdir())]
    assert [call_folder(one.scenario, one.repeat) for one in loaded] == ["mhm-001", "mhm-002", "stop-001", "stop-002"]
    again = judged_again(result, {(one.scenario, one.repeat): one for one in loaded})
    assert results.encode(again) == results.encode(result)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("planted:nothing", "there is no planted agent"),
        ("ws://127.0.0.1:1/other", "which protocol"),
        ("not an address", "the address must be that of a WebSocket"),
    ],
)
def test_a_wrong_address_is_one_clear_line(corpus: Corpus, url: str, words: str) -> None:
    with pytest.raises(LabError, match=words):
        run_scenarios(SCENARIOS, url=url, options=RunOptions(corpus=corpus))


ONE = 'name = "one"\nrepeat = 1\n[[step]]\nsound = "cough"\n'


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ((ONE + "[gates]\nyeild_ms.p95 = 5\n",), "there is no metric yeild_ms"),
        ((ONE + "[gates]\nyield_ms.p99 = 5\n",), "yield_ms has no p99"),
        ((ONE, ONE.replace("one", "One!")), "two scenarios have the name"),
        ((ONE.replace("cough", "couhg"),), "^one: there is no sound couhg"),
        ((ONE + '[user]\nnoise = { bed = "moon" }\n',), "^one: there is no bed moon"),
    ],
)
def test_a_wrong_scenario_is_refused_before_any_call(corpus: Corpus, texts: tuple[str, ...], says: str) -> None:
    told: list[str] = []
    scenarios = [read_scenario(text, name="test") for text in texts]
    with pytest.raises(LabError, match=says):
        run_scenarios(scenarios, url="planted:none", options=RunOptions(corpus=corpus), progress=told.append)
    assert told == []


@pytest.mark.parametrize("what", ["a file", "calls of others"])
def test_a_folder_that_is_not_the_labs_is_refused_before_any_call(corpus: Corpus, tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "a file":
        out.write_text("mine")
    else:
        (out / "calls").mkdir(parents=True)
        (out / "calls" / "mine.wav").write_text("mine")
    told: list[str] = []
    with pytest.raises(LabError, match="out"):
        run_scenarios(SCENARIOS, url="planted:none", options=RunOptions(corpus=corpus), out=out, progress=told.append)
    assert told == []
    assert what == "a file" or (out / "calls" / "mine.wav").is_file()


def test_a_server_that_no_call_can_be_held_with_is_not_called_for_every_scenario(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxlane_lab.holding.STARTS_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    told: list[str] = []
    result = run_scenarios(
        SCENARIOS, url=f"ws://127.0.0.1:{port}/pcm", options=RunOptions(corpus=corpus), progress=told.append
    )
    assert [len(one.calls) for one in result.scenarios] == [1]
    assert results.exit_code(result) == results.NOT_MEASURABLE
    assert [text for text in told if "call" in text] == ["mhm: call 1 of 10"]


def test_a_mapping_file_means_plain_pcm(corpus: Corpus) -> None:
    options = RunOptions(corpus=corpus, mapping="[send]\nrate = 16000\n", repeat=1)
    result = run_scenarios(SCENARIOS[2:], url="planted:none", options=options)
    assert result.dialect == "pcm"
    with pytest.raises(LabError, match="a mapping file is for the dialect pcm"):
        run_scenarios(SCENARIOS[2:], url="planted:none", dialect="twilio", options=options)


def test_turn_detection_is_named_over_realtime_only(corpus: Corpus) -> None:
    options = RunOptions(corpus=corpus, turn_detection="semantic_vad", repeat=1)
    with pytest.raises(LabError, match="turn detection is named in the dialect realtime"):
        run_scenarios(SCENARIOS[2:], url="planted:none", dialect="native", options=options)


def test_calls_at_once_give_the_same_result_in_the_same_order(corpus: Corpus) -> None:
    one, at_once = (run(corpus, "slow_yield", "native", SCENARIOS[1:], repeat=2, at_once=count) for count in (1, 3))
    assert results.encode(at_once) == results.encode(one)


def served(late: dict[LabCall, float], meet: asyncio.Barrier | None = None) -> Callable[..., Awaitable[None]]:
    """Return what holds a call with a planted agent instead of a server; `late` says how late its ticks are."""

    async def hold(call: LabCall, handshake: object, tell: object) -> None:
        if meet is not None:
            await meet.wait()
        begin_tick = call.begin_tick
        call.begin_tick = lambda late_ms=0.0: begin_tick(late.get(call, 0.0))  # type: ignore[method-assign]
        hold_virtually(call, planted("none", "pcm", AgentVoice.synthetic(1)))

    return hold


def test_calls_are_held_at_the_same_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxlane_lab.runner.hold", served({}, asyncio.Barrier(2)))
    options = RunOptions(corpus=corpus, repeat=2, at_once=2)
    result = run_scenarios(SCENARIOS[2:], url="ws://127.0.0.1:1/pcm", dialect="pcm", options=options)
    assert [call.repeat for call in result.scenarios[0].calls] == [0, 1]


def test_a_call_in_which_the_tester_was_late_is_held_once_more(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[LabCall] = []

    async def hold(call: LabCall, handshake: object, tell: object) -> None:
        held.append(call)
        await served({held[0]: 500.0})(call, handshake, tell)

    monkeypatch.setattr("voxlane_lab.runner.hold", hold)
    options = RunOptions(corpus=corpus, repeat=2)
    result = run_scenarios(SCENARIOS[2:], url="ws://127.0.0.1:1/pcm", dialect="pcm", options=options)
    assert len(held) == 3
    assert [step.result for call in result.scenarios[0].calls for step in call.steps] == ["done", "done"]


async def test_a_run_that_is_stopped_keeps_the_calls_that_were_held(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    third, good = asyncio.Event(), served({})
    number = iter(range(10))

    async def hold(call: LabCall, handshake: object, tell: object) -> None:
        if next(number) == 2:
            third.set()
            await asyncio.Event().wait()
        await good(call, handshake, tell)

    monkeypatch.setattr("voxlane_lab.runner.hold", hold)
    options = RunOptions(corpus=corpus, repeat=5)
    runner = LabRunner(SCENARIOS[2:], "ws://127.0.0.1:1/pcm", "pcm", options, lambda text: None)
    run = asyncio.create_task(runner.run(tmp_path / "out"))
    await third.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = results.decode((tmp_path / "out" / "result.json").read_bytes())
    assert [len(one.calls) for one in result.scenarios] == [2]
