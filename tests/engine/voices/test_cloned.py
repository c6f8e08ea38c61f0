"""Voices from recordings: their contents and their number; no step waits while a voice is made."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from noise_talker import GROUPS, TALKER
from simulation import Simulation, expected_text
from torch import Tensor

from voxlane.engine.api import (
    CLIP_RATE,
    MAX_PROFILE_BYTES,
    Append,
    Cancel,
    CloneParams,
    EndInput,
    Finished,
    ForgetVoice,
    FromEngine,
    KeepVoice,
    Refused,
    SamplingParams,
    Submit,
    VoiceMade,
)
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.jobs.clone_voice import MAX_CLIPS, NICENESS, CloneVoiceJobFactory, _give_way
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig
from voxlane.engine.models.qwen3_tts.encoder import Qwen3TTSEncoder, read_weights
from voxlane.engine.models.qwen3_tts.encoder_config import EncoderConfig
from voxlane.engine.models.qwen3_tts.speaker import SpeakerEncoder
from voxlane.engine.voices.cloned import Abandoned, ClonedVoice, Cloner, ProfileError, Voices

SPEAKER = {
    "enc_dim": 48, "enc_channels": [16, 16, 16], "enc_kernel_sizes": [5, 3, 1], "enc_dilations": [1, 2, 1],
    "enc_attention_channels": 8, "enc_res2net_scale": 4, "enc_se_channels": 8,
}  # fmt: skip
ENCODER: dict[str, object] = {
    "encoder_config": {
        "codebook_dim": 8, "codebook_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
        "num_filters": 2, "num_hidden_layers": 1, "num_key_value_heads": 2,
        "vector_quantization_hidden_dimension": 8,
    },
}  # fmt: skip
BASE = Qwen3TTSConfig.from_dict({**TALKER, "tts_model_type": "base", "speaker_encoder_config": SPEAKER})
CPU = torch.device("cpu")
NOBODY = threading.Event()  # has given up


class Noise:
    """Tensors of no file."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(3)

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = 1.0 if name.endswith(("usage", "norm.weight")) else 0.3
        return torch.randn(shape, generator=self._random).abs() * size if size == 1 else self._plain(shape)

    def vector(self, name: str, size: int) -> Tensor:
        return self._plain((size,))

    def _plain(self, shape: tuple[int, ...]) -> Tensor:
        return 0.3 * torch.randn(shape, generator=self._random)


def tokenize(text: str, language: str) -> list[int]:
    assert language in ("auto", "english")
    return [ord(letter) for letter in text]


def make_cloner() -> Cloner:
    noise, config = Noise(), EncoderConfig.from_dict(ENCODER)
    assert BASE.speaker_encoder is not None
    speaker = SpeakerEncoder.read(noise, BASE.speaker_encoder, "")  # type: ignore[arg-type]
    return Cloner(BASE, speaker, Qwen3TTSEncoder(config, read_weights(noise, config)), tokenize)


def clip(seconds: float, seed: int = 0) -> bytes:
    samples = np.random.default_rng(seed).normal(0, 3000, round(seconds * CLIP_RATE))
    return samples.astype("<i2").tobytes()


@pytest.fixture(scope="module")
def cloner() -> Cloner:
    return make_cloner()


@pytest.fixture(scope="module")
def voice(cloner: Cloner) -> ClonedVoice:
    return cloner.make(clip(1.5), "Hello.", "english", NOBODY)


# ---- what a voice is


def test_a_voice_has_the_manner_of_its_clip_only_if_its_words_are_known(cloner: Cloner, voice: ClonedVoice) -> None:
    bare = cloner.make(clip(1.5), "  ", "", NOBODY)
    assert torch.equal(bare.clone.embedding, voice.clone.embedding)
    assert (bare.clone.text, bare.clone.frames, bare.language) == ((), (), "auto")
    assert voice.clone.text == tuple(map(ord, "Hello."))
    assert len(voice.clone.frames) == 19  # 1.5 s at 12.5 a second, the last one begun
    assert all(len(frame) == GROUPS for frame in voice.clone.frames)
    assert not torch.equal(cloner.make(clip(1.5, 1), "", "", NOBODY).clone.embedding, voice.clone.embedding)


def test_a_profile_brings_the_voice_back_and_nothing_of_the_clip(voice: ClonedVoice) -> None:
    profile = voice.profile
    assert len(profile) < 48 * 4 + 19 * GROUPS * 2 + 100
    voices = Voices(BASE, CPU)
    voices.keep("Ada", profile)
    found = voices.find("Ada")
    assert found is not None
    assert torch.equal(found.clone.embedding, voice.clone.embedding)
    assert (found.clone.text, found.clone.frames) == (voice.clone.text, voice.clone.frames)
    assert (found.language, found.digest) == ("english", voice.digest)
    assert found.profile == profile
    assert voices.alike(voice.digest) is found


