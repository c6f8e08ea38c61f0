"""Messages to a client: a numbered queue, and a store of sent messages that are repeated after a resume.

Pure; the connection does the sending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from voxlane.server.conversation.replies.saved import OpenReply
from voxlane.server.protocols.dialect import Packet

LATE_AUDIO_S = 2.0
"""Sound that may wait beyond the client's buffer: a client that is later than this does not read."""

WAITING_PACKETS = 2048
"""Messages that may wait: those of a reply of a thousand words with its captions."""

KEPT_PACKETS = 512
"""Sent messages without sound that are kept for a resume; older ones are in the history."""

KEPT_SOUND_S = 30.0
"""Sent sound that is kept for a resume: the ten seconds that a client may buffer, and twenty for which a dead line went
unnoticed. A client that reports what it has played never comes near it; for others it bounds memory."""


TOLD_PACKETS = 32
"""Messages that a record keeps for a client that resumes at another server: those of the last few turns."""

RUN_PACKETS = 64
"""Messages that are written together."""


class TooSlow(Exception):
    """The client does not read its messages fast enough."""


@dataclass(frozen=True, slots=True)
class JournalMark:
    """What a message means to the record of its conversation: it is in the record before it is written."""

    version: int = 0  # the version of the record that must be stored before
    repeated: bool = False  # the record keeps the message itself, with its number
    opens_turn: int = 0
    ends_turn: int = 0
    opens_reply: OpenReply | None = None
    ends_reply: int = 0  # its epoch


@dataclass(slots=True)
class NumberedPacket:
    """A message on its way to the client."""

    packet: Packet
    sequence: int = 0  # 0: not written yet
    never_repeated: bool = False  # not repeated after a resume
    mark: JournalMark | None = None


class Outbound:
    """The outbound messages of one conversation."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s  # seconds of sound that the client buffers
        self._waiting: deque[NumberedPacket] = deque()
        self._new = 0  # waiting messages that were never written
        self._new_s = 0.0  # seconds of sound in those; repeated messages are bounded by what is kept
        self._kept: deque[NumberedPacket] = deque(maxlen=KEPT_PACKETS)
        self._kept_sound: deque[NumberedPacket] = deque()
        self._kept_s = 0.0
        self._sequence = 0
        self._heard = (0, 0)  # epoch and sample up to which sound was heard
        self.open_turns: dict[int, None] = {}  # turns that the client was told of, and not their end; marked ones only
        self.open_reply: OpenReply | None = None  # the same of a reply

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def sequence(self) -> int:
        """The number of the last message that was written."""
        return self._sequence

    @property
    def told(self) -> list[NumberedPacket]:
        """The last messages that a record keeps."""
        kept = [item for item in self._kept if item.mark is not None and item.mark.repeated]
        return kept[-TOLD_PACKETS:]

    def restore(
        self, sequence: int, told: Iterable[tuple[int, Packet]], turns: Iterable[int], reply: OpenReply | None
    ) -> None:
        """Go on from a record: the last number, the messages that it keeps, and what is open."""
        self._sequence = sequence
        self._kept.extend(NumberedPacket(packet, number, mark=JournalMark(repeated=True)) for number, packet in told)
        self.open_turns, self.open_reply = dict.fromkeys(turns), reply

    def put(self, packet: Packet, mark: JournalMark | None = None) -> None:
        """Add a message; raise TooSlow if too much waits."""
        self._waiting.append(NumberedPacket(packet, mark=mark))
        self._new += 1
        self._new_s += packet.seconds
        if self._new_s > self.ahead_s + LATE_AUDIO_S or self._new > WAITING_PACKETS:
            raise TooSlow

    def put_before_sound(self, packet: Packet, epoch: int) -> None:
        """Add a message that overtakes its reply's waiting sound."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].packet.epoch == epoch:
            place -= 1
        self._waiting.insert(place, NumberedPacket(packet))
        self._new += 1

    def put_first(self, packet: Packet) -> None:
        """Add a message before all others. It is not repeated after a resume: a new one is made then."""
        self._waiting.appendleft(NumberedPacket(packet, never_repeated=True))
        self._new += 1

    def drop_sound(self, epoch: int) -> None:
        """Drop the sound of a reply, sent or not."""
        self._wait_with(item for item in self._waiting if item.packet.epoch != epoch)
        self._keep_sound(item for item in self._kept_sound if item.packet.epoch != epoch)

    def next(self) -> tuple[Packet, int] | None:
        """Return the next message to write and its number, None if none waits."""
        if not self._waiting:
            return None
        item = self._next()
        return item.packet, item.sequence

    def next_run(self) -> list[NumberedPacket]:
        """Return the next messages to write: one with sound, or all up to the next one with sound; [] if none waits."""
        run: list[NumberedPacket] = []
        while self._waiting and len(run) < RUN_PACKETS and not (run and self._waiting[0].packet.epoch):
            run.append(self._next())
            if run[-1].packet.epoch:
                break
        return run

    def _next(self) -> NumberedPacket:
        item = self._waiting.popleft()
        if not item.sequence:
            self._new -= 1
            self._new_s = max(0.0, self._new_s - item.packet.seconds)
            self._sequence += 1
            item.sequence = self._sequence
            if not item.never_repeated:
                self._keep(item)
            if item.mark is not None:
                self._note(item.mark)
        return item

    def _note(self, mark: JournalMark) -> None:
        """Note what a message opens and ends, at the moment it gets its number."""
        if mark.opens_turn:
            self.open_turns[mark.opens_turn] = None
        self.open_turns.pop(mark.ends_turn, None)
        if mark.opens_reply is not None:
            self.open_reply = mark.opens_reply
        elif self.open_reply is not None and mark.ends_reply == self.open_reply.epoch:
            self.open_reply = None

    def _wait_with(self, items: Iterable[NumberedPacket]) -> None:
        self._waiting = deque(items)
        new = [item.packet.seconds for item in self._waiting if not item.sequence]
        self._new, self._new_s = len(new), sum(new)

    def _keep(self, item: NumberedPacket) -> None:
        if not item.packet.epoch:
            self._kept.append(item)
            return
        self._kept_sound.append(item)
        self._kept_s += item.packet.seconds
        while self._kept_s > KEPT_SOUND_S:
            self._kept_s -= self._kept_sound.popleft().packet.seconds

    def _keep_sound(self, items: Iterable[NumberedPacket]) -> None:
        self._kept_sound = deque(items)
        self._kept_s = sum(item.packet.seconds for item in self._kept_sound)

    def played(self, epoch: int, samples: int) -> None:
        """Drop kept sound up to a sample of a reply, in the client's samples, and all sound of earlier replies."""
        self._heard = max(self._heard, (epoch, samples))
        self._keep_sound(item for item in self._kept_sound if self._unheard(item.packet))

    def _unheard(self, packet: Packet) -> bool:
        return (packet.epoch, packet.end) > self._heard

    def rewind(self, last_sequence: int | None) -> None:
        """Queue the messages that a resumed client has not received, and all sound that it has not heard.

        Without a number only sound is repeated: the client begins from the history.
        """
        after = self._sequence if last_sequence is None else last_sequence
        again = [item for item in self._kept if item.sequence > after]
        again += [item for item in self._kept_sound if self._unheard(item.packet)]
        again.sort(key=lambda item: item.sequence)
        # Messages queued again for an earlier resume are among `again`; the `ready` of that connection is out of date.
        new = [item for item in self._waiting if not (item.sequence or item.never_repeated)]
        self._wait_with([*again, *new])
