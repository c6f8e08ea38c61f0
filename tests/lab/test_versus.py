"""Two servers that are called in turns: what differs between them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import sweep
from lab_voices import humming_corpus

from voxlane_lab.compare import compare
from voxlane_lab.results import RunResult
from voxlane_lab.runner import RunOptions
from voxlane_lab.scenario import read_scenario
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.versus import run_versus

STOP = """
name = "stop"
repeat = 10
[[step]]
say = "Tell me a long story about the sea."
[[step]]
means = "stop"
say = "Stop, that is enough of it, I would like to hear something else from you now."
"""


class Stopped(Exception):
    """The run ends in the middle."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return humming_corpus(tmp_path_factory.mktemp("corpus"))


def both(corpus: Corpus, told: list[str], **more: int) -> tuple[RunResult, RunResult]:
    options = RunOptions(corpus=corpus, **more)
    urls = ("planted:none", "planted:slow_yield")
    return run_versus([read_scenario(STOP, name="stop")], urls=urls, options=options, progress=told.append)


@pytest.mark.soak
def test_a_slower_server_is_worse_and_only_where_it_is_slower(corpus: Corpus) -> None:
    comparison = compare(*both(corpus, []))
    assert "yield_ms" in comparison.worse
    assert not {"response_ms", "stale_ms", "repeated_ms"} & set(comparison.worse)
    assert comparison.only_first == comparison.only_second == 0


@pytest.mark.parametrize("at_once", sweep([3, 1]))
def test_every_second_pair_is_held_in_the_other_order(corpus: Corpus, at_once: int) -> None:
    told: list[str] = []
    results = both(corpus, told, at_once=at_once, repeat=3)
    calls = [text.split(":")[0].split()[0] for text in told if "call" in text]
    assert calls == ["first", "second", "second", "first", "first", "second"]
    for result, yield_ms in zip(results, (800, 1600), strict=True):
        (scenario,) = result.scenarios
        assert [call.repeat for call in scenario.calls] == [0, 1, 2]
        assert scenario.summary.numbers["yield_ms"].p50 == pytest.approx(yield_ms, abs=20)


def test_a_run_that_is_stopped_keeps_what_was_held(corpus: Corpus, tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if "call 3" in text:
            raise Stopped

    urls = ("planted:none", "planted:none")
    options = RunOptions(corpus=corpus)
    with pytest.RaisesGroup(Stopped):
        run_versus([read_scenario(STOP, name="stop")], urls=urls, options=options, out=tmp_path, progress=stop)
    for name in ("first", "second"):
        assert len(list((tmp_path / name / "calls").iterdir())) == 2