def test_what_is_no_voice_of_this_checkpoint_is_refused(voice: ClonedVoice) -> None:
    voices = Voices(BASE, CPU)
    wide = ClonedVoice(type(voice.clone)(torch.zeros(49)), "auto", b"")
    foreign = ClonedVoice(type(voice.clone)(torch.zeros(48), (1,), ((99,) * GROUPS,)), "auto", b"")
    klingon = ClonedVoice(voice.clone, "klingon", b"")
    broken = (b"", b"\xc1", b"\x90", voice.profile[:-1], voice.profile + b"x", bytes(70_000))
    for profile in (*broken, wide.profile, foreign.profile, klingon.profile):
        with pytest.raises(ProfileError):
            voices.keep("Ada", profile)
    assert voices.names == ()


def test_the_one_that_nobody_asked_for_goes_first_and_the_oldest_is_the_default(voice: ClonedVoice) -> None:
    voices = Voices(BASE, CPU, most=3)
    assert voices.find("") is None
    for name in ("a", "b", "c"):
        voices.keep(name, voice.profile)
    oldest = voices.find("a")
    assert voices.find("") is oldest
    voices.keep("d", voice.profile)
    assert voices.names == ("a", "c", "d")
    voices.keep("a", voice.profile)  # its name, another voice
    assert voices.names == ("c", "d", "a")
    assert voices.find("a") is not oldest
    for name in ("c", "nobody"):
        voices.forget(name)
    assert voices.names == ("d", "a")
    assert voices.find("c") is None


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"encoder_valid_num_quantizers": 15}, "encoder_valid_num_quantizers"),
        ({"encoder_config": {**ENCODER["encoder_config"], "codebook_size": 64}}, "codebook_size"),  # type: ignore[dict-item]
    ],
)
def test_an_encoder_of_another_talker_is_refused_by_name(change: dict[str, object], key: str) -> None:
    config, noise = EncoderConfig.from_dict({**ENCODER, **change}), Noise()
    encoder = Qwen3TTSEncoder(config, read_weights(noise, config))
    assert BASE.speaker_encoder is not None
    speaker = SpeakerEncoder.read(noise, BASE.speaker_encoder, "")  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match=key):
        Cloner(BASE, speaker, encoder, tokenize)


# ---- making one beside the steps


class SlowCloner(Cloner):
    """Waits to be let go, and counts."""

    def __init__(self, inner: Cloner) -> None:
        self.languages = inner.languages
        self.go, self.begun, self.left = threading.Event(), threading.Event(), threading.Event()
        self.made, self.spelled = 0, 1
        self.fault: Exception | None = None
        self._inner = inner

    def make(self, pcm: bytes, text: str, language: str, given_up: threading.Event) -> ClonedVoice:
        self.begun.set()
        assert self.go.wait(60)
        self.made += 1
        if self.fault is not None:
            raise self.fault
        try:
            return self._inner.make(pcm, text * self.spelled, language, given_up)
        except Abandoned:
            self.left.set()
            raise


class House:
    """A simulated engine that makes voices."""

    def __init__(self, cloner: Cloner) -> None:
        self.cloner = SlowCloner(cloner)
        self.voices = Voices(BASE, CPU)
        self.factory = CloneVoiceJobFactory(self.cloner, self.voices)
        self.simulation = Simulation(blocks=64, host_blocks=0, cloning=self.factory)
        self.core = self.simulation.core

    def ask(self, name: str, pcm: bytes, **fields: Any) -> list[FromEngine]:
        clone = CloneParams(fields.pop("consent", True), fields.pop("language", ""))
        told = self.core.handle([Submit(name, "voice", clone=clone, **fields)])
        for start in range(0, len(pcm), 2 * CLIP_RATE):
            told += self.core.handle([Append(name, pcm[start : start + 2 * CLIP_RATE])])
        return told + self.core.handle([EndInput(name)])

    def until(self, kind: type[FromEngine]) -> list[FromEngine]:
        told: list[FromEngine] = []
        while not any(isinstance(message, kind) for message in told):
            told += self.core.step()
        return told


@pytest.mark.parametrize("before", [0, NICENESS + 5])
def test_the_thread_gives_way_and_never_asks_for_more_than_it_has(before: int) -> None:
    def niceness() -> tuple[int, int]:
        own = threading.get_native_id()
        begun = max(before, os.getpriority(os.PRIO_PROCESS, own))
        os.setpriority(os.PRIO_PROCESS, own, begun)
        _give_way()
        return begun, os.getpriority(os.PRIO_PROCESS, own)

    with ThreadPoolExecutor(1) as thread:
        begun, given = thread.submit(niceness).result()
    assert given == max(begun, NICENESS)


@pytest.fixture
def house(cloner: Cloner) -> House:
    return House(cloner)


