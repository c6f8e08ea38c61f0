"""Take the assistant's own voice out of the microphone's sound.

The microphone is compared with what is played at the same time. Without an echo, as with headphones, its sound passes
unchanged and at once. When the two correlate at some delay, an adaptive filter (codecs/echo_filter.py) subtracts the
echo in blocks of 20 ms, and a block in which no more is left than an echo leaves is turned down to the background: the
ear takes it for silence. A person who talks over the echo is louder than that, and passes.

Measured with one synthetic voice 12 dB down, plain, through a room and through mu-law, 20 to 680 ms late: the ear alone
takes it for a person 50 to 60 times a minute; with the canceller once or twice in a conversation, at its beginning,
before the echo is known. Of 128 interruptions over the plain and the room's echo, at -20 and -35 dBFS, none was missed;
the hold came after 27 to 100 ms in the median. A second with an echo costs about twice what Silero does in a second of
speech.

Pure: what comes out depends on the two sounds alone, not on how they were cut.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from voxlane.codecs.echo_delay import LONGEST, WINDOW, DelayFinder
from voxlane.codecs.echo_filter import BLOCK, EchoFilter, spectrum
from voxlane.codecs.pcm import Floats
from voxlane.server.conversation.hearing.echo_suspicion import EchoSuspicion

RATE = 16_000

_KEPT = LONGEST + 2 * RATE  # samples of both sounds that are needed
_ROOM = _KEPT + 4 * RATE  # samples of both sounds that there is memory for, so that they are moved seldom
_TAIL = round(1.3 * RATE)  # the echo of the last sound played may come for so long
_PAUSE = round(0.8 * RATE)  # after a longer silence playback begins anew, perhaps with another delay
_AUDIBLE = 1e-6  # the mean square of a block that counts as played: -60 dB

_STEP = round(0.1 * RATE)  # samples between the first looks for a delay
_SOON = round(0.04 * RATE)  # the same where the echo is known, and only its delay may have changed
_ENOUGH = 18  # audible blocks that a look needs: less sound correlates with any other
_FIRST_LOOKS = 16
_LATER_STEP = RATE  # samples between later looks
_YOUNG = 50  # blocks for which a new filter has learnt too little to be trusted alone
_SURE = 100  # blocks after which the filter learns from every other one only
_EARLY = 80  # samples: the filter begins this much before the delay found
_MOVED = 64  # samples: a delay that differs by more is another one
_SHIFTED = 1  # samples: the same where it may have changed; a filter that is 3 samples off subtracts little
_VAIN = 8  # looks in vain after which there is no echo any more
_UNSETTLED = RATE // BLOCK  # blocks after which a delay that is not found again counts as the old one
_SOONER, _LATER = round(0.12 * RATE), round(0.2 * RATE)  # by so much a new delay may differ from the old one
_GOES_ON = 25  # blocks after a person's that probably have their voice, too
_LIKELY = 0.4  # the part of the greatest possible echo that a block of such has, in power
_FADED = 20  # blocks after which nothing is left of an echo
_LESSON = 32  # blocks from which the filter learns at once, twice, when a delay is found

_EDGES = np.array([4, 8, 12, 17, 23, 30, 39, 51, 66, 86, 112, 146, 190, 240])  # bands in bins of 25 Hz, from 100 Hz on
_FADE = 0.55  # what is left after a block of an echo that outlasts the filter, in power
_LOUDER = 4.0  # a person is so much louder in a band than what an echo leaves, in power
_SHARE = 0.35  # the part of a block's power that must be louder
_UP, _DOWN = 1.06, 0.99  # per block: what an echo leaves is learnt as its upper end
_PASSES = 4  # blocks behind a person's that pass
_TRUSTED = 15  # the same where two blocks in a row cannot be an echo: a word ends softly
_DOUBT = 75  # blocks in a row after which a person may be an echo that has changed


class EchoCanceller:
    """One microphone and the loudspeaker beside it."""

    def __init__(self) -> None:
        self._waiting = b""  # the beginning of a block
        self._waiting_played: Floats = np.zeros(0, np.float32)
        self._passed = 0  # bytes of it that were returned
        self._heard: Floats = np.zeros(0, np.float32)  # the last sound of the microphone; made when there is a reply
        self._played: Floats = np.zeros(0, np.float32)  # what was played at the same time
        self._end = _KEPT  # where both end
        self._quiet = _TAIL  # samples since something was played
        self._audible: deque[bool] = deque(maxlen=(WINDOW + LONGEST) // BLOCK)  # of the last blocks played
        self._until_look = 0
        self._looks = 0  # since playback began
        self._fresh = 0  # samples since then
        self._finder = DelayFinder()
        self._filter: EchoFilter | None = None
        self._delay = 0  # samples by which the filter lags behind what is played
        self._unsettled = 0  # audible blocks for which the delay may yet be another one
        self._vain = 0  # looks in vain in a row
        self._steps = 0  # of the filter, since the delay was found
        self._faded = 0  # blocks since the last that can have an echo by the delay in use
        self._rest = _Rest()
        self._suspicion = EchoSuspicion()
        self._alone = _GOES_ON  # blocks since a person was heard
        self._young = 0  # blocks for which the filter is not trusted alone
        self._background = _Quietest()  # of all sound, while suspicion decides
        self._unexplained = 0  # blocks in a row that are no echo
        self._passing = 0  # blocks behind a person's that pass yet

    @property
    def found(self) -> bool:
        """Whether an echo was found."""
        return self._filter is not None

    @property
    def _waits(self) -> bool:
        """Whether the beginning of a block waits for its end, because the block may be changed."""
        return self._quiet < _TAIL and (self._filter is not None or self._suspicion.expects)

    def hear(self, pcm: bytes, played: Floats | None) -> bytes:
        """Return the sound without the echo; where there is one, the beginning of a block waits for its end.

        `played` is what was played in the same time, as many samples; None if that is nothing.
        """
        idle = played is None and self._quiet >= _TAIL
        if idle and not self._waiting and not len(pcm) % (2 * BLOCK):  # whole blocks: nothing is kept of them
            return pcm
        sound = self._waiting + pcm
        if idle:  # all of it passes; only where its blocks begin is kept
            self._waiting = sound[len(sound) // (2 * BLOCK) * 2 * BLOCK :]
            self._waiting_played = np.zeros(len(self._waiting) // 2, np.float32)
            self._passed = len(self._waiting)
            return pcm
        fresh = np.zeros(len(pcm) // 2, np.float32) if played is None else played
        if not self._waiting and len(pcm) == 2 * BLOCK:  # the usual frame
            return self._block(pcm, fresh)
        reference = np.concatenate([self._waiting_played, fresh])
        out: list[bytes] = []
        whole = len(sound) // (2 * BLOCK)
        for number in range(whole):
            block = sound[2 * BLOCK * number : 2 * BLOCK * (number + 1)]
            out.append(self._block(block, reference[BLOCK * number : BLOCK * (number + 1)])[self._passed :])
            self._passed = 0
        self._waiting, self._waiting_played = sound[2 * BLOCK * whole :], reference[BLOCK * whole :]
        if not self._waits:
            out.append(self._waiting[self._passed :])
            self._passed = len(self._waiting)
        return b"".join(out)

    def begin_anew(self) -> None:
        """Note that the delay may have changed by any amount."""
        self._suspicion.forget_delay()
        self._begin()

    def change_loudness(self) -> None:
        """Note that an echo, if there may be one, changes its loudness: how soon, the line decides."""
        if self._filter is None and self._suspicion.expects:
            self._suspicion.forget_delay()

    def _begin(self) -> None:
        """Look for the delay anew."""
        self._finder.forget()
        self._looks, self._until_look, self._fresh = 0, _STEP, 0
        self._unsettled = _UNSETTLED

    def _block(self, pcm: bytes, played: Floats) -> bytes:
        passes = not self._waits  # the block's beginning may have been returned
        audible = float(played @ played) > _AUDIBLE * BLOCK
        self._audible.append(audible)
        if audible:
            if self._quiet >= _PAUSE:
                self._begin()
            self._quiet = 0
        else:
            self._quiet += BLOCK
        if self._quiet >= _TAIL:
            return pcm
        heard = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
        self._keep(heard, played)
        self._fresh += BLOCK
        self._until_look -= BLOCK
        if self._until_look <= 0:
            self._look()
        sure = self._filter is not None and not self._young  # then suspicion has nothing to say, and costs time
        suspect = not sure and self._suspicion.explains(heard, played)
        if self._filter is None:
            left: Floats = heard * np.float32(self._gain(heard, suspect=suspect))
        else:
            left = self._without_echo(heard, self._filter, suspect=suspect)
        if passes:
            return pcm
        return np.round(np.clip(left * 32768, -32768, 32767)).astype("<i2").tobytes()

    def _gain(self, heard: Floats, *, suspect: bool) -> float:
        """Return the gain of a block while suspicion decides: 1, or what makes a possible echo as quiet as the rest."""
        power = float(heard @ heard) / BLOCK
        background = self._background.of(power)
        loud = power > 2 * background
        self._unexplained = self._unexplained + 1 if loud and not suspect else 0
        self._passing = max(self._passing - 1, (0, _PASSES, _TRUSTED)[min(2, self._unexplained)])
        return (background / power) ** 0.5 if loud and not self._passing else 1.0

    def _without_echo(self, heard: Floats, kept: EchoFilter, *, suspect: bool) -> Floats:
        at = self._end - BLOCK - self._delay
        now = self._played[at : at + BLOCK]
        self._faded = 0 if float(now @ now) > _AUDIBLE * BLOCK / 10 else self._faded + 1
        if self._faded > _FADED and not self._unsettled:
            return heard
        if not self._unsettled:
            self._steps += 1
            learns = self._steps < _SURE or self._steps % 2 == 0
            left, rest, echo = kept.step(now, heard, learns=learns)
            gain = self._rest.gain(left, rest, echo)
            self._alone = 0 if self._rest.passing else self._alone + 1
            if self._young:
                self._young -= 1
                gain = min(gain, self._gain(heard, suspect=suspect))
            if float(left @ left) > float(heard @ heard):  # there was no echo to subtract
                left = heard
            return left * np.float32(gain)
        self._unsettled -= self._quiet == 0
        first, last = max(self._end - _KEPT, at - _LATER), min(self._end - BLOCK, at + _SOONER)
        played = self._played[first + (last - first) % BLOCK : last + BLOCK].reshape(-1, BLOCK)
        echo = kept.gain * spectrum(played).max(axis=0)
        if self._alone < _GOES_ON:  # a jump in the middle of a person's words is their doing
            echo = echo * np.float32(_LIKELY)
        gain = self._rest.gain(heard, spectrum(heard), echo, whole=True)
        self._alone = 0 if self._rest.passing else self._alone + 1
        return heard * np.float32(gain)

    def _keep(self, heard: Floats, played: Floats) -> None:
        if not len(self._heard):  # 0.9 MB, which an idle session does not need
            self._heard, self._played = np.zeros(_ROOM, np.float32), np.zeros(_ROOM, np.float32)
        if self._end + BLOCK > _ROOM:
            for sound in (self._heard, self._played):
                sound[:_KEPT] = sound[self._end - _KEPT : self._end]
            self._end = _KEPT
        self._heard[self._end : self._end + BLOCK] = heard
        self._played[self._end : self._end + BLOCK] = played
        self._end += BLOCK

    def _look(self) -> None:
        """Look for the delay, and start the filter there."""
        self._looks += 1
        self._until_look = _STEP if self._looks < _FIRST_LOOKS else _LATER_STEP
        if self._unsettled and self._filter is not None:
            self._until_look = _SOON
        if sum(self._audible) < _ENOUGH:
            return
        played = self._played[self._end - WINDOW - LONGEST : self._end]
        heard = self._heard[self._end - WINDOW : self._end].copy()
        heard[: max(0, WINDOW - self._fresh)] = 0  # sound from before has another delay
        found = self._finder.find(heard, played)
        self._vain = self._vain + 1 if found is None else 0
        if found is None:
            if self._vain >= _VAIN and not self._unsettled and self._filter is not None:
                self._filter = None
                self._suspicion.forget_played()
            return
        moved = _SHIFTED if self._unsettled else _MOVED
        delay, self._unsettled = max(0, found - _EARLY), 0
        if self._filter is None or abs(delay - self._delay) > moved:
            self._delay = delay
            self._learn()

    def _learn(self) -> None:
        """Let the filter learn from the sound that was."""
        if self._filter is None:
            self._filter, self._young = EchoFilter(), _YOUNG
            self._suspicion.settle(self._delay)
        self._filter.clear()
        self._rest = _Rest()
        self._steps = 0
        blocks = min(_LESSON, self._fresh // BLOCK)  # sound from before has another delay
        lesson = range(self._end - (blocks + 1) * BLOCK, self._end - BLOCK, BLOCK)
        for at in (*lesson, *lesson):
            before = at - self._delay
            left, rest, echo = self._filter.step(self._played[before : before + BLOCK], self._heard[at : at + BLOCK])
            self._rest.gain(left, rest, echo)


class _Rest:
    """What the filter leaves: an echo, or a person."""

    def __init__(self) -> None:
        self._leaves: Floats = np.ones(len(_EDGES), np.float32)  # what an echo leaves of itself, per band
        self._echo: Floats = np.zeros(len(_EDGES), np.float32)  # the power of the echo per band, fading
        self._background = _Quietest()
        self._person = 0  # blocks of a person in a row
        self.passing = 0  # blocks that pass yet: a person's, and those behind it

    def gain(self, left: Floats, rest: Floats, echo: Floats, *, whole: bool = False) -> float:
        """Return the gain of a block: 1 if a person may be in it, else what makes it as quiet as the background.

        `left` is its sound; `rest` and `echo` are the power spectra of that and of what was subtracted. With `whole`
        nothing was, and `echo` is the most that there may be.
        """
        power = float(left @ left) / BLOCK
        background = self._background.of(power)
        bands = np.add.reduceat(rest, _EDGES)
        self._echo = np.maximum(np.add.reduceat(echo, _EDGES), _FADE * self._echo)
        likely = self._echo if whole else self._leaves * self._echo
        louder = float(np.maximum(0, bands - _LOUDER * likely).sum())
        person = louder > _SHARE * float(bands.sum()) and power > 2 * background
        self._person = self._person + 1 if person else 0
        if not whole and (not person or self._person > _DOUBT):
            audible = self._echo > 40 * BLOCK * background
            moved = self._leaves * np.where(bands > likely, _UP, _DOWN)
            self._leaves = np.where(audible, moved, self._leaves).clip(0.003, 8.0).astype(np.float32)
        self.passing = _PASSES if person else max(0, self.passing - 1)
        return 1.0 if self.passing else min(1.0, (background / (power + 1e-12)) ** 0.5)


class _Quietest:
    """The background level: the quietest block of the last 2.5 s."""

    STRETCH, STRETCHES = 12, 10  # blocks, and stretches of so many

    def __init__(self) -> None:
        self._lowest: deque[float] = deque([1.0], maxlen=self.STRETCHES)
        self._blocks = 0

    def of(self, power: float) -> float:
        """Add the mean square of the next block; return that of the background."""
        self._blocks += 1
        if self._blocks > self.STRETCH:
            self._blocks = 1
            self._lowest.append(1.0)
        self._lowest[-1] = min(self._lowest[-1], power)
        return max(1e-9, min(self._lowest))
