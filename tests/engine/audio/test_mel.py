"""Mel filter banks from torchaudio against those of transformers, to the bit."""

from __future__ import annotations

import threading

import pytest
import torch
from lazily import transformers

from voxlane.engine.audio.mel import mel_filters


@pytest.mark.parametrize(("bins", "window", "rate"), [(80, 400, 16_000), (128, 400, 16_000), (128, 1_024, 24_000)])
def test_filters_are_those_of_the_reference(bins: int, window: int, rate: int) -> None:
    bank = transformers.audio_utils.mel_filter_bank(
        window // 2 + 1, bins, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    assert torch.equal(mel_filters(bins, window, rate), torch.from_numpy(bank).T.to(torch.float32))


def test_double_precision_stays_in_the_filters_and_in_their_thread() -> None:
    seen: set[torch.dtype] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.add(torch.linspace(0, 1, 3).dtype)

    thread = threading.Thread(target=watch)
    thread.start()
    for bins in range(20, 40):
        mel_filters.__wrapped__(bins)
    over.set()
    thread.join()
    assert seen == {torch.float32}
    assert torch.linspace(0, 1, 3).dtype is torch.float32
