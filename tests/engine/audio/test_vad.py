"""Many streams listened to at once hear what each hears alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from examples import sweep
from speech_simulation import PretendListeningModel

from voxlane.codecs.silero import FRAME_SAMPLES
from voxlane.codecs.voicing import Voicing
from voxlane.engine.api import LISTEN_RATE, Append, Submit
from voxlane.engine.audio.vad import VadStream
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.runners.cuda.vad import DeviceVad

HOST = torch.device("cpu")


def sounds(count: int) -> list[np.ndarray]:
    source = np.random.default_rng(5)
    seconds = np.arange(20_000) / 16_000
    return [
        (source.normal(0, 0.02, len(seconds)) + 0.3 * np.sin(2 * np.pi * (90 + 30 * n) * seconds * (1 + seconds)))
        .astype(np.float32)
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("count", sweep([7, 1, 3, 40]))
def test_streams_together_hear_what_each_hears_alone(count: int) -> None:
    """In pieces of any size, said before or not, by streams that come and are asked in any order."""
    source, together = random.Random(count), DeviceVad(HOST)
    waiting = {n: (sound, Voicing()(sound)) for n, sound in enumerate(sounds(count))}
    streams: dict[int, VadStream] = {}
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
    together = DeviceVad(HOST)
    gone, stays = together.open(), together.open()
    for ear in (gone, stays):
        ear.expect(np.zeros(1024, np.float32))
    gone.close()
    together.attend()
    assert together._batch == [(stays, 2)]
    assert len(stays(np.zeros(1024, np.float32))) == 2


def test_who_asks_no_more_than_is_ready_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of several streams go together, and each stream's own one after the other."""
    now = [1.0]
    together = DeviceVad(HOST, clock=lambda: now[0])
    monkeypatch.setattr(together, "listen", None)  # the only call that waits
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


def test_a_stream_wants_no_work_before_its_answer_is_there_and_the_engine_does_not_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred streams that wait for a device would be asked for nothing, again and again, and the device too."""
    now, asked, through = [1.0], [0], [False]
    together = DeviceVad(HOST, clock=lambda: now[0])

    def heard() -> bool:
        asked[0] += 1
        return through[0]

    monkeypatch.setattr(together, "_heard", heard)
    monkeypatch.setattr(together, "listen", None)  # the only call that waits
    factory = TranscribeJobFactory(PretendListeningModel(), BlockPool(8, 4), together.open)
    jobs = [factory.open(Submit(str(number), "asr"), now[0]) for number in range(50)]
    for job in jobs:
        job.append(Append(job.submit.request_id, audio=bytes(2 * (FRAME_SAMPLES - 1))), now[0])
    assert not any(job.unfinished for job in jobs)
    for job in jobs:
        job.append(Append(job.submit.request_id, audio=bytes(4)), now[0])
    assert not any(job.wants_work for job in jobs)
    assert all(job.unfinished for job in jobs)
    now[0] += 1
    assert not any(job.wants_work for job in jobs)
    assert asked[0] == 1
    now[0] += 1
    through[0] = True
    assert all(job.wants_work for job in jobs)
    for job in jobs:
        job.work(now[0])
        job.end_input(now[0])
    now[0] += 1
    while any(job.unfinished for job in jobs):  # one sample is left, less than a frame
        assert all(job.work(now[0]).end == "eos" for job in jobs)
    assert {job.stats(now[0]).audio_s for job in jobs} == {(FRAME_SAMPLES + 1) / LISTEN_RATE}
