"""What every reply of a codec language model has in common: it needs a row of the codec's state to speak."""

from __future__ import annotations

from voxlane.engine.api import Submit
from voxlane.engine.jobs.speech import SpeechJob
from voxlane.engine.memory.state_rows import IDLE, StateRows
from voxlane.engine.runners.codec_streams import MAX_CHUNK, CodecStream
from voxlane.engine.schedule.request import Request

LOW_S, AHEAD_S = 1.36, 2.0
"""Seconds of audio that the listener has. From LOW_S on the stream is scheduled last; up to AHEAD_S it joins steps that
other streams need anyway. So few steps make the frames of many streams, and the device is free between them."""


class CodecSpeechJob(SpeechJob):
    """One reply, and its claim to a state row (memory/state_rows.py)."""

    _request: Request
    _stream: CodecStream

    def __init__(self, submit: Submit, now: float, sample_rate: int, slots: StateRows) -> None:
        super().__init__(submit, now, sample_rate)
        self._slots = slots
        self._slot = -1

    def close(self) -> None:
        """Give the state row back."""
        self._slots.leave(self)
        if self._slot >= 0:
            self._slots.release(self._slot)

    def refresh(self, now: float) -> None:
        """Take a state row if one can be had, and tell the scheduler what there is to compute."""
        raise NotImplementedError

    def _take_row(self) -> None:
        """Wait for a state row, and take one if it can be had."""
        self._slots.wait(self)
        if self._slots.serves(self):
            self._slot = self._stream.slot = self._slots.take(self)

    def _set_due(self, now: float, frame_s: float) -> float:
        """Tell the scheduler when the next frame is wanted; return how many seconds of audio the listener has."""
        request, ahead_s = self._request, self._heard_until_s - now
        request.due_s = self._heard_until_s if self._first_s else request.due_s
        # A starved stream goes first only until its listener has audio: a reply may last minutes.
        request.starved = request.starved and ahead_s < MAX_CHUNK * frame_s
        request.not_needed_before_s = self._heard_until_s - LOW_S if ahead_s >= LOW_S else 0.0
        request.joins_from_s = self._heard_until_s - AHEAD_S
        return ahead_s

    @property
    def rank(self) -> int:
        """Its rank among the streams that wait for a state row."""
        return self.submit.priority

    @property
    def waits(self) -> bool:
        """Whether it needs a state row now."""
        return self._slot < 0 < self._request.pending and not self.paused

    @property
    def engaged(self) -> bool:
        """Whether a step under way makes its next frame."""
        return self._stream.utterance.frame_due(self._request.computed)

    @property
    def claim(self) -> tuple[int, float]:
        """Its claim to its state row: lower the longer it is idle, or the more audio its listener has."""
        if self.paused or self._request.waiting_for_input:
            return IDLE, self._request.progress_s
        return self.rank, -self._heard_until_s

    def give_up(self) -> int:
        """Give its state row up for another stream; with its next row it has to be caught up."""
        slot, self._slot, self._stream.slot, self._stream.stale = self._slot, -1, -1, True
        self._request.waiting_for_input = True
        if self._request.pending > 0:
            self._slots.wait(self)
        return slot
