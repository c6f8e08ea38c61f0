"""When words of a voice without durations are heard: an estimate, monotone, never beyond the samples that exist.

A codec language model says nothing of when it says what. Two things are certain: a word is not heard before the frame
beside which its first token was read, and all words are over with the last sample. In between words are taken to last
as long as they are in letters, at the pace of ordinary speech, one after the other. It is told for each word once, with
the samples that it ends in; words still open when speech is over share what is left. Where speech goes back, words that
were told and end later are open again. It knows numbers only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from voxlane.engine.api import SpokenWord
from voxlane.engine.text.incremental import Said

LETTERS_PER_S = 15.0
"""Ordinary speech: 160 English words a minute, a space counted with each."""

LAG_S = 0.16
"""How much later than its first token's frame a word begins at the earliest: the model reads ahead of what it says."""


@dataclass(frozen=True, slots=True)
class _Open:
    said: Said
    earliest: int  # sample


class WordTimer:
    """The words of one reply."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._open: deque[_Open] = deque()
        self._told: list[tuple[_Open, int]] = []  # and where each ends

    def add(self, said: Said, sample: int) -> None:
        """Take the next word, whose first token is read when the sound has come to `sample`."""
        self._open.append(_Open(said, sample + int(LAG_S * self._rate)))

    def told(self, samples: int) -> tuple[SpokenWord, ...]:
        """Return the words that have ended when there are so many samples."""
        words: list[SpokenWord] = []
        while self._open:
            word = self._open[0]
            begin = max(self._end, word.earliest)
            end = begin + int(word.said.letters / LETTERS_PER_S * self._rate)
            if end > samples:
                break
            words.append(self._tell(begin, end))
        return tuple(words)

    def finish(self, samples: int) -> tuple[SpokenWord, ...]:
        """Return the words that are left, speech being over after so many samples."""
        words = list(self.told(samples))
        begin, letters = self._end, sum(word.said.letters for word in self._open)
        done = 0.0
        while self._open:
            done += self._open[0].said.letters
            words.append(self._tell(self._end, begin + int((samples - begin) * done / letters)))
        return tuple(words)

    @property
    def known(self) -> int:
        """Return how many words somebody has been told of."""
        return len(self._told)

    @property
    def untold(self) -> int:
        """Return how many words nobody has been told of."""
        return len(self._open)

    def take_back(self, count: int) -> list[Said]:
        """Return the last `count` words that were not told, which are yet to be said."""
        return [self._open.pop().said for _ in range(count)][::-1]

    def rewind(self, sample: int) -> None:
        """Take it that what came after a sample will be said again: no word that ends later was told."""
        while self._end > sample:
            self._open.appendleft(self._told.pop()[0])

    @property
    def _end(self) -> int:
        """Return where the last word that was told ends."""
        return self._told[-1][1] if self._told else 0

    def _tell(self, begin: int, end: int) -> SpokenWord:
        word = self._open.popleft()
        self._told.append((word, end))
        return SpokenWord(word.said.start, word.said.end, begin, end)
