"""Voices made from recordings: a clip in, a `Clone` out, and the table of named voices.

The recording is not kept, only what a talker needs: an embedding and, if the words of the clip are known, its frames
and those words as tokens. A `profile` is a voice as bytes; another engine with the same checkpoint can read it. This
module knows clips, clones and names, but neither the speakers nor the clients.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
import numpy as np
import torch

from voxlane.engine.api import CLIP_RATE, MAX_PROFILE_BYTES, MAX_VOICES
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig
from voxlane.engine.models.qwen3_tts.encoder import Qwen3TTSEncoder
from voxlane.engine.models.qwen3_tts.prompt import Clone, PromptError, check_clone
from voxlane.engine.models.qwen3_tts.speaker import SpeakerEncoder

DIGEST_BYTES = 32
_FIELDS = 5
_CODE, _FLOAT = np.dtype("<u2"), np.dtype("<f4")


class Abandoned(Exception):
    """The voice was not made: the client no longer waits for it."""


class TooMuchText(ValueError):
    """The text of a clip is longer than anyone can say in its duration."""


class ProfileError(ValueError):
    """The bytes are not a voice of this checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class ClonedVoice:
    """A cloned voice, and a digest of its origin: the clip, its words and their language."""

    clone: Clone
    language: str  # one of the checkpoint's, or "auto"
    digest: bytes

    @property
    def profile(self) -> bytes:
        """Return the voice as bytes."""
        clone = self.clone
        embedding = clone.embedding.to("cpu", torch.float32).numpy().astype(_FLOAT).tobytes()
        frames = np.array(clone.frames, _CODE).tobytes()
        packed: bytes = msgpack.packb([self.digest, self.language, embedding, list(clone.text), frames])
        return packed


def digest_of(pcm: bytes, text: str, language: str) -> bytes:
    """Return a digest of a clip, its words and their language ("auto" if it is not known)."""
    parts = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (text.encode(), language.encode(), pcm):
        parts.update(len(part).to_bytes(8, "little") + part)
    return parts.digest()


class Cloner:
    """Makes voices, on the CPU, so that no step of the device waits."""

    def __init__(
        self,
        config: Qwen3TTSConfig,
        speaker: SpeakerEncoder,
        encoder: Qwen3TTSEncoder,
        tokenize: Callable[[str, str], list[int]],
    ) -> None:
        if encoder.config.groups != config.groups:
            raise ModelConfigError(
                f"config key encoder_valid_num_quantizers: the talker has {config.groups} codes a frame"
            )
        if encoder.config.codebook_size > config.codes:
            raise ModelConfigError(f"config key encoder_config.codebook_size: the talker knows {config.codes} codes")
        if encoder.sample_rate != CLIP_RATE:
            raise ModelConfigError(f"config key input_sample_rate: only {CLIP_RATE} is supported")
        self.languages = config.languages
        self._speaker = speaker
        self._encoder = encoder
        self._tokenize = tokenize

    def make(self, pcm: bytes, text: str, language: str, given_up: threading.Event) -> ClonedVoice:
        """Return the voice in a clip of 16-bit samples; with the words of the clip, its way of speaking too.

        Raise TooMuchText, or Abandoned soon after `given_up` is set.
        """

        def check() -> None:
            if given_up.is_set():
                raise Abandoned

        language = language or "auto"
        # White space is not a text: without words the frames are of no use.
        tokens = tuple(self._tokenize(text, language)) if text.strip() else ()
        samples = torch.from_numpy(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0)
        # A frame reads one token, and people say three to five a second. More tokens would be spoken before any reply.
        most = -(-len(samples) // self._encoder.frame_samples)
        if len(tokens) > most:
            raise TooMuchText(f"the text has {len(tokens)} tokens; no more than {most} can be said in the recording")
        with torch.inference_mode():
            embedding = self._speaker.embed(samples)
            frames = self._encoder.encode(samples, check).tolist() if tokens else []
        clone = Clone(embedding.clone(), tokens, tuple(map(tuple, frames)))
        return ClonedVoice(clone, language, digest_of(pcm, text, language))


class Voices:
    """The named voices, at most `most`. Beyond that the voice that has not been used for the longest is removed."""

    def __init__(self, config: Qwen3TTSConfig, device: torch.device, most: int = MAX_VOICES) -> None:
        self._config = config
        self._device = device
        self._most = most
        self._named: dict[str, ClonedVoice] = {}  # the oldest first
        self._asked: dict[str, None] = {}  # the same names, the most recently used last

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, the oldest first."""
        return tuple(self._named)

    def find(self, name: str) -> ClonedVoice | None:
        """Return the voice of a name, the oldest voice for an empty name, and mark it as used."""
        name = name or next(iter(self._named), "")
        if name in self._named:
            self._asked[name] = self._asked.pop(name)
        return self._named.get(name)

    def alike(self, digest: bytes) -> ClonedVoice | None:
        """Return a voice that was made from the same clip, words and language."""
        return next((voice for voice in self._named.values() if voice.digest == digest), None)

    def keep(self, name: str, profile: bytes) -> None:
        """Store a voice under a name, in place of any other; raise ProfileError if it is not of this checkpoint."""
        voice = self._unpack(profile)
        self.forget(name)
        self._named[name], self._asked[name] = voice, None
        while len(self._named) > self._most:
            self.forget(next(iter(self._asked)))

    def forget(self, name: str) -> None:
        """Remove a voice. Requests that speak with it continue."""
        self._named.pop(name, None)
        self._asked.pop(name, None)

    def _unpack(self, profile: bytes) -> ClonedVoice:
        if len(profile) > MAX_PROFILE_BYTES:
            raise ProfileError(f"a profile of {len(profile)} bytes is longer than any voice")
        try:
            fields = msgpack.unpackb(profile)
        except (ValueError, msgpack.UnpackException) as error:
            raise ProfileError("not a profile") from error
        if not isinstance(fields, list) or len(fields) != _FIELDS:
            raise ProfileError("not a profile")
        digest, language, embedding, text, frames = fields
        if not all(isinstance(part, bytes) for part in (digest, embedding, frames)) or not isinstance(text, list):
            raise ProfileError("not a profile")
        if language != "auto" and language not in self._config.languages:
            raise ProfileError("a language that this checkpoint does not speak")
        try:
            codes = np.frombuffer(frames, _CODE).reshape(-1, self._config.groups).tolist()
            numbers = torch.from_numpy(np.frombuffer(embedding, _FLOAT).astype(np.float32)).to(self._device)
            clone = Clone(numbers, tuple(text), tuple(map(tuple, codes)))
            check_clone(self._config, clone)
        except (PromptError, ValueError, TypeError) as error:
            raise ProfileError("a voice of another checkpoint") from error
        return ClonedVoice(clone, language, digest)
