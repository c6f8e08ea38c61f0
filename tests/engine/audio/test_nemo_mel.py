"""NeMo's spectrogram against transformers' feature extractor, and however the sound is cut into pieces."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.audio.mel import HOP, SAMPLE_RATE, WINDOW, mel_filters
from voxlane.engine.audio.nemo_mel import FFT, NemoMel, frames, nemo_mel

TOLERANCE = 2e-4
"""Of numbers of the size of 3. Fourier transforms round in float32, which matters where a band is far weaker than the
loudest: under a loud tone alone both results differ by 3e-4 from one in float64."""


def exact(sound: torch.Tensor, bins: int) -> torch.Tensor:
    """Return the spectrogram in float64, but for its last row."""
    loud = torch.cat((sound[:1], sound[1:] - 0.97 * sound[:-1].double()))
    pieces = F.pad(loud, (WINDOW // 2, WINDOW)).unfold(0, WINDOW, HOP)[: len(sound) // HOP]
    spectrum = torch.fft.rfft(pieces * torch.hann_window(WINDOW, periodic=False, dtype=torch.float64), n=FFT)
    mel = (spectrum.abs().square() @ mel_filters(bins, FFT, SAMPLE_RATE).T.double() + 2.0**-24).log()
    return (mel - mel.mean(dim=0)) / (mel.std(dim=0) + 1e-5)


def clip(samples: int) -> torch.Tensor:
    """Return a chirp in noise that grows louder."""
    time = torch.arange(samples) / 16_000
    noise = torch.randn(samples, generator=torch.Generator().manual_seed(samples))
    return (torch.sin(600 * time * (1 + 4 * time)) + 0.3 * noise) * (0.1 + time) / 4


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("samples", [480, 1600, 16_000, 16_039, 16_041, 16_159, 40_123])
def test_it_is_transformers(samples: int, bins: int) -> None:
    import transformers

    sound = clip(samples)
    extract = transformers.ParakeetFeatureExtractor(feature_size=bins)
    given = extract(sound.numpy(), sampling_rate=16_000, return_tensors="pt")
    rows = nemo_mel(sound, bins)
    assert len(rows) == frames(samples) == int(given.attention_mask.sum()) + 1
    assert not rows[-1].any()
    # Each is that far from the exact one at most: of two that round, one may be too large and the other too small.
    for found in (rows, given.input_features[0]):
        torch.testing.assert_close(found[:-1].double(), exact(sound, bins), rtol=0, atol=TOLERANCE)


@settings(max_examples=examples(40))
@given(st.integers(0, 9000), st.data())
def test_any_cut_has_the_same_bits(samples: int, data: st.DataObject) -> None:
    sound, stream = clip(samples), NemoMel(80)
    while stream.samples < samples:
        piece = data.draw(st.integers(0, min(3000, samples - stream.samples)), label="piece")
        stream.append(sound[stream.samples : stream.samples + piece])
        if data.draw(st.booleans(), label="asked between"):
            assert torch.equal(stream.finish(), nemo_mel(sound[: stream.samples], 80))
    assert torch.equal(stream.finish(), nemo_mel(sound, 80))


def test_a_clip_without_a_frame_is_one_row_of_zeros() -> None:
    assert torch.equal(nemo_mel(torch.ones(HOP - 1)), torch.zeros(1, 128))


def test_samples_have_one_dimension() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        nemo_mel(torch.zeros(2, 400))
