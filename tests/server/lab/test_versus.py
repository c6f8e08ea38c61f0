"""Two servers that are called in turns: what differs between them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_voices import humming_corpus

from voxlane.server.lab.compare import compare
from voxlane.server.lab.results import RunResult
from voxlane.server.lab.runner import RunOptions
from voxlane.server.lab.scenario import read_scenario
from voxlane.server.lab.sounds.corpus import Corpus
from voxlane.server.lab.versus import run_versus

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


def both(corpus: Corpus, second: str, told: list[str], *, at_once: int = 1) -> tuple[RunResult, RunResult]:
    options = RunOptions(corpus=corpus, at_once=at_once)
    urls = ("planted:none", f"planted:{second}")
    return run_versus([read_scenario(STOP, name="stop")], urls=urls, options=options, progress=told.append)


def test_a_slower_server_is_worse_and_only_where_it_is_slower(corpus: Corpus) -> None:
    comparison = compare(*both(corpus, "slow_yield", []))
    assert "yield_ms" in comparison.worse
    assert not {"response_ms", "stale_ms", "repeated_ms"} & set(comparison.worse)
    assert comparison.only_first == comparison.only_second == 0


@pytest.mark.parametrize("at_once", [1, 3])
def test_every_second_pair_is_held_in_the_other_order(corpus: Corpus, at_once: int) -> None:
    told: list[str] = []
    first, second = both(corpus, "none", told, at_once=at_once)
    assert compare(first, second).worse == []
    calls = [text.split(":")[0].split()[0] for text in told if "call" in text]
    assert calls == ["first", "second", "second", "first"] * 5
    assert [call.repeat for call in first.scenarios[0].calls] == list(range(10))


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
