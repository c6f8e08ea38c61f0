"""What every reply of a codec language model has in common: it needs a row of the codec's state to speak."""

from __future__ import annotations

from voxlane.engine.api import Submit
from voxlane.engine.jobs.speech import SpeechJob
from voxlane.engine.memory.state_rows import IDLE, StateRows
from voxlane.engine.runners.codec_streams import CodecStream
from voxlane.engine.schedule.request import Request


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
