"""What a client is told, in order and numbered; and what it was told and may have to be told again after a break.

Pure. It knows packets and numbers; it does not know what they say, who sends them or when.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from voxlane.server.protocols.dialect import Packet

LATE_AUDIO_S = 2.0
"""Sound that may wait beyond what a client asked to have in advance: one that is later than this is not listening."""

WAITING_PACKETS = 2048
"""Messages that may wait: a reply of a thousand words, and its captions."""

KEPT_PACKETS = 512
"""Messages that are remembered for a client that comes back; what is older is in the history it is given."""


class TooSlow(Exception):
    """The client does not take what it is told."""


@dataclass(slots=True)
class _Numbered:
    packet: Packet
    sequence: int = 0  # 0: not yet written
    told_once: bool = False  # and never again


class Mailbox:
    """One conversation's way out."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s  # what the client wants in advance
        self._waiting: deque[_Numbered] = deque()
        self._waiting_s = 0.0
        self._kept: deque[_Numbered] = deque()
        self._sequence = 0
        self._heard = (0, 0)  # epoch and sample up to which sound needs no repeating

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, packet: Packet) -> None:
        """Take the next message; raise TooSlow if too many wait."""
        self._waiting.append(_Numbered(packet))
        self._waiting_s += packet.seconds
        if self._waiting_s > self.ahead_s + LATE_AUDIO_S or len(self._waiting) > WAITING_PACKETS:
            raise TooSlow

    def put_before_sound(self, packet: Packet, epoch: int) -> None:
        """Take a message that overtakes the sound of its reply which still waits."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].packet.epoch == epoch:
            place -= 1
        self._waiting.insert(place, _Numbered(packet))

    def put_first(self, packet: Packet) -> None:
        """Take a message that comes before all that wait, and that is not told again: another like it will be."""
        self._waiting.appendleft(_Numbered(packet, told_once=True))

    def drop_sound(self, epoch: int) -> None:
        """Forget the sound of a reply, told or not."""
        self._waiting = deque(item for item in self._waiting if item.packet.epoch != epoch)
        self._waiting_s = sum(item.packet.seconds for item in self._waiting)
        self._kept = deque(item for item in self._kept if item.packet.epoch != epoch)

    def next(self) -> tuple[Packet, int] | None:
        """Return what is to be written now, and its number."""
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        self._waiting_s = max(0.0, self._waiting_s - item.packet.seconds)
        if not item.sequence:
            self._sequence += 1
            item.sequence = self._sequence
            if not item.told_once:
                self._kept.append(item)
            if len(self._kept) > KEPT_PACKETS:
                self._kept.popleft()
        return item.packet, item.sequence

    def played(self, epoch: int, samples: int) -> None:
        """Forget sound that was heard: up to a sample of a reply, in the client's samples, and all before the reply."""
        self._heard = max(self._heard, (epoch, samples))
        self._kept = deque(item for item in self._kept if not item.packet.epoch or self._unheard(item.packet))

    def _unheard(self, packet: Packet) -> bool:
        return (packet.epoch, packet.end) > self._heard

    def rewind(self, last_sequence: int | None) -> None:
        """Tell again what a client that comes back has not got, and all sound it has not heard.

        Without a number nothing but sound is told again: the client begins from the history.
        """
        after = self._sequence if last_sequence is None else last_sequence
        again = [
            item for item in self._kept if (self._unheard(item.packet) if item.packet.epoch else item.sequence > after)
        ]
        self._waiting.extendleft(reversed(again))
        self._waiting_s += sum(item.packet.seconds for item in again)
