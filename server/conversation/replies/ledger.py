"""How much of one reply the person has heard: which words lie at which samples, what was sent, what was played.

It keeps sample numbers of the reply and character numbers of its text, and no audio. The played samples may come from
acks, from a carrier's marks or from a truncation.
"""

from __future__ import annotations

from bisect import bisect_right

from voxlane.engine.api import SpokenWord


class LedgerError(ValueError):
    """Numbers that cannot be true of this reply; the text says which. Always our bug, never the client's."""


class Ledger:
    """The account of one reply. Invariant: played <= sent <= added, and none of the three ever decreases."""

    def __init__(self) -> None:
        self._added = 0
        self._sent = 0
        self._played = 0
        self._end: int | None = None  # the last sample that is ever played, once known
        self._chars: list[int] = [0]  # where each word ends in the text; the first entry stands for "no word"
        self._middles: list[int] = [-1]  # the sample at the middle of each word, in the same order
        self._words_end = 0  # the sample at which the last word ends

    @property
    def added_samples(self) -> int:
        """Samples that the engine has made."""
        return self._added

    @property
    def sent_samples(self) -> int:
        """Samples that were sent to the client."""
        return self._sent

    @property
    def played_samples(self) -> int:
        """Samples that the client has reported as played."""
        return self._played

    @property
    def unplayed_samples(self) -> int:
        """Samples that were sent and not reported as played."""
        return self._sent - self._played

    @property
    def word_marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where each word ends in the text, and the sample by which it counts as heard; first those of no word."""
        return tuple(self._chars), tuple(self._middles)

    @property
    def words(self) -> int:
        """Number of words whose place in the sound is known."""
        return len(self._chars) - 1

    @property
    def truncated(self) -> bool:
        """Whether the client has said that it plays no more of this reply."""
        return self._end is not None

    def add(self, offset: int, samples: int, words: tuple[SpokenWord, ...]) -> None:
        """Add the reply's next samples and the words that end in them; raise LedgerError if they are not the next.

        A word may begin in samples before these, but not before the last word ends.
        """
        if offset != self._added:
            what = "a gap" if offset > self._added else "a repeat"
            raise LedgerError(f"{what}: samples begin at {offset}, those before them end at {self._added}")
        if samples < 0:
            raise LedgerError(f"{samples} samples")
        ends, middles = self._place(words, offset + samples)
        self._words_end = words[-1].end_sample if words else self._words_end
        self._added += samples
        self._chars += ends
        self._middles += middles

    def sent(self, samples: int) -> None:
        """Note that `samples` more were sent to the client."""
        if not 0 <= samples <= self._added - self._sent:
            raise LedgerError(f"{samples} more sent after {self._sent}, of {self._added}")
        self._sent += samples

    def played(self, samples: int) -> None:
        """Note that the reply's first `samples` were played; never fewer than before, never more than were sent.

        A late or wrong ack is not an error: it is clamped.
        """
        limit = self._sent if self._end is None else min(self._sent, self._end)
        self._played = max(self._played, min(samples, limit))

    def truncate(self, sample: int) -> None:
        """Note that the client has played up to `sample` and will play nothing more of this reply.

        Samples acked before stay heard, however early `sample` is; later acks change nothing.
        """
        self.played(sample)
        self._end = self._played

    def heard_chars(self, position: int) -> int:
        """Return how many characters of the text are heard when the reply is played up to `position`.

        A word counts as heard when at least half of its sound was played. Unsent samples never count.
        """
        return self._chars[bisect_right(self._middles, min(position, self._sent)) - 1]

    def heard_text(self, text: str) -> str:
        """Return the part of the reply's text that has been heard."""
        return text[: self.heard_chars(self._played)]

    def _place(self, words: tuple[SpokenWord, ...], last: int) -> tuple[list[int], list[int]]:
        """Return where the words end in the text, and the samples by which each counts as heard."""
        ends, middles, starts = [self._chars[-1]], [self._middles[-1]], [self._words_end]
        char, sample = self._chars[-1], self._words_end
        for word in words:
            if not char <= word.start < word.end or word.end < ends[-1]:
                raise LedgerError(f"a word of characters {word.start} to {word.end} behind one of {char} to {ends[-1]}")
            if not sample <= word.start_sample <= word.end_sample <= last:
                raise LedgerError(
                    f"a word at samples {word.start_sample} to {word.end_sample}, not within {sample} to {last}"
                )
            begin = word.start_sample
            if word.start < ends[-1]:
                # Several spoken words for one written word, as for "$4.50": half of all their sound counts.
                begin = starts.pop()
                ends.pop()
                middles.pop()
            char, sample = word.start, word.end_sample
            starts.append(begin)
            ends.append(word.end)
            middles.append((begin + word.end_sample + 1) // 2)
        return ends[1:], middles[1:]
