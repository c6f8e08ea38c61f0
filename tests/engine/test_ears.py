"""Many streams listened to at once hear what each hears alone."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch

from voxlane.codecs.voicing import Voicing
from voxlane.engine.cuda.ears import DeviceEars
from voxlane.engine.ears import Ear

HOST = torch.device("cpu")


def sounds(count: int) -> list[np.ndarray]:
    source = np.random.default_rng(5)
    seconds = np.arange(20_000) / 16_000
    return [
        (source.normal(0, 0.02, len(seconds)) + 0.3 * np.sin(2 * np.pi * (90 + 30 * n) * seconds * (1 + seconds)))
        .astype(np.float32)
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 7, 40])
def test_streams_together_hear_what_each_hears_alone(count: int) -> None:
    """In pieces of any size, said before or not, by streams that come and are asked in any order."""
    source, together = random.Random(count), DeviceEars(HOST)
    waiting = {n: (sound, Voicing()(sound)) for n, sound in enumerate(sounds(count))}
    streams: dict[int, Ear] = {}
    found: dict[int, list[float]] = {n: [] for n in waiting}
    at = dict.fromkeys(waiting, 0)
    said = dict.fromkeys(waiting, 0)
    while live := [n for n in waiting if at[n] < len(waiting[n][0])]:
        n = source.choice(live)
        ear = streams.setdefault(n, together.open())
        sound = waiting[n][0]
        if source.random() < 0.7:
            more = source.randrange(1, 3000)
            ear.expect(sound[said[n] : said[n] + more])
            said[n] = min(said[n] + more, len(sound))
        size = source.randrange(1, 2500)
        found[n] += ear(sound[at[n] : at[n] + size])
        at[n] = min(at[n] + size, len(sound))
        said[n] = max(said[n], at[n])
    for n, (_, wanted) in waiting.items():
        assert len(found[n]) == 39
        assert found[n] == pytest.approx(wanted, abs=1e-5)


def test_a_stream_that_is_gone_is_not_listened_to() -> None:
    together = DeviceEars(HOST)
    gone, stays = together.open(), together.open()
    for ear in (gone, stays):
        ear.expect(np.zeros(1024, np.float32))
    del gone, ear
    gc.collect()
    together.attend()
    assert together._batch == [(stays, 2)]
    assert len(stays(np.zeros(1024, np.float32))) == 2


def test_who_asks_no_more_than_is_ready_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of several streams go together, and each stream's own one after the other."""
    now = [1.0]
    together = DeviceEars(HOST, clock=lambda: now[0])
    monkeypatch.setattr(together, "listen", None)  # where somebody would wait
    wanted = [Voicing()(sound) for sound in sounds(3)]
    streams = [together.open() for _ in wanted]
    found: list[list[float]] = [[] for _ in wanted]
    at = [0] * len(wanted)
    for ear, sound in zip(streams, sounds(3), strict=True):
        ear.expect(sound)
    for _ in range(100):
        now[0] += 0.01
        for n, (ear, sound) in enumerate(zip(streams, sounds(3), strict=True)):
            ready = ear.ready_samples
            found[n] += ear(sound[at[n] : at[n] + ready])
            at[n] += ready
    assert at == [20_000] * 3
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
