"""ASR and TTS without models, beside the pretended chat of simulation.py, under one scheduler.

The transcript of a clip follows from its samples, and reading a page that holds anything but the right clip or prefix
fails at once. So the expected transcript is known without an engine, and every wrong block shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from simulation import Clock, LateEngine, PretendEngine, Simulation

from voxlane.engine.api import Samples, Words
from voxlane.engine.audio.transcriber import Transcriber, max_tokens
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.jobs.speak_clauses import SpeakClausesJobFactory
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.models.synthesis import Prepared, SynthesisedClause
from voxlane.engine.runners.clause_tts import ClauseOutcome, clause_of
from voxlane.engine.runners.decoder import Immediate, Outcome
from voxlane.engine.runners.recogniser import TranscriptionOutcome, transcription_of
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import Limits, ModelBatch, ModelResources, Row
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.schedule.speculation import accepted
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations

START, END = 0, 1
SAMPLES_PER_STATE = 4000
SAMPLES_PER_TOKEN = 3000
FRAME = 512


def heard_next(clip: np.ndarray, tokens: Sequence[int]) -> int:
    """Return the pretended model's token after `tokens`: mostly it depends on one part of the clip."""
    place = len(tokens)
    if place > len(clip) // SAMPLES_PER_TOKEN:
        return END
    part = clip[(place - 1) * SAMPLES_PER_TOKEN : place * SAMPLES_PER_TOKEN]
    # The end of a clip changes the tokens shortly before it, as with real speech.
    unsure = place * SAMPLES_PER_TOKEN + SAMPLES_PER_TOKEN > len(clip)
    seed = part.tobytes() + bytes([unsure, *tokens[-1:]])
    return 2 + hashlib.blake2b(seed, digest_size=1).digest()[0] % 24


def offline(clip: np.ndarray) -> list[int]:
    """Return all tokens of a clip."""
    tokens = [START]
    while len(tokens) <= max_tokens(len(clip)) and (token := heard_next(clip, tokens)) != END:
        tokens.append(token)
    return tokens[1:]


def voices(samples: np.ndarray) -> list[float]:
    """Return whether a frame is speech: anything loud is."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    return [float(np.abs(frame).max() > 0.1) for frame in frames]


class PretendVoicing:
    """A detector of loudness."""

    def __init__(self) -> None:
        self._rest = np.zeros(0, np.float32)

    def __call__(self, samples: np.ndarray) -> list[float]:
        joined = np.concatenate([self._rest, samples])
        self._rest = joined[len(joined) // FRAME * FRAME :]
        return voices(joined)


class PretendListeningModel:
    """The prompt of the pretended model, and the text of its tokens."""

    languages = ("en",)
    detects_language = False
    fixed_window = False
    long_segments = False
    short_windows = False
    inline = False
    nobody = -1
    tasks: tuple[int, int] | None = None
    max_samples = 30 * 16_000
    context_tokens = 448
    eos_ids = frozenset({END})

    def states(self, samples: int) -> int:
        return samples // SAMPLES_PER_STATE + 1

    def window(self, samples: int) -> int:
        return self.states(samples)

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        return [START]

    def expecting(self, words: Sequence[str]) -> list[int]:
        return []

    def text_of(self, tokens: Sequence[int]) -> str:
        return "".join((" " if self.starts_word(token) else "") + chr(95 + token) for token in tokens)

    def starts_word(self, token: int) -> bool:
        return token % 2 == 0


class PretendListening(PretendEngine):
    """Transcribes clips, and remembers in its pages which clip lies where."""

    def launch(self, load: ModelBatch) -> list[Outcome]:
        begin = self.clock.now
        for row in load.rows:
            self.clock.now += 2e-4 * row.request.states if row.encode else 0.0
        self.phases = {"encode": (begin, self.clock.now)}
        return super().launch(load)

    def _row(self, row: Row) -> Outcome:
        request = row.request
        assert request.cross is not None
        clip = hashlib.blake2b(transcription_of(request).clip.tobytes()).hexdigest()
        places = request.cross.slots(0, request.states)
        for place, slot in enumerate(places):
            if row.encode:
                self.device[slot] = (clip, (place,))
            assert self.device.get(slot) == (clip, (place,)), "a page holds another clip"
        tokens = [*request.tokens[: row.start + row.count], *row.drafts]
        slots = request.table.slots(0, len(tokens))
        written = [(clip, prefix) for prefix in self.prefixes.along(tokens)]
        for position in range(row.start, len(tokens)):
            self.device[slots[position]] = written[position]
        assert [self.device.get(slot) for slot in slots] == written, "a page holds another prefix"
        first = row.start + row.count
        greedy = [heard_next(transcription_of(request).clip, tokens[:stop]) for stop in range(first, len(tokens) + 1)]
        return TranscriptionOutcome(choices=[SampledToken(token, -0.1) for token in accepted(row.drafts, greedy)])


class PretendSynthesiser:
    """Makes a phoneme and ten samples of each letter."""

    name = "pretended"
    sample_rate = 1000
    voices = ("one", "two")
    default_voice = "one"

    def warm_up(self) -> None: ...

    def prepare(self, text: str, *, voice: str | None = None, names: Pronunciations = NO_PRONUNCIATIONS) -> Prepared:
        said = text.strip()
        return Prepared((0, *map(ord, said), 0) if said else (), (), 0.0)

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        return SynthesisedClause(np.repeat(np.array(prepared.ids[1:-1], np.float32) / 256, 10), ())


class PretendVoice(Immediate):
    """Speaks clauses in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.model = PretendSynthesiser()
        self.phases: dict[str, tuple[float, float]] = {}

    def launch(self, load: ModelBatch) -> list[Outcome]:
        self.clock.now += sum(5e-4 * row.request.unit for row in load.rows)
        return [ClauseOutcome(self.model.synthesise(clause_of(row).prepared)) for row in load.rows]


