"""A clip for LFM2-Audio's encoder while it is spoken: samples in as they come, rows for the backbone out.

Two ways, chosen for a stream:

- whole (`window` is None): the rows of the whole clip, exactly as of a recording. Only the spectrogram is computed
  while the person speaks: a layer's rows depend on the whole clip, and so does the scaling of the spectrogram. All rows
  come at the end.
- windows: the rows of a chunk come as soon as `after` more rows have been heard: the stated look-ahead. They see these,
  each other and `before` rows. A window's spectrogram is scaled over the clip up to the window's end. At the end of the
  clip one window is left, however long the clip is. A clip shorter than the first window has the rows of the whole way;
  a longer one has other rows, and the model was trained on whole clips.

Rows depend neither on how samples were cut into pieces nor on other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.audio.mel import HOP
from voxlane.engine.audio.nemo_mel import NemoMel
from voxlane.engine.models.lfm2_audio.conformer import Conformer
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig


@dataclass(frozen=True, slots=True)
class EncoderWindow:
    """What one call of the encoder sees, in rows of 80 ms."""

    before: int  # rows before a chunk
    chunk: int  # rows that come out together
    after: int  # the look-ahead

    def __post_init__(self) -> None:
        if self.before < 0 or self.chunk < 1 or self.after < 0:
            raise ValueError(f"a window of {self.before}, {self.chunk} and {self.after} rows is none")


@dataclass(frozen=True, slots=True)
class MelWindow:
    """A piece of spectrogram to be encoded, and which of its rows are wanted."""

    mel: Tensor  # [frames, bins]
    skip: int  # rows before the wanted ones
    rows: int


class ClipStream:
    """One clip. Ask `due` until it returns None, after each piece of sound and after the end."""

    def __init__(self, config: ConformerConfig, window: EncoderWindow | None = None) -> None:
        self._config = config
        self._window = window
        self._mel = NemoMel(config.bins)
        self._row_frames = 1 << config.halvings
        self._ended = False
        self.rows = 0  # that were handed out

    @property
    def samples(self) -> int:
        """Return how many samples have arrived."""
        return self._mel.samples

    def append(self, samples: Tensor) -> None:
        """Take the next samples [n] of 16 kHz sound, -1 to 1."""
        if self._ended:
            raise ValueError("the clip has ended")
        most = self._config.max_states * self._row_frames * HOP - HOP
        if self.samples + len(samples) > most:
            raise ValueError(f"a clip of more than {most} samples")
        self._mel.append(samples)

    def end(self) -> None:
        """Take the clip as complete."""
        self._ended = True

    def due(self) -> MelWindow | None:
        """Return the next window that can be encoded, None if there is none; its rows count as handed out."""
        window = self._chunk()
        if window is None and self._ended:
            window = self._rest()
        if window is not None:
            self.rows += window.rows
        return window

    def pause(self) -> MelWindow | None:
        """Return what would be left to encode if the clip ended here, None if nothing; the clip may go on.

        A turn that then does end here has its rows already. Chunks that are due come first.
        """
        if self._chunk() is not None:
            raise ValueError("a chunk is due")
        return self._rest()

    def _chunk(self) -> MelWindow | None:
        window = self._window
        if window is None:
            return None
        end = (self.rows + window.chunk + window.after) * self._row_frames
        if end > self._mel.complete:
            return None
        skip = min(window.before, self.rows)
        return MelWindow(self._mel.scaled((self.rows - skip) * self._row_frames, end), skip, window.chunk)

    def _rest(self) -> MelWindow | None:
        left = self._config.states(self.samples) - self.rows
        if not left:
            return None
        skip = self.rows if self._window is None else min(self._window.before, self.rows)
        return MelWindow(self._mel.finish()[(self.rows - skip) * self._row_frames :], skip, left)


def encode_due(encoder: Conformer, streams: Sequence[ClipStream]) -> list[Tensor]:
    """Return the new rows [n, output_size] of each stream, of all its windows that are due."""
    found: list[list[Tensor]] = [[] for _ in streams]
    while due := [(index, window) for index, stream in enumerate(streams) if (window := stream.due()) is not None]:
        encoded = encoder.encode([window.mel for _, window in due])
        for (index, window), rows in zip(due, encoded, strict=True):
            found[index].append(rows[window.skip : window.skip + window.rows])
    nothing = torch.empty((0, encoder.output_size), dtype=encoder.dtype, device=encoder.device)
    return [torch.cat([nothing, *parts]) for parts in found]
