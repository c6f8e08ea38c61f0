"""What a client is told, in order and numbered; and what it was told and may have to be told again after a break.

Pure. It knows packets and numbers; it does not know what they say, who sends them or when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from voxlane.server.protocols.dialect import Packet

LATE_AUDIO_S = 2.0
"""Sound that may wait beyond what a client asked to have in advance: one that is later than this is not listening."""

WAITING_PACKETS = 2048
"""Messages that may wait: a reply of a thousand words, and its captions."""

KEPT_PACKETS = 512
"""Messages without sound that are remembered for a client that comes back; what is older is in the history."""

KEPT_SOUND_S = 30.0
"""Sound that is remembered for a client that comes back: the ten seconds it may have in advance, and twenty for which a
dead line went unnoticed. A client that says what it has played never comes near it; for others it bounds memory."""


class TooSlow(Exception):
    """The client does not take what it is told."""


@dataclass(slots=True)
class _Numbered:
    packet: Packet
    sequence: int = 0  # 0: not yet written
    told_once: bool = False  # and never again


class Outbound:
    """One conversation's way out."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s  # what the client wants in advance
        self._waiting: deque[_Numbered] = deque()
        self._new = 0  # of those, not written before,
        self._new_s = 0.0  # and their sound: what is told again is bounded by what is kept
        self._kept: deque[_Numbered] = deque(maxlen=KEPT_PACKETS)
        self._kept_sound: deque[_Numbered] = deque()
        self._kept_s = 0.0
        self._sequence = 0
        self._heard = (0, 0)  # epoch and sample up to which sound needs no repeating

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, packet: Packet) -> None:
        """Take the next message; raise TooSlow if too many wait."""
        self._waiting.append(_Numbered(packet))
        self._new += 1
        self._new_s += packet.seconds
        if self._new_s > self.ahead_s + LATE_AUDIO_S or self._new > WAITING_PACKETS:
            raise TooSlow

    def put_before_sound(self, packet: Packet, epoch: int) -> None:
        """Take a message that overtakes the sound of its reply which still waits."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].packet.epoch == epoch:
            place -= 1
        self._waiting.insert(place, _Numbered(packet))
        self._new += 1

    def put_first(self, packet: Packet) -> None:
        """Take a message that comes before all that wait, and that is not told again: another like it will be."""
        self._waiting.appendleft(_Numbered(packet, told_once=True))
        self._new += 1

    def drop_sound(self, epoch: int) -> None:
        """Forget the sound of a reply, told or not."""
        self._wait_with(item for item in self._waiting if item.packet.epoch != epoch)
        self._keep_sound(item for item in self._kept_sound if item.packet.epoch != epoch)

    def next(self) -> tuple[Packet, int] | None:
        """Return what is to be written now, and its number."""
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        if not item.sequence:
            self._new -= 1
            self._new_s = max(0.0, self._new_s - item.packet.seconds)
            self._sequence += 1
            item.sequence = self._sequence
            if not item.told_once:
                self._keep(item)
        return item.packet, item.sequence

    def _wait_with(self, items: Iterable[_Numbered]) -> None:
        self._waiting = deque(items)
        new = [item.packet.seconds for item in self._waiting if not item.sequence]
        self._new, self._new_s = len(new), sum(new)

    def _keep(self, item: _Numbered) -> None:
        if not item.packet.epoch:
            self._kept.append(item)
            return
        self._kept_sound.append(item)
        self._kept_s += item.packet.seconds
        while self._kept_s > KEPT_SOUND_S:
            self._kept_s -= self._kept_sound.popleft().packet.seconds

    def _keep_sound(self, items: Iterable[_Numbered]) -> None:
        self._kept_sound = deque(items)
        self._kept_s = sum(item.packet.seconds for item in self._kept_sound)

    def played(self, epoch: int, samples: int) -> None:
        """Forget sound that was heard: up to a sample of a reply, in the client's samples, and all before the reply."""
        self._heard = max(self._heard, (epoch, samples))
        self._keep_sound(item for item in self._kept_sound if self._unheard(item.packet))

    def _unheard(self, packet: Packet) -> bool:
        return (packet.epoch, packet.end) > self._heard

    def rewind(self, last_sequence: int | None) -> None:
        """Tell again what a client that comes back has not got, and all sound it has not heard.

        Without a number nothing but sound is told again: the client begins from the history.
        """
        after = self._sequence if last_sequence is None else last_sequence
        again = [item for item in self._kept if item.sequence > after]
        again += [item for item in self._kept_sound if self._unheard(item.packet)]
        again.sort(key=lambda item: item.sequence)
        # What was put back for a connection that broke as well is among these; its `ready` is out of date.
        new = [item for item in self._waiting if not (item.sequence or item.told_once)]
        self._wait_with([*again, *new])
