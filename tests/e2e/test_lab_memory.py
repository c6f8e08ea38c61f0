"""The counting canary with real voices and the real recogniser: what an agent remembers of what was heard."""

from __future__ import annotations

import asyncio

import pytest
from lab_voices import hums

from voxlane_lab.agents.voice import counting_wanted
from voxlane_lab.results import RunResult
from voxlane_lab.runner import RunOptions, run_scenarios
from voxlane_lab.scenario_library import load
from voxlane_lab.sounds.corpus import Corpus, default_folder

pytestmark = pytest.mark.weights

DIALECTS = ("native", "realtime", "twilio", "pcm")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The agent speaks with Kokoro's voice; the person, whom it does not understand, hums."""
    folder = tmp_path_factory.mktemp("corpus")
    spoken = Corpus(default_folder())
    asyncio.run(spoken.prepare(counting_wanted()))
    for kept in default_folder().glob("*.npz"):
        (folder / kept.name).symlink_to(kept)
    return Corpus(folder, hums)


def counted(corpus: Corpus, fault: str, dialect: str) -> RunResult:
    scenario = load(["counting"])
    return run_scenarios(scenario, url=f"planted:{fault}", dialect=dialect, options=RunOptions(corpus=corpus, repeat=3))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("fault", "wrong"), [("none", False), ("keeps_words", True), ("forgets_words", True)])
def test_an_agent_that_remembers_other_words_than_were_heard_is_found(
    corpus: Corpus, fault: str, wrong: bool, dialect: str
) -> None:
    result = counted(corpus, fault, dialect)
    told = [call.steps[1].values["memory_wrong"] for call in result.scenarios[0].calls]
    assert told == [wrong] * 3
    others = {gate.metric for _, gate in result.gates if gate.verdict == "missed"}
    assert not others
