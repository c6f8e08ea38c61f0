"""LFM2-Audio's encoder while a person speaks: the rows of the whole clip, or those of windows with a look-ahead."""

from __future__ import annotations

import pytest
import torch
from examples import examples, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from lfm2_audio_parts import ENCODER, SOUND, small_encoder
from torch import Tensor

from voxlane.engine.audio.nemo_mel import nemo_mel
from voxlane.engine.models.lfm2_audio.clip_stream import ClipStream, EncoderWindow, encode_due
from voxlane.engine.models.lfm2_audio.conformer import Conformer
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.settings import Settings

CONFIG = ConformerConfig.read(Settings(ENCODER), Settings(SOUND))
ROW = 8 * 160  # samples
WINDOW = EncoderWindow(before=3, chunk=2, after=1)


@pytest.fixture(scope="module")
def encoder() -> Conformer:
    return small_encoder()


def sound(samples: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(samples + seed)) * 0.1


def spoken(encoder: Conformer, clip: Tensor, window: EncoderWindow | None) -> Tensor:
    """Return all rows of a clip that arrives at once."""
    stream = ClipStream(CONFIG, window)
    stream.append(clip)
    stream.end()
    return encode_due(encoder, [stream])[0]


def by_hand(encoder: Conformer, clip: Tensor, window: EncoderWindow) -> Tensor:
    """Return the rows of a clip as the module's text defines them."""
    found: list[Tensor] = []
    states, row = CONFIG.states(len(clip)), 0
    while True:
        first, last = max(0, row - window.before), row + window.chunk + window.after
        # A window's frames end 20 ms before the sound that they need.
        heard = clip[: last * ROW - 160 + 200]
        whole = len(heard) < last * ROW + 40 or last > states
        mel = nemo_mel(clip, 16) if whole else nemo_mel(heard, 16)[:-1]
        rows = encoder.encode([mel[first * 8 :]])[0][row - first :]
        found.append(rows if whole else rows[: window.chunk])
        if whole:
            return torch.cat(found)
        row += window.chunk


@pytest.mark.parametrize("samples", [0, 100, ROW, 7 * ROW + 3, 20 * ROW])
def test_the_whole_clip_has_the_rows_of_a_recording(encoder: Conformer, samples: int) -> None:
    clip = sound(samples)
    rows = spoken(encoder, clip, None)
    assert torch.equal(rows, encoder.encode([nemo_mel(clip, 16)])[0])
    assert len(rows) == CONFIG.states(samples)


@pytest.mark.parametrize("samples", [0, ROW, 3 * ROW - 1, 3 * ROW + 39, 3 * ROW + 40, 5 * ROW + 40, 12 * ROW + 77])
@pytest.mark.parametrize("window", sweep([WINDOW, EncoderWindow(0, 1, 0), EncoderWindow(99, 4, 2)], here=2))
def test_windows_see_what_they_say(encoder: Conformer, samples: int, window: EncoderWindow) -> None:
    clip = sound(samples)
    rows = spoken(encoder, clip, window)
    assert len(rows) == CONFIG.states(samples)
    torch.testing.assert_close(rows, by_hand(encoder, clip, window), rtol=0, atol=2e-5)


def test_a_clip_shorter_than_a_window_has_the_rows_of_the_whole_way(encoder: Conformer) -> None:
    clip = sound(5 * ROW)
    assert torch.equal(spoken(encoder, clip, EncoderWindow(0, 4, 3)), spoken(encoder, clip, None))


def test_a_row_comes_when_its_look_ahead_was_heard(encoder: Conformer) -> None:
    stream, clip = ClipStream(CONFIG, WINDOW), sound(10 * ROW)
    needed = 3 * ROW + 40  # a frame sees 12.5 ms beyond its middle
    stream.append(clip[: needed - 1])
    assert stream.due() is None
    stream.append(clip[needed - 1 : needed])
    window = stream.due()
    assert window is not None
    assert (window.skip, window.rows, len(window.mel)) == (0, 2, 24)
    assert stream.due() is None


def test_what_is_left_at_the_end_does_not_grow_with_the_clip(encoder: Conformer) -> None:
    for rows in (20, 200):
        stream = ClipStream(CONFIG, WINDOW)
        stream.append(sound(rows * ROW))
        encode_due(encoder, [stream])
        stream.end()
        last = stream.due()
        assert last is not None
        assert len(last.mel) <= 8 * (WINDOW.before + WINDOW.chunk + WINDOW.after)
        assert stream.due() is None


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_rows_depend_neither_on_pieces_nor_on_other_streams(encoder: Conformer, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9 * ROW), min_size=1, max_size=3), label="samples")
    windows = [data.draw(st.sampled_from([None, WINDOW]), label="window") for _ in lengths]
    clips = [sound(length, seed) for seed, length in enumerate(lengths)]
    streams = [ClipStream(CONFIG, window) for window in windows]
    made: list[list[Tensor]] = [[] for _ in clips]
    while any(stream.samples < len(clip) for stream, clip in zip(streams, clips, strict=True)):
        for stream, clip in zip(streams, clips, strict=True):
            piece = data.draw(st.integers(0, 3 * ROW), label="piece")
            stream.append(clip[stream.samples : stream.samples + piece])
        for parts, rows in zip(made, encode_due(encoder, streams), strict=True):
            parts.append(rows)
    for stream in streams:
        stream.end()
    for parts, rows in zip(made, encode_due(encoder, streams), strict=True):
        parts.append(rows)
    for parts, clip, window in zip(made, clips, windows, strict=True):
        assert torch.equal(torch.cat(parts), spoken(encoder, clip, window))


@pytest.mark.parametrize("window", [None, WINDOW])
def test_a_pause_may_be_the_end_or_not(encoder: Conformer, window: EncoderWindow | None) -> None:
    clip = sound(9 * ROW + 500)
    stream = ClipStream(CONFIG, window)
    stream.append(clip[: 7 * ROW])
    (before,) = encode_due(encoder, [stream])
    rest = stream.pause()
    assert rest is not None
    rows = encoder.encode([rest.mel])[0][rest.skip :]
    assert len(rows) == rest.rows
    assert torch.equal(torch.cat((before, rows)), spoken(encoder, clip[: 7 * ROW], window))
    stream.append(clip[7 * ROW :])
    stream.end()
    (after,) = encode_due(encoder, [stream])
    assert torch.equal(torch.cat((before, after)), spoken(encoder, clip, window))
    assert stream.pause() is None


def test_a_chunk_that_is_due_comes_before_a_pause() -> None:
    stream = ClipStream(CONFIG, WINDOW)
    stream.append(sound(4 * ROW))
    with pytest.raises(ValueError, match="a chunk is due"):
        stream.pause()


def test_nothing_follows_the_end() -> None:
    stream = ClipStream(CONFIG)
    stream.end()
    with pytest.raises(ValueError, match="has ended"):
        stream.append(sound(3))


def test_a_clip_that_is_too_long_is_refused() -> None:
    stream = ClipStream(CONFIG)
    most = CONFIG.max_states * ROW - 160
    stream.append(torch.zeros(most))
    with pytest.raises(ValueError, match=f"more than {most} samples"):
        stream.append(torch.zeros(1))


@pytest.mark.parametrize("sizes", [(-1, 1, 0), (0, 0, 0), (0, 1, -1)])
def test_a_window_has_rows(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is none"):
        EncoderWindow(*sizes)
