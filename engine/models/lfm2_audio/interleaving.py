"""In which order LFM2-Audio writes text and sound: each step of the backbone makes a token or a frame.

In a conversation text and sound take turns by count, until the text is complete and the rest is sound. When it reads
aloud, the model itself changes from one to the other. What it writes down has no sound. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.models.lfm2_audio.config import AUDIO_START, CODES, END_OF_TURN, TEXT_END


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a turn stands. `sound` tells whether the next step makes a frame; `ended` that there is no next step."""

    text_run: int  # tokens of text in turn with
    sound_run: int  # frames of sound; 0: the model itself decides (sequential), or with a run of text there is none
    left: int  # steps until they change
    sound: bool = False
    text_complete: bool = False
    ended: bool = False

    @classmethod
    def interleaved(cls, text_run: int, sound_run: int) -> Turn:
        """Return the beginning of a conversation's turn."""
        return cls(text_run, sound_run, text_run)

    @classmethod
    def sequential(cls) -> Turn:
        """Return the beginning of a text that is read aloud."""
        return cls(0, 0, 0)

    @classmethod
    def written(cls) -> Turn:
        """Return the beginning of a recognition, which has no sound."""
        return cls(1, 0, 0)

    def after_token(self, token: int) -> Turn:
        """Return where the turn stands after a token of text."""
        assert not self.sound, "a frame is due"
        if token == END_OF_TURN:
            return self._with(ended=True)
        if not self.sound_run:
            return self._with(sound=token == AUDIO_START and not self.text_run)
        complete = self.text_complete or token == TEXT_END
        if complete or self.left == 1:
            return self._with(sound=True, left=self.sound_run, text_complete=complete)
        return self._with(left=self.left - 1)

    def after_frame(self, first_code: int) -> Turn:
        """Return where the turn stands after a frame of sound; a first code of CODES ends the sound."""
        assert self.sound, "a token is due"
        left = self.left - 1
        if self.sound_run and not left and not self.text_complete:
            return self._with(sound=False, left=self.text_run)
        return self._with(sound=first_code != CODES, left=left)

    def _with(
        self,
        *,
        left: int | None = None,
        sound: bool | None = None,
        text_complete: bool | None = None,
        ended: bool = False,
    ) -> Turn:
        return Turn(
            self.text_run,
            self.sound_run,
            self.left if left is None else left,
            self.sound if sound is None else sound,
            self.text_complete if text_complete is None else text_complete,
            ended,
        )
