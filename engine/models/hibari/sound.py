"""hibari's signal processing in torch: spectra and pitch in, samples out, several clauses on one line.

The same sums as hibari.dsp, which does one clause at a time in numpy: a pulse train at the pitch, its spectrum turned
and scaled, plus noise, plus a part of free phase, then overlapping windows added up.
"""

from __future__ import annotations

import hibari.dsp
import torch
from torch import Tensor

from voxlane.engine.kernels.vocoder.vocoder import mix, overlap, pitch_curve, pulse_windows
from voxlane.engine.models.hibari.network import Frames

N_FFT, HOP, RATE = hibari.dsp.N_FFT, hibari.dsp.HOP, hibari.dsp.SR
LAG = N_FFT // HOP // 2
"""Hops by which a clause's samples come after its frames on the line: a frame's middle is its moment."""


class Sound:
    """Turns a line's frames into samples; holds the windows and the noise on its device."""

    def __init__(self, noise: Tensor, device: torch.device) -> None:
        share, _ = hibari.dsp._interp_w()
        self._window, self._source_window, self._share = (
            torch.from_numpy(part).to(device) for part in (hibari.dsp.WIN, hibari.dsp.WIN_SRC, share)
        )
        self._noise = noise.to(device)  # [rows, bins] complex

    def __call__(self, frames: Frames) -> Tensor:
        """Return [frames, HOP]: the samples of a clause begin LAG hops after its first frame."""
        places = frames.places
        hertz = pitch_curve(frames.pitch_hz, places, self._share)
        turns = torch.cumsum(hertz.flatten(), 0, dtype=torch.float64)
        source = torch.fft.rfft(pulse_windows(hertz, turns, places, self._source_window, RATE))
        spectrum = mix(source, frames.spectra, self._noise, frames.noise % len(self._noise))
        return overlap(torch.fft.irfft(spectrum, n=N_FFT), places, self._window, HOP)
