"""Whose sound the loudspeaker played: the response of every run, its place in the response, and what is stale. Pure.

A dialect that names responses (native epochs, Realtime's response_id) decides the owner by the name. Elsewhere these
rules decide, the first that fits:

1. After a clear, a jump or a break, sound that is the same as sound received around the place where the loudspeaker
   stopped belongs to the response of that sound. Where it matches says what was skipped or repeated.
2. Sound that reaches the ear before u_off + 150 ms of a step that interrupts belongs to the old response.
3. Sound behind a clear, or behind a break of 300 ms in which nothing is played, begins a new response, once the person
   has said a turn. Where the server sends silence instead of nothing, the break must be 700 ms: a pause between two
   sentences is shorter.
4. Other sound continues the response before it. After a sound that means nothing a break may take 2.5 s, unless the
   server has cleared the loudspeaker.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.values import USER_RATE, Interval, Pcm, Recording, Run, StepRecord

AUDIBLE_DB = -50.0  # a frame that is louder is heard
FRAME_S = 0.01
FASTEST_ANSWER_S = 0.15  # sound that comes sooner after u_off is no answer
GAP_S = 0.2  # a response that plays nothing for so long has yielded
NEW_AFTER_S = 0.3  # a break that starts a new response
NEW_AFTER_SILENCE_S = 0.7  # the same, where the server sends silence
RESUMES_S = 2.5  # a longer break after a sound that means nothing is no pause
MATCH_BREAK_S = 0.1  # sound behind such a break is compared with what came before
MATCH_BACK_S = 1.5  # how far before the place where it stopped
MATCH_NEAR_S = 0.25  # how far before, for a short match
MATCH_LENGTHS_S = (0.4, 0.2, 0.1, 0.06)
MATCH_SHORT_S = 0.1  # a match this short counts only near the place
SAME = 0.95  # normalised correlation of equal sound
SAME_SHORT = 0.98  # the same for a short match: a steady vowel is like itself a few periods earlier
RESTART_S = 0.1  # sound that matches the beginning of a response is a new response

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """Samples of one response that were played one after the other."""

    at: int  # the first sample's place in the agent's track
    end: int  # the place behind the last sample
    owner: str  # the response: its name in the dialect, or "response 1", "response 2", …
    offset: int | None  # the first sample's place in the response; None: not known
    source: int = 0  # the first sample's place in the received sound (Run.offset)
    continues: bool = False  # goes on with its response after a break of 200 ms or more
    stale: bool = False  # sound of a response that had yielded to the person before


def audible(recording: Recording) -> Mask:
    """Return for each sample of the agent's track whether its frame of 10 ms is louder than -50 dB of full scale."""
    return loud(recording.agent, recording.agent_rate)


