"""The vocoder's steps in Triton, interpreted on the CPU: against their references, which are held to hibari's code.

Sequences of three frames and of one, with gaps between them.
"""

from __future__ import annotations

import pytest
import torch

from voxlane.engine.kernels.vocoder import vocoder
from voxlane.engine.kernels.vocoder import vocoder_triton as kernels

FRAMES, HOP, TIMES, BINS, RATE = 9, 20, 4, 41, 2_000
STARTS, STOPS = (1, 1, 1, 1, 1, 6, 6, 6, 6), (4, 4, 4, 4, 4, 7, 7, 7, 7)


@pytest.fixture
def places() -> vocoder.Places:
    start, stop = torch.tensor(STARTS, dtype=torch.int32), torch.tensor(STOPS, dtype=torch.int32)
    index = torch.arange(FRAMES)
    return vocoder.Places(((index >= start) & (index < stop)).float(), start, stop)


def test_pulses(places: vocoder.Places, random: torch.Generator) -> None:
    pitch_hz = 300 * torch.rand(FRAMES, generator=random) - 20
    share = ((torch.arange(HOP) + 0.5) / HOP - 0.5) % 1.0
    hertz = kernels.pitch_curve(pitch_hz, places, share)
    torch.testing.assert_close(hertz, vocoder.pitch_curve(pitch_hz, places, share))
    turns = torch.cumsum(hertz.flatten(), 0, dtype=torch.float64)
    window = torch.rand(TIMES * HOP, generator=random)
    got = kernels.pulse_windows(hertz, turns, places, window, RATE)
    expected = vocoder.pulse_windows(hertz, turns, places, window, RATE)
    inside = places.inside != 0
    torch.testing.assert_close(got[inside], expected[inside], rtol=1e-4, atol=1e-4)
    assert expected[inside].abs().max() > 10  # a pulse is the sum of all its harmonics


def test_mix(random: torch.Generator) -> None:
    source, table = (torch.randn((n, BINS), generator=random, dtype=torch.complex64) for n in (FRAMES, 5))
    spectra = 4 * torch.randn((FRAMES, 5 * BINS), generator=random)
    rows = torch.randint(0, 5, (FRAMES,), generator=random, dtype=torch.int32)
    expected = vocoder.mix(source, spectra, table, rows)
    assert not expected.imag[:, [0, -1]].any()
    torch.testing.assert_close(kernels.mix(source, spectra, table, rows), expected, rtol=1e-4, atol=1e-3)


def test_overlap(places: vocoder.Places, random: torch.Generator) -> None:
    windows = torch.randn((FRAMES, TIMES * HOP), generator=random)
    window = torch.rand(TIMES * HOP, generator=random) + 0.1
    expected = vocoder.overlap(windows, places, window, HOP)
    got = kernels.overlap(torch.where(places.inside[:, None] != 0, windows, torch.inf), places, window, HOP)
    torch.testing.assert_close(got, expected)
    assert not got[0].any()


def test_what_does_not_fit_is_refused(places: vocoder.Places) -> None:
    with pytest.raises(ValueError, match="do not match 3 frames"):
        vocoder.overlap(torch.ones(3, 8), places, torch.ones(8), 2)
    with pytest.raises(ValueError, match="do not overlap in hops of 3"):
        vocoder.overlap(torch.ones(FRAMES, 8), places, torch.ones(8), 3)
    with pytest.raises(ValueError, match="not for 2 × 4"):
        vocoder.mix(torch.ones(2, 4), torch.ones(2, 19), torch.ones(3, 4), torch.ones(2))
    with pytest.raises(ValueError, match="are not the sum"):
        vocoder.pulse_windows(torch.ones(FRAMES, 2), torch.ones(18), places, torch.ones(8), RATE)