def test_steps_go_on_while_a_voice_is_made(house: House) -> None:
    assert house.ask("v", clip(2.0), text="Hi") == []
    assert house.cloner.begun.wait(60)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    house.simulation.send(Submit("a", "complete", text="ABC", sampling=sampling))
    while "a" not in house.simulation.ends:
        house.simulation.step()
    assert house.simulation.texts["a"] == expected_text("ABC", 20)
    assert house.core.busy
    house.cloner.go.set()
    made, end = house.until(Finished)
    assert isinstance(made, VoiceMade)
    assert isinstance(end, Finished)
    assert (end.reason, end.stats.audio_s) == ("eos", 2.0)
    assert not house.core.busy
    house.core.handle([KeepVoice("Ada", made.profile)])
    assert house.voices.names == ("Ada",)


def test_the_same_clip_is_heard_once(house: House) -> None:
    house.cloner.go.set()
    house.ask("v1", clip(1.0), text="Hi")
    made = house.until(Finished)[0]
    assert isinstance(made, VoiceMade)
    house.core.handle([KeepVoice("Ada", made.profile)])
    house.ask("v2", clip(1.0), text="Hi")
    again = house.until(Finished)[0]
    assert isinstance(again, VoiceMade)
    assert (again.profile, house.cloner.made) == (made.profile, 1)
    house.core.handle([ForgetVoice("Ada")])  # then nothing of it is left
    house.ask("v3", clip(1.0), text="Hi")
    house.until(Finished)
    assert house.cloner.made == 2


def test_what_is_refused_and_why(house: House) -> None:
    for asked, reason in (
        (lambda: house.ask("v", clip(2.0), consent=False), "consent"),
        (lambda: house.ask("v", clip(0.9)), "shorter than 1 s"),
        (lambda: house.ask("v", clip(30.1)), "longer than 30 s"),
        (lambda: house.ask("v", clip(1.0), text="x" * 1001), "1001 characters"),
        (lambda: house.ask("v", clip(1.0), language="klingon"), "english"),
    ):
        told = asked()
        assert [type(message) for message in told] == [Refused], reason
        assert isinstance(told[0], Refused)
        assert reason in told[0].detail
    assert not house.core.busy
    for number in range(MAX_CLIPS):
        assert house.ask(f"v{number}", clip(1.0, number)) == []
    (full,) = house.ask("late", clip(1.0))
    assert isinstance(full, Refused)
    assert full.code == "overloaded"
    house.core.handle([Cancel("v3")])
    assert house.ask("late", clip(1.0, 99)) == []
    house.cloner.go.set()
    while house.core.busy:
        house.core.step()
    assert house.cloner.made == MAX_CLIPS  # a clone that was cancelled in the queue was never begun


def test_the_longest_voice_is_within_its_bound_and_more_text_is_refused(house: House, cloner: Cloner) -> None:
    longest = cloner.make(clip(30.0), "x" * 375, "", NOBODY)
    assert len(longest.clone.frames) == 375
    assert len(longest.profile) < MAX_PROFILE_BYTES // 2
    house.voices.keep("Ada", longest.profile)
    house.cloner.go.set()
    house.cloner.spelled = 2  # like numbers that are written out
    house.ask("v", clip(1.0), text="x" * 7)
    (told,) = house.until(Refused)
    assert isinstance(told, Refused)
    assert (told.code, told.detail) == (
        "too_long",
        "the text has 14 tokens; no more than 13 can be said in the recording",
    )
    assert not house.core.busy


def test_a_voice_that_nobody_waits_for_is_left_half_made(house: House) -> None:
    house.ask("v", clip(1.0), text="Hi")
    assert house.cloner.begun.wait(60)
    (end,) = house.core.handle([Cancel("v")])
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert not house.core.busy
    house.cloner.go.set()
    assert house.cloner.left.wait(60)


def test_an_engine_that_leaves_waits_for_no_voice(house: House) -> None:
    before = set(threading.enumerate())
    house.ask("v1", clip(1.0), text="Hi")
    house.ask("v2", clip(1.5), text="Hi")
    assert house.cloner.begun.wait(60)
    (thread,) = set(threading.enumerate()) - before
    house.factory.close()
    house.cloner.go.set()
    thread.join(60)
    assert not thread.is_alive()
    assert house.cloner.left.is_set()
    assert house.cloner.made == 1, "the other was never begun"


@pytest.mark.parametrize("error", [RuntimeError, KeyError, AttributeError, OSError, AssertionError])
def test_a_fault_is_the_requests_own(error: type[Exception], house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.cloner.go.set()
    house.cloner.fault = error("nobody can hear Timbuktu")
    house.ask("v", clip(1.0), text="Timbuktu")
    (end,) = house.until(Finished)
    assert isinstance(end, Finished)
    assert end.reason == "failed"
    house.core.handle([KeepVoice("Ada", b"no profile")])
    assert house.voices.names == ()
    assert "Timbuktu" not in caplog.text


def test_an_engine_that_cannot_says_which_could() -> None:
    core = Simulation(blocks=64, host_blocks=0).core
    (told,) = core.handle([Submit("v", "voice", clone=CloneParams(consent=True)), KeepVoice("Ada", b""), EndInput("v")])
    assert isinstance(told, Refused)
    assert told.code == "no_model"
    assert "Qwen3-TTS Base" in told.detail