class SpeechSimulation(Simulation):
    """Three pretended models under one scheduler."""

    def __init__(self, *, asr_blocks: int = 200, asr_host: int = 0, late: bool = False, **settings):
        """With `late`, the outcome of a step is known only while the next one runs."""
        super().__init__(make_engine=LateEngine if late else PretendEngine, **settings)
        limits = self.scheduler.limits
        size = self.pool.block_tokens
        self.asr_pool = BlockPool(asr_blocks, size, prefix_cache=False)
        asr_host_pool = BlockPool(asr_host, size, prefix_cache=False)
        nothing = BlockPool(0, 1, prefix_cache=False)
        self.scheduler = Scheduler(
            {
                **self.scheduler.resources,
                "asr": ModelResources(self.asr_pool, asr_host_pool, CostModel(), CostModel()),
                "tts": ModelResources(nothing, BlockPool(0, 1, prefix_cache=False), CostModel()),
            },
            limits if isinstance(limits, Limits) else Limits(),
        )
        self.listening, voice = PretendListening(self.clock, size), PretendVoice(self.clock)
        self.listening.overlaps = voice.overlaps = late
        self.core = Core(
            self.scheduler,
            {"chat": self.engine, "asr": self.listening, "tts": voice},
            {
                "chat": ChatJobFactory(self.intake, self.letters),
                "asr": TranscribeJobFactory(PretendListeningModel(), self.asr_pool, PretendVoicing),
                "tts": SpeakClausesJobFactory(PretendSynthesiser(), nothing),
            },
            clock=self.clock,
            max_waiting=1000,
        )
        self.settled: dict[str, str] = {}
        self.tails: dict[str, str] = {}
        self.segments: dict[str, list] = {}
        self.pcm: dict[str, bytes] = {}

    def _collect(self, messages):
        for message in messages:
            name = getattr(message, "request_id", "")
            if isinstance(message, Words):
                assert name not in self.ends, "words after the end"
                self.settled[name] = self.settled.get(name, "") + message.settled
                self.tails[name] = message.tail
                self.segments.setdefault(name, []).extend(message.segments)
            elif isinstance(message, Samples):
                assert name not in self.ends, "samples after the end"
                assert message.offset * 2 == len(self.pcm.get(name, b"")), "a gap or a repeat"
                self.pcm[name] = self.pcm.get(name, b"") + message.pcm
        return super()._collect(messages)


def transcript(audio: np.ndarray) -> str:
    """Return the transcript of a whole stream, computed without an engine, partials or pieces."""
    model = PretendListeningModel()
    listener = Transcriber(PretendVoicing(), model.starts_word, max_samples=model.max_samples, partials=False)
    listener.hear(audio)
    listener.end()
    texts = []
    while (look := listener.next_look()) is not None:
        tokens = offline(listener.clip(look))
        texts.append(model.text_of(listener.decoded(look, tokens, [-0.1] * len(tokens)).settled).strip())
    return " ".join(text for text in texts if text)
