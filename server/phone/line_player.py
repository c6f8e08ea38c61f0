"""Plays replies on a telephone line: sends sound just ahead of playback, and knows which sample the caller hears.

A line plays what it is sent, in order. A hold discards what the line has not played; the sound is kept here and sent
again from the sample where it stopped. Marks say what was played; between two marks the clock does. Genesys'
`playback_started` and `playback_completed` name neither a sound nor a sample, and do not say whether a clear has ended
the playback, so they are not used. A position is the sample that the line plays when a message sent now arrives there.
Sound and messages travel the same way, so the delay of the line cancels out. Pure: the clock is an argument, methods
return messages to send.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voxlane.server.http.buckets import Bucket
from voxlane.server.phone.line_encoder import LineEncoder
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import LineCodec, Message

SAMPLE_BYTES = 2

MARK_S = 0.1
"""Sound between two marks: the clock is right to a few milliseconds for so long."""

TONES = 0
"""The epoch of sound that belongs to no reply."""

MOST_PENDING_MARKS = 256
"""Marks that may be under way: a line that never returns them must not fill the memory."""

KEPT_MESSAGES = 2.0
"""Messages that sound leaves of those that a line takes at once: a clear cannot wait."""

_PROBE = "p"  # a mark without sound before it: it comes back after the delay of the line alone


@dataclass(slots=True)
class _Part:
    """Sound of one reply on the tape."""

    epoch: int
    start: int  # its first sample on the tape
    offset: int  # the same sample in the reply
    samples: int = 0


@dataclass(frozen=True, slots=True)
class LinePosition:
    """The caller has heard the first `samples` of a reply, in samples of the line."""

    epoch: int
    samples: int


class _Allowance:
    """How many messages a line still takes."""

    def __init__(self, most: tuple[float, float] | None) -> None:
        """Allow so many messages a second, and so many at once; None: any number."""
        self.limited = most is not None
        self._rate, self._burst = most or (1.0, 1.0)
        self._bucket = Bucket(self._rate, self._burst, 0.0)

    def spend(self, now: float) -> None:
        """Note that a message is sent."""
        if self.limited:
            self._bucket.owe(1, now)

    def wait_s(self, now: float) -> float:
        """Return how long sound has to wait: the last messages are kept for what cannot."""
        return max(0.0, KEPT_MESSAGES + 1 - self._bucket.left(now)) / self._rate if self.limited else 0.0

    def scarce(self, now: float) -> bool:
        """Return whether so few messages are left that sound should go in large pieces."""
        return self.limited and self._bucket.left(now) < self._burst / 2


class LinePlayer:
    """The player of one call. Its tape is the sound of the call in order; sample numbers are those of the tape."""

    def __init__(self, codec: LineCodec, form: AudioFormat) -> None:
        self._codec = codec
        self._traits = codec.traits
        self._rate = form.rate
        self._encoder = LineEncoder(form)
        self._piece = form.rate * self._traits.piece_ms // 1000
        self._lead = round(self._traits.lead_s * form.rate)
        self._allowance = _Allowance(self._traits.most_messages)
        self._tape = bytearray()
        self._tape_from = 0  # the sample at which `_tape` begins
        self._parts: deque[_Part] = deque()
        self._sent = 0  # the next sample to send
        self._done: set[int] = set()  # epochs whose sound is complete
        self._gain = 1.0
        self._held = False
        self._full = False  # the line takes no sound for now
        self._settled_s = 0.0  # when the last clear has taken effect
        self._marks: dict[str, int] = {}  # name -> sample; marks that were discarded with their sound are not in it
        self._marked = 0  # the last sample with a mark
        self._names = 0
        self._probes: dict[str, float] = {}  # name -> when it was sent
        self._round_trip_s: float | None = None  # None: not known yet
        self._late_s = 0.0  # how long the line waits before it plays the first sound of a stretch
        self._anchor: tuple[int, float] | None = None  # a sample and when it is played; None: nothing plays
        self._begun = (0, 0.0)  # the first sample of the stretch and when it was sent

    # ---- sound in

    @property
    def idle(self) -> bool:
        """Whether everything was sent: what is left is on its way to the caller."""
        return self._sent >= self._end

    @property
    def _end(self) -> int:
        return self._tape_from + len(self._tape) // SAMPLE_BYTES

    def add(self, epoch: int, offset: int, pcm: bytes) -> None:
        """Add the next sound of a reply: 16-bit samples at the rate of the line."""
        if not self._parts or self._parts[-1].epoch != epoch or epoch == TONES:
            self._parts.append(_Part(epoch, self._end, offset))
        self._parts[-1].samples += len(pcm) // SAMPLE_BYTES
        self._tape += pcm

    def finish(self, epoch: int) -> None:
        """Note that all sound of a reply has come: what remains of a piece is sent."""
        self._done.add(epoch)

    # ---- the floor

    def hold(self, now: float) -> list[Message]:
        """Stop where the caller hears it; keep the rest."""
        messages = self._stop(now)
        self._held = True
        return messages

    def release(self, now: float) -> list[Message]:
        """Go on with the very next sample, at full loudness."""
        messages = [] if self._held or self._gain == 1.0 else self._stop(now)
        self._held, self._gain = False, 1.0
        return messages

    def duck(self, gain: float, now: float) -> list[Message]:
        """Go on with a lower gain, from the sample that the caller hears now."""
        self._gain = gain
        return self._stop(now)

    def drop(self, epoch: int, now: float) -> list[Message]:
        """Discard the rest of a reply."""
        stopped = self._stop(now)
        keep = [part for part in self._parts if part.epoch != epoch and part.start + part.samples > self._sent]
        sounds = [self._cut(max(part.start, self._sent), part.start + part.samples) for part in keep]
        self._parts = deque()
        self._tape, self._tape_from = bytearray(), self._sent
        for part, sound in zip(keep, sounds, strict=True):
            self.add(part.epoch, part.offset + max(0, self._sent - part.start), sound)
        self._held, self._gain = False, 1.0
        self._done.discard(epoch)
        return stopped

    def _stop(self, now: float) -> list[Message]:
        """Have the line discard what it has not played, and go back to there. A line that cannot do it plays on."""
        position = self.position(now)
        if not self._traits.clears or self._sent <= position:
            return []
        cleared = self._codec.clear()
        assert cleared is not None
        self._allowance.spend(now)
        self._sent = self._marked = position
        self._anchor = None
        self._settled_s = now + self._traits.settle_s
        self._marks.clear()
        return [cleared]

    # ---- time

    def position(self, now: float) -> int:
        """Return the sample up to which the caller will have heard it when a message sent now arrives."""
        if self._anchor is None:
            return self._sent
        sample, at_s = self._anchor
        return min(self._sent, max(self._tape_from, sample + int(max(0.0, now - at_s) * self._rate)))

    def heard(self, now: float) -> list[LinePosition]:
        """Return what was heard of each reply that is not over, and forget those that are.

        A line that cannot clear plays all that it was sent.
        """
        position = self.position(now) if self._traits.clears else self._sent
        found = [
            LinePosition(part.epoch, part.offset + min(position - part.start, part.samples))
            for part in self._parts
            if part.start < position and part.epoch != TONES
        ]
        while len(self._parts) > 1 and self._parts[0].start + self._parts[0].samples <= position:
            self._done.discard(self._parts.popleft().epoch)
        self._forget(position)
        return found

    def _forget(self, position: int) -> None:
        """Drop sound that was heard, one second late: marks may still move the position a little."""
        spare = min(position, self._sent) - self._rate - self._tape_from
        if spare > self._rate:
            del self._tape[: spare * SAMPLE_BYTES]
            self._tape_from += spare

    def finished(self, now: float) -> bool:
        """Return whether the caller has heard everything."""
        return self.idle and self.position(now) >= self._sent

    def due(self, now: float) -> list[Message]:
        """Return the messages to send now."""
        messages: list[Message] = []
        if now < self._settled_s:
            return messages
        while not (self._held or self._full) and self._sent - self.position(now) < self._lead:
            size = min(self._longest_piece(now), self._end - self._sent)
            if size <= 0 or (size < self._piece and not self._whole):
                break
            if self._allowance.wait_s(now) > 0:
                break
            self._allowance.spend(now)
            messages += self._next_piece(size, now)
        return messages

    def _longest_piece(self, now: float) -> int:
        """Return the most samples of the next message: a piece, or more where the line takes few messages.

        There one message brings all that the line should have, so that a hold and a release are two messages.
        """
        if not self._allowance.limited:
            return self._piece
        lacking = self._lead - (self._sent - self.position(now))
        return max(self._piece, self._lead if self._allowance.scarce(now) else lacking)

    @property
    def _whole(self) -> bool:
        """Whether a short piece may be sent: no more sound of its reply comes."""
        last = self._parts[-1].epoch
        return last == TONES or last in self._done

    def next_at(self, now: float) -> float | None:
        """Return when `due` may have more, None if only an event changes that."""
        if self._held or self._full or self.idle:
            return None
        short = self._end - self._sent < self._piece and not self._whole
        wait_s = max(0.0, (self._sent - self.position(now) - self._lead + 1) / self._rate)
        return None if short else max(self._settled_s, now + wait_s, now + self._allowance.wait_s(now))

    def _next_piece(self, size: int, now: float) -> list[Message]:
        if self._anchor is None or self.position(now) >= self._sent:
            self._begun = (self._sent, now)  # a new stretch
            self._anchor = (self._sent, now + self._late_s)
        sound = self._cut(self._sent, self._sent + size)
        self._sent += size
        messages = [self._codec.media(self._encoder.encode(self._lowered(sound)))]
        last = self._sent == self._end and self._whole
        if self._traits.marks and (last or self._sent - self._marked >= MARK_S * self._rate):
            messages += self._mark()
        return messages

    def _cut(self, start: int, end: int) -> bytes:
        return bytes(self._tape[(start - self._tape_from) * SAMPLE_BYTES : (end - self._tape_from) * SAMPLE_BYTES])

    def _lowered(self, pcm: bytes) -> bytes:
        if self._gain == 1.0:
            return pcm
        return (np.frombuffer(pcm, "<i2") * self._gain).astype("<i2").tobytes()

    # ---- marks

    def _mark(self) -> list[Message]:
        self._marked = self._sent
        self._names += 1
        name = f"{self._names}"
        if len(self._marks) >= MOST_PENDING_MARKS:
            del self._marks[next(iter(self._marks))]
        self._marks[name] = self._sent
        message = self._codec.mark(name)
        assert message is not None
        return [message]

    def probe(self, now: float) -> list[Message]:
        """Return a mark that measures the delay of the line; nothing while the line plays."""
        if not self._traits.marks or not self.finished(now) or len(self._probes) >= 4:
            return []
        self._names += 1
        name = f"{_PROBE}{self._names}"
        self._probes[name] = now
        message = self._codec.mark(name)
        return [] if message is None else [message]

    def marked(self, name: str, now: float, *, played: bool = True) -> None:
        """Note that a mark has come back. Marks that were discarded, and those that we never sent, say nothing."""
        if (sent_s := self._probes.pop(name, None)) is not None:
            found_s = now - sent_s
            self._round_trip_s = found_s if self._round_trip_s is None else min(self._round_trip_s, found_s)
            return
        sample = self._marks.pop(name, None)
        if sample is None or not played or self._anchor is None or self._round_trip_s is None:
            return  # without the round trip the clock alone is nearer to the truth
        if sample <= self._anchor[0]:
            return  # it belongs to a stretch before this one
        # The mark took a way back, and a message from us takes a way there: the line is a round trip further on.
        start, at_s = self._anchor
        begun, begun_s = self._begun
        # Nothing is played before it was sent: a round trip that was measured on a busy machine may be too long.
        known_at_s = max(now - self._round_trip_s, begun_s + (sample - begun) / self._rate)
        self._late_s = min(max(0.0, known_at_s - (at_s - self._late_s) - (sample - start) / self._rate), 0.5)
        self._anchor = (sample, known_at_s)

    def set_full(self, full: bool) -> None:
        """Note whether the line takes no more sound."""
        self._full = full
