"""Estimated times of the words of a voice that has no durations: monotone, never beyond the existing samples.

A codec language model does not tell when it says a word. Two things are certain: a word is not heard before the frame
at which its first token was read, and all words are over at the last sample. In between, a word is taken to last in
proportion to its letters, at the pace of ordinary speech, one word after the other. Each word is reported once, with
the samples in which it ends. Words that are still open at the end of speech share the remaining samples. If speech is
rewound, reported words that end later are open again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from voxlane.engine.api import SpokenWord
from voxlane.engine.text.incremental import Said

LETTERS_PER_S = 15.0
"""Ordinary speech: 160 English words a minute, a space counted with each."""

LAG_S = 0.16
"""The least delay from the frame of a word's first token to the word: the model reads ahead of its speech."""


@dataclass(frozen=True, slots=True)
class _Open:
    said: Said
    earliest: int  # first possible sample


class WordTimer:
    """The words of one reply."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._open: deque[_Open] = deque()
        self._told: list[tuple[_Open, int]] = []  # reported words with their ends

    def add(self, said: Said, sample: int) -> None:
        """Add the next word. Its first token is read when the audio has reached `sample`."""
        self._open.append(_Open(said, sample + int(LAG_S * self._rate)))

    def told(self, samples: int) -> tuple[SpokenWord, ...]:
        """Report the words that end within `samples`."""
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
        """Report the remaining words; speech is over after `samples`."""
        words = list(self.told(samples))
        begin, letters = self._end, sum(word.said.letters for word in self._open)
        done = 0.0
        while self._open:
            done += self._open[0].said.letters
            words.append(self._tell(self._end, begin + int((samples - begin) * done / letters)))
        return tuple(words)

    @property
    def known(self) -> int:
        """Return how many words have been reported."""
        return len(self._told)

    @property
    def untold(self) -> int:
        """Return how many words have not been reported."""
        return len(self._open)

    def take_back(self, count: int) -> list[Said]:
        """Remove and return the last `count` unreported words, which are not yet spoken."""
        return [self._open.pop().said for _ in range(count)][::-1]

    def drop_from(self, sample: int) -> None:
        """Forget the unreported words that were added at `sample` or later: speech was over by then."""
        lag = int(LAG_S * self._rate)
        while self._open and self._open[-1].earliest - lag >= sample:
            self._open.pop()

    def rewind(self, sample: int) -> None:
        """Reopen the reported words that end after `sample`: the audio after it will be spoken again."""
        while self._end > sample:
            self._open.appendleft(self._told.pop()[0])

    @property
    def _end(self) -> int:
        """Return the end of the last reported word."""
        return self._told[-1][1] if self._told else 0

    def _tell(self, begin: int, end: int) -> SpokenWord:
        word = self._open.popleft()
        self._told.append((word, end))
        return SpokenWord(word.said.start, word.said.end, begin, end)
