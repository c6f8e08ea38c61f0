"""The first words of a clause are said before it is whole, where they last until more of it is written."""

from __future__ import annotations

import numpy as np
import pytest
from simulation import Clock, reason
from speech_simulation import PretendSynthesiser

from voxlane.engine.api import Append, EndInput, FromEngine, Rewind, Rewound, Samples, Submit
from voxlane.engine.jobs.speak_clauses import SpeakClausesJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.models.synthesis import Prepared, SynthesisedClause, TimedWord
from voxlane.engine.runners.clause_tts import ClauseTTS
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import Limits, ModelResources
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.server.conversation.replies.ledger import Ledger

TEXT = "A first clause that takes its time to be written, word by word. "
NOTHING = BlockPool(0, 1, prefix_cache=False)


class Worded(PretendSynthesiser):
    """Knows where its words are: 60 samples a letter, which is 60 ms."""

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        text = "".join(map(chr, prepared.ids[1:-1]))
        words, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            words.append(TimedWord(at, at + len(word), 60 * at, 60 * (at + len(word))))
            at += len(word)
        return SynthesisedClause(np.repeat(np.array(prepared.ids[1:-1], np.float32) / 256, 60), tuple(words))


class Speaker:
    """An engine that speaks one reply, and what came of it."""

    def __init__(self) -> None:
        self.clock = Clock()
        resources = ModelResources(NOTHING, BlockPool(0, 1, prefix_cache=False), CostModel())
        scheduler, model = Scheduler({"tts": resources}, Limits()), Worded()
        factories = {"tts": SpeakClausesJobFactory(model, NOTHING)}
        self.core = Core(scheduler, {"tts": ClauseTTS(model)}, factories, clock=self.clock)
        self.messages: list[FromEngine] = []
        self.send(Submit("t", "tts"))

    def send(self, *commands: Submit | Append | EndInput | Rewind) -> None:
        self.messages += self.core.handle(list(commands))
        while self.core.busy:
            self.messages += self.core.step()

    def write(self, text: str, pace_s: float, *, whole: str = "") -> list[int]:
        """Write words of an unfinished clause at a pace; return how many samples there were after each."""
        found = []
        for word in text.split():
            self.send(Append("t", text=f"{word} ", goes_on=True))
            found.append(len(self.sound))
            self.clock.now += pace_s
        if whole:
            self.send(Append("t", text=whole))
        return found

    @property
    def sound(self) -> bytes:
        """What is heard at last: a message may go back."""
        heard = b""
        for message in self.messages:
            if isinstance(message, Samples):
                assert message.offset <= len(heard) // 2
                heard = heard[: 2 * message.offset] + message.pcm
            elif isinstance(message, Rewound):
                heard = heard[: 2 * message.sample]
        return heard


def test_words_are_said_before_the_clause_is_whole_and_each_once() -> None:
    speaker = Speaker()
    before = speaker.write("A first clause that takes its time to be", 0.1, whole="written, word by word. ")
    assert before[1] == 0 < before[2]  # from three words on
    speaker.send(EndInput("t"))
    assert reason(speaker.messages[-1]) == "eos"
    ledger, words = Ledger(), []
    for message in speaker.messages:
        if isinstance(message, Samples):
            ledger.add(message.offset, len(message.pcm) // 2, message.words)
            words += [TEXT[word.start : word.end] for word in message.words]
    assert words == TEXT.split()


@pytest.mark.parametrize(("pace_s", "said"), [(0.001, False), (0.1, True), (0.6, False)])
def test_it_is_not_worth_it_where_the_clause_is_soon_whole_or_would_run_dry(pace_s: float, said: bool) -> None:
    assert (Speaker().write("A first clause that", pace_s)[-1] > 0) is said


def test_a_word_and_a_comma_are_said_as_soon_as_their_pace_is_known() -> None:
    before = Speaker().write("Naturally, that is", 0.1)
    assert before[0] == 0 < before[1] == before[2]


def test_the_end_of_the_text_ends_the_clause() -> None:
    speaker = Speaker()
    speaker.write("A first clause that takes", 0.1)
    speaker.send(EndInput("t"))
    assert reason(speaker.messages[-1]) == "eos"
    said = [word for one in speaker.messages if isinstance(one, Samples) for word in one.words]
    assert [TEXT[word.start : word.end] for word in said] == ["A", "first", "clause", "that", "takes"]


@pytest.mark.parametrize("sample", [0, 100, 500, 1500])
@pytest.mark.parametrize("when", ["unfinished", "whole"])
def test_it_goes_back_to_the_very_sample(sample: int, when: str) -> None:
    once, again = Speaker(), Speaker()
    for speaker in (once, again):
        speaker.write("A first clause that takes its", 0.1)
        if speaker is again and when == "unfinished":
            speaker.send(Rewind("t", sample))
        speaker.send(Append("t", text="time to be written, word by word. "))
        if speaker is again and when == "whole":
            speaker.send(Rewind("t", sample))
        speaker.send(Append("t", text="And another. "), EndInput("t"))
    assert once.sound == again.sound