def loud(pcm: Pcm, rate: int) -> Mask:
    """Return for each sample whether its frame of 10 ms is louder than -50 dB of full scale."""
    if not len(pcm):
        return np.zeros(0, np.bool_)
    count = -(-len(pcm) * 100 // rate)
    starts = np.arange(count + 1) * rate // 100
    starts = starts[starts < len(pcm)]
    lengths = np.diff(np.append(starts, len(pcm)))
    power = np.add.reduceat(pcm.astype(np.float64) ** 2, starts) / lengths
    return np.repeat(power > (10 ** (AUDIBLE_DB / 20) * 32768) ** 2, lengths)


def agent_place(recording: Recording, place: int) -> int:
    """Return the place in the agent's track of a place in the person's."""
    return place * recording.agent_rate // USER_RATE


def spoken(recording: Recording) -> list[StepRecord]:
    """Return the steps that were heard by the server, in order."""
    return [step for step in recording.steps if step.voiced]


def old_response(recording: Recording, step: StepRecord, runs: Sequence[OwnedRun], heard: Mask) -> str | None:
    """Return the response that a step meets: it is audible at u_on, or pauses there between two words."""
    rate = recording.agent_rate
    u_on = agent_place(recording, step.first)
    tick = rate // 50
    at_u_on = [run for run in runs if run.at < u_on + tick and run.end > u_on - tick and not run.stale]
    if step.audible:
        if any(run.owner == step.response for run in runs) and step.response:
            return step.response
        return at_u_on[-1].owner if at_u_on else None
    bridge = round(NEW_AFTER_SILENCE_S * rate)
    for run in reversed(at_u_on):
        if run.at <= u_on < run.end and _sounds(heard, max(run.at, u_on - bridge), u_on):
            return run.owner if _sounds(heard, u_on, min(run.end, u_on + bridge)) else None
    return None


def of_owner(runs: Iterable[OwnedRun], owner: str) -> list[OwnedRun]:
    """Return the runs of a response."""
    return [run for run in runs if run.owner == owner]


def first_silence(runs: Sequence[OwnedRun], place: int, rate: int) -> int | None:
    """Return how many runs of a response come before its first silence of 200 ms that begins after a place.

    None: no run of it reaches beyond the place.
    """
    for number, run in enumerate(runs):
        last = number + 1 == len(runs)
        if run.end > place and (last or runs[number + 1].at - run.end >= GAP_S * rate):
            return number + 1
    return None


def owned(recording: Recording) -> list[OwnedRun]:
    """Return who owns each part of what the loudspeaker played, in order."""
    heard = audible(recording)
    runs = _joined(recording.runs)
    found = _Named(recording).place([run for run in runs if run.response])
    found += _Unnamed(recording, heard).place([run for run in runs if not run.response])
    found.sort(key=lambda run: run.at)
    return _noted(recording, found, heard)


def _noted(recording: Recording, runs: list[OwnedRun], heard: Mask) -> list[OwnedRun]:
    """Return the runs with the notes `continues` and `stale`."""
    rate = recording.agent_rate
    ends: dict[str, int] = {}
    for number, run in enumerate(runs):
        runs[number] = replace(run, continues=run.at - ends.get(run.owner, run.at) >= GAP_S * rate)
        ends[run.owner] = run.end
    steps = spoken(recording)
    for number, step in enumerate(steps):
        if step.means != "stop" or (old := old_response(recording, step, runs, heard)) is None:
            continue
        until = _met_again(recording, steps[number + 1 :], old)
        mine = [run for run in of_owner(runs, old) if run.at < until]
        before = first_silence(mine, agent_place(recording, step.first), rate)
        stale = {run.at for run in mine[before:]} if before is not None else set()
        runs = [replace(run, stale=True, continues=False) if run.at in stale else run for run in runs]
    return runs


def _met_again(recording: Recording, later: Sequence[StepRecord], old: str) -> int:
    """Return where a later step meets the same response, by the dialect's name; else the end of the track."""
    again = [agent_place(recording, step.first) for step in later if step.audible and step.response == old]
    return again[0] if again else len(recording.agent)


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with those joined that follow each other without a break."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if last and (last.end, last.response, last.offset + last.samples) == (run.at, run.response, run.offset):
            found[-1] = Run(last.at, last.response, last.offset, last.samples + run.samples)
        elif run.samples:
            found.append(run)
    return found


def _sounds(heard: Mask, begin: int, end: int) -> bool:
    return bool(heard[max(begin, 0) : max(end, 0)].any())


def _clears(recording: Recording) -> list[int]:
    """Return the places in the agent's track at which the loudspeaker was cleared."""
    found = [one for one in recording.occurrences if (one.side, one.name) == ("card", "clear")]
    return [round(one.at_s * recording.agent_rate) for one in found]


class _Places:
    """Maps places in received sound to places in the response, when parts of it were sent again."""

    def __init__(self) -> None:
        self._from: list[int] = []
        self._shift: list[int] = []
        self._owner: list[str] = []

    def add(self, source: int, offset: int, owner: str) -> None:
        """Note that from a place on the sound is that of a response, from an offset on."""
        self._from.append(source)
        self._shift.append(source - offset)
        self._owner.append(owner)

    def offset(self, source: int) -> int:
        """Return the place in the response."""
        return source - self._shift[self._at(source)]

    def owner(self, source: int) -> str:
        """Return the response."""
        return self._owner[self._at(source)]

    def first_copy(self, source: int) -> int:
        """Return where the same place of the response was first received."""
        owner, offset = self.owner(source), self.offset(source)
        return offset + self._shift[self._owner.index(owner)]

    def _at(self, source: int) -> int:
        return max(0, bisect.bisect_right(self._from, source) - 1)


class _Named:
    """The runs of dialects that name responses."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._clears = _clears(recording)

    def place(self, runs: Sequence[Run]) -> list[OwnedRun]:
        """Return the runs with their places in the responses."""
        found = []
        last: dict[str, Run] = {}
        places: dict[str, _Places] = {}
        for run in runs:
            mine = places.setdefault(run.response, _Places())
            before = last.get(run.response)
            if before is None:
                mine.add(0, 0, run.response)
            elif (place := self._place(mine, before, run)) is not None:
                mine.add(run.offset, mine.offset(place), run.response)
            found.append(OwnedRun(run.at, run.end, run.response, mine.offset(run.offset), run.offset))
            last[run.response] = run
        return found

    def _place(self, places: _Places, before: Run, run: Run) -> int | None:
        rate = self._recording.agent_rate
        track = self._recording.received.get(run.response, np.zeros(0, np.int16))
        jumped = run.offset != before.offset + before.samples
        cleared = jumped or _cleared(self._clears, before, run, rate)
        return _matched(track, rate, before, run, places, cleared=cleared)


class _Unnamed:
    """The runs of dialects that do not name responses."""

    def __init__(self, recording: Recording, heard: Mask) -> None:
        self._recording = recording
        self._heard = heard
        self._rate = recording.agent_rate
        self._clears = _clears(recording)
        self._steps = spoken(recording)
        self._places = _Places()
        self._count = 0
        self._owner = ""

    def place(self, runs: Sequence[Run]) -> list[OwnedRun]:
        """Return the runs with their responses."""
        found: list[OwnedRun] = []
        before: Run | None = None
        for run, jumped in self._sounding(runs):
            self._decide(before, run, jumped)
            found.append(OwnedRun(run.at, run.end, self._owner, self._places.offset(run.offset), run.offset))
            before = run
        return found

    def _sounding(self, runs: Iterable[Run]) -> list[tuple[Run, bool]]:
        """Return the runs without the long silence that a server may send between two responses.

        With each run: whether received sound was dropped before it.
        """
        found = []
        expected, jumped = 0, False
        for run in runs:
            jumped = jumped or run.offset != expected
            expected = run.offset + run.samples
            for first, last in self._stretches(run):
                found.append((Run(run.at + first, "", run.offset + first, last - first), jumped))
                jumped = False
        return found

    def _stretches(self, run: Run) -> list[Interval]:
        """Return the parts of a run between silences of 700 ms."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self._heard[run.at : run.end].view(np.int8), [0]))))
        if not len(edges):
            return []
        shortest = NEW_AFTER_SILENCE_S * self._rate
        begins, ends = edges[::2], edges[1::2]
        cuts = np.flatnonzero(begins[1:] - ends[:-1] >= shortest)
        begin = int(begins[0]) if begins[0] >= shortest else 0
        end = int(ends[-1]) if run.samples - ends[-1] >= shortest else run.samples
        firsts = [begin, *(int(begins[cut + 1]) for cut in cuts)]
        return list(zip(firsts, [*(int(ends[cut]) for cut in cuts), end], strict=True))

    def _decide(self, before: Run | None, run: Run, jumped: bool) -> None:
        if before is None:
            self._begin(run)
            return
        cleared = jumped or _cleared(self._clears, before, run, self._rate)
        track = self._recording.received.get("", np.zeros(0, np.int16))
        place = _matched(track, self._rate, before, run, self._places, cleared=cleared)
        if place is not None and not self._restarts(place):
            self._owner = self._places.owner(place)
            self._places.add(run.offset, self._places.offset(place), self._owner)
        elif self._begins_response(before, run, cleared):
            self._begin(run)

    def _begin(self, run: Run) -> None:
        self._count += 1
        self._owner = f"response {self._count}"
        self._places.add(run.offset, 0, self._owner)

    def _restarts(self, place: int) -> bool:
        """Return whether a match is the beginning of a response: a server may say the same sentence twice."""
        return self._places.offset(place) < RESTART_S * self._rate

    def _begins_response(self, before: Run, run: Run, cleared: bool) -> bool:
        begin = run.at + int(np.argmax(self._heard[run.at : run.end]))
        quiet = run.at - before.end
        steps = [step for step in self._steps if agent_place(self._recording, step.first) <= begin]
        asked = next((step for step in reversed(steps) if step.means != "nothing"), None)
        if asked is None:
            return quiet >= RESUMES_S * self._rate
        if steps[-1].means == "nothing" and steps[-1].audible:
            return quiet >= (NEW_AFTER_S if cleared else RESUMES_S) * self._rate
        if asked.audible and begin < agent_place(self._recording, asked.last) + FASTEST_ANSWER_S * self._rate:
            return False
        return cleared or quiet >= NEW_AFTER_S * self._rate


def _cleared(clears: Sequence[int], before: Run, run: Run, rate: int) -> bool:
    """Return whether the loudspeaker was cleared between two runs."""
    return any(before.end - rate // 50 <= place <= run.at for place in clears)


def _matched(track: Pcm, rate: int, before: Run, run: Run, places: _Places, *, cleared: bool) -> int | None:
    """Return the place of earlier received sound that a run is the same as, behind a clear or a break."""
    if not cleared and run.at - before.end < MATCH_BREAK_S * rate:
        return None
    # The last sample played may itself have been sent again: what follows it lies behind its first copy.
    stopped = places.first_copy(before.offset + before.samples - 1) + 1
    sound = track[run.offset : run.offset + run.samples]
    heard = loud(sound, rate)
    lead = int(np.argmax(heard)) if heard.any() else len(sound)
    sound = sound[lead:]
    for length_s in MATCH_LENGTHS_S:
        length = round(length_s * rate)
        if len(sound) < length:
            continue
        back, same = (MATCH_NEAR_S, SAME_SHORT) if length_s <= MATCH_SHORT_S else (MATCH_BACK_S, SAME)
        begin = max(0, round(stopped + lead - back * rate))
        place = _found(track[begin : run.offset], sound[:length], stopped + lead - begin, same)
        if place is not None:
            return max(0, begin + place - lead)
    return None


def _found(area: Pcm, sound: Pcm, near: int, same: float) -> int | None:
    """Return where a sound occurs in an area; of equally good places the nearest to one."""
    if len(area) < len(sound):
        return None
    whole, part = area.astype(np.float64), sound.astype(np.float64)
    size = 1 << (len(whole) + len(part)).bit_length()
    spectrum = np.fft.rfft(whole, size) * np.conj(np.fft.rfft(part, size))
    product = np.fft.irfft(spectrum, size)[: len(whole) - len(part) + 1]
    sums = np.concatenate(([0.0], np.cumsum(whole**2)))
    energy = np.maximum(sums[len(part) :] - sums[: -len(part)], 1.0) * max(float(part @ part), 1.0)
    likeness = product / np.sqrt(energy)
    best = float(likeness.max())
    if best < same:
        return None
    places = np.flatnonzero(likeness >= best - 0.002)
    return int(places[np.argmin(np.abs(places - near))])
