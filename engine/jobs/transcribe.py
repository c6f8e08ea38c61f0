"""Transcribe a stream of audio: the transcriber's looks become requests, and their tokens become words.

Between two looks a stream holds no KV blocks: the encoder sees the whole clip, so new audio makes everything computed
before stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.api import (
    LISTEN_RATE,
    MAX_UNHEARD_S,
    Append,
    RequestStats,
    SamplingParams,
    Segment,
    Submit,
    Word,
    Words,
)
from voxlane.engine.audio.segmenter import FRAME_SAMPLES, ListenPolicy
from voxlane.engine.audio.transcriber import (
    DEFAULT_POLICY,
    LONG_POLICY,
    WINDOW_POLICY,
    Closed,
    DecodeRequest,
    Heard,
    Transcriber,
    max_tokens,
)
from voxlane.engine.audio.vad import VadStream
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.runners.recogniser import TranscriptionOutcome, TranscriptionPayload, transcription_of
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import ClipStates, Request

PARTIAL_TARGET_S = 1.0
"""A look at an open segment is due after this long: it yields to listeners who are about to run out of sound."""

FINAL_TARGET_S = 0.1
"""A look at a closed segment is due after this long: a person waits for the words of a finished turn."""

WORK_SAMPLES = LISTEN_RATE // 2
"""Audio that goes through the voice detector between two steps: a few milliseconds of work."""

REPORT_SAMPLES = 2 * LISTEN_RATE
"""Audio without new words after which the sender is told how much was processed."""

SAMPLE_BYTES = 2


class SpellingModel(Protocol):
    """What a transcription job needs of a model: its prompts, its limits and the meaning of its tokens."""

    languages: tuple[str, ...]
    detects_language: bool
    fixed_window: bool  # a short clip costs as much as a long one
    long_segments: bool  # it hears better what is cut into fewer and longer clips
    short_windows: bool  # it encodes less than it was trained with, except of clips of `max_samples`
    inline: bool  # a clip's encoder states lie among the tokens
    tasks: tuple[int, int] | None  # the prompt's tokens for transcribing and for translating; None: it cannot translate
    nobody: int  # the token that it writes instead of a language where there is no speech; -1: it has none
    max_samples: int
    context_tokens: int
    eos_ids: frozenset[int]

    def states(self, samples: int) -> int:
        """Return the number of encoder states of a clip of `samples`."""

    def window(self, samples: int) -> int:
        """Return how many of these states the encoder computes."""

    def prompt_tokens(self, language: str, states: int) -> list[int]:
        """Return the prompt for a clip of `states` encoder states; with the language "" the model detects it."""

    def expecting(self, words: Sequence[str]) -> list[int]:
        """Return tokens that go before the prompt so that the model expects these words."""

    def after_language(self, token: int) -> list[int]:
        """Return the prompt's tokens after the token of a language."""

    def language_of(self, token: int) -> str:
        """Return the language that a token names."""

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with the space before it."""

    def starts_word(self, token: int) -> bool:
        """Return whether a word begins with this token."""

    def words_of(self, tokens: Sequence[int], weights: Tensor, samples: int) -> list[tuple[str, float, float]]:
        """Return the words of a clip of `samples`, each with the seconds at which it begins and ends."""


class TranscribeJobFactory:
    """Opens transcription jobs for the recogniser."""

    def __init__(
        self,
        model: SpellingModel,
        pool: BlockPool,
        voicing: Callable[[], Callable[[NDArray[np.float32]], Sequence[float]]],
    ) -> None:
        self._model = model
        self._pool = pool
        self._voicing = voicing

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        language = submit.listen.language
        if language and language not in self._model.languages:
            raise Refusal("bad_request", f"this model does not know the language {language[:20]!r}")
        if submit.listen.translate and self._model.tasks is None:
            raise Refusal("bad_request", "this model does not translate")
        detector = self._voicing()
        listener = Transcriber(
            detector,
            self._model.starts_word,
            max_samples=self._model.max_samples,
            partials=submit.listen.partials,
            policy=_policy_of(self._model),
            short_windows=self._model.short_windows,
        )
        ear = detector if isinstance(detector, VadStream) else None
        return TranscribeJob(submit, self._model, self._pool, listener, now, ear)


class TranscribeJob(Job):
    """Transcribes one stream."""

    def __init__(
        self,
        submit: Submit,
        model: SpellingModel,
        pool: BlockPool,
        listener: Transcriber,
        now: float,
        ear: VadStream | None = None,
    ) -> None:
        """Begin. An `ear` shared by many streams gets audio as it comes and is asked when its answer is ready."""
        super().__init__(submit, now)
        self._model = model
        self._pool = pool
        self._listener = listener
        self._language = submit.listen.language or ("" if model.detects_language else model.languages[0])
        self._expecting = model.expecting(submit.listen.hot_words)
        self._guess = ""  # the language that the current look detected; kept once a segment has words
        self._unheard = SampleQueue()  # audio that has not gone to the listener
        self._ear = ear
        self._ended = False  # no more input will come
        self._told = False  # the listener knows that the input has ended
        self._look: DecodeRequest | None = None  # under way
        self._logprobs: list[float] = []  # of the look under way
        self._no_speech = 0.0
        self._before: tuple[int, list[float]] = (-1, [])  # the last look's segment start and its logprobs
        self._attention: tuple[tuple[int, int], Tensor | None] = ((-1, -1), None)  # of the last look, with its place
        self._tail = ""
        self._space: str | None = ""  # goes before a segment's first word; None: its first word is settled
        self._reported = 0  # samples that the sender was told of
        self._total = 0  # samples that went to the listener
        self._looks = 0
        self._tokens = 0
        self._logprob_sum = 0.0
        self._scored = 0
        self._first_text_s = 0.0

    @property
    def unfinished(self) -> bool:
        """Return whether a whole frame waits, or the listener must be told of the end."""
        whole = self._total % FRAME_SAMPLES + self._unheard.samples >= FRAME_SAMPLES
        return not self.paused and (whole or (self._ended and not self._told))

    @property
    def wants_work(self) -> bool:
        """Return whether the job is unfinished and the detector has its answer."""
        if self._ear is not None and self._ear.silent:  # the usual case, asked again and again
            return False
        if not self.unfinished:
            return False
        return self._ear is None or not self._unheard.samples or self._ear.ready_samples > 0

    def append(self, more: Append, now: float) -> Change:
        """Take more audio."""
        if self._ended:
            return Change()
        samples = self._unheard.add(more.audio)
        if self._ear is not None:
            self._ear.expect(samples)
        waiting = self._unheard.samples + self._total - self._listener.heard
        return Change(end="failed" if waiting > MAX_UNHEARD_S * LISTEN_RATE else None)

    def end_input(self, now: float) -> Change:
        """Take the end of the audio."""
        self._ended = True
        if self._ear is not None:
            self._ear.hurry()
        return Change()

    def close(self) -> None:
        """Let the detector forget the stream."""
        if self._ear is not None:
            self._ear.close()

    def work(self, now: float) -> Change:
        """Pass a little of the waiting audio to the listener, and begin a look if one is due."""
        change = Change()
        most = WORK_SAMPLES if self._ear is None else min(WORK_SAMPLES, self._ear.ready_samples)
        samples = self._unheard.take(most)
        if len(samples):
            self._total += len(samples)
            self._listener.hear(samples)
        if self._ended and not self._unheard.samples and not self._told:
            self._told = True
            self._listener.end()
            self._abandon(change)
        self._go_on(change, now)
        return change

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a look's new tokens; publish its words when it ends."""
        request, change = row.request, Change()
        assert isinstance(outcome, TranscriptionOutcome)
        if row.encode:
            self._no_speech = outcome.no_speech
        over = False
        for choice in outcome.choices:
            if transcription_of(request).detects_language:
                self._name_language(request, choice.token)
                over = choice.token == self._model.nobody
                break
            if choice.token in self._model.eos_ids:
                over = True
                break
            request.tokens.append(choice.token)
            self._logprobs.append(choice.logprob or 0.0)
        if not over and outcome.choices:
            over = request.output_tokens >= request.sampling.max_tokens or len(request.tokens) >= request.limit
            request.table.rewind(min(request.table.length, len(request.tokens) - 1))
        if over:
            self._looked(request, outcome, change, now)
        return change

    def stats(self, now: float) -> RequestStats:
        """Return the job's statistics so far."""
        return RequestStats(
            prompt_tokens=0,
            output_tokens=self._tokens,
            cached_tokens=0,
            queue_s=self.queue_s(now),
            first_token_s=self._first_text_s - self.arrival_s if self._first_text_s else 0.0,
            per_token_s=0.0,
            total_s=now - self.arrival_s,
            preemptions=0,
            logprob_sum=self._logprob_sum,
            scored_tokens=self._scored,
            audio_s=self._total / LISTEN_RATE,
        )

    # ---- looks

    def _go_on(self, change: Change, now: float) -> None:
        """Publish what is settled, and begin the next look unless one is under way."""
        for heard in self._listener.settled():
            self._tell(heard, change, now)
        if self._look is None:
            self._look = self._listener.next_look()
            if self._look is not None:
                change.begin.append(self._request(self._look, now))
        if self._told and self._look is None and self._listener.done:
            change.end = "eos"
        if self._listener.heard - self._reported >= REPORT_SAMPLES or (change.end and self._reported < self._total):
            self._publish("", change)

    def _abandon(self, change: Change) -> None:
        """Drop a look that the end of the input has made stale: a person waits for the final look after it."""
        after = self._listener.next_look()
        if self._look is None or after is None or (after.start, after.end) == (self._look.start, self._look.end):
            return
        if after.start == self._look.start:
            self._look = None
            change.drop += self.requests.values()

    def _request(self, look: DecodeRequest, now: float) -> Request:
        clip = self._listener.clip(look)
        most = max_tokens(len(clip))
        if look.whole:
            clip = np.pad(clip, (0, self._model.max_samples - len(clip)))
        # A detected language is kept while settled tokens depend on it; otherwise the look detects it again.
        language = self._language or (self._guess if look.forced else "")
        states = self._model.states(len(clip))
        prompt = [*self._expecting, *self._tasked(self._model.prompt_tokens(language, states))]
        start, logprobs = self._before
        self._logprobs = logprobs[: len(look.forced)] if start == look.start else []
        self._looks += 1
        return Request(
            id=f"{self.submit.request_id}/{self._looks}",
            task="asr",
            tokens=[*prompt, *look.forced],
            prompt_tokens=len(prompt),
            table=BlockTable(self._pool),
            sampling=SamplingParams(max_tokens=most, logprobs=0),
            priority=self.submit.priority,
            arrival_s=now,
            due_s=now + (FINAL_TARGET_S if look.final else PARTIAL_TARGET_S),
            session=self.submit.session,
            limit=self._model.context_tokens,
            model="asr",
            payload=TranscriptionPayload(
                clip,
                detects_language=not language,
                wants_attention=self.submit.listen.word_times,
                before=len(self._expecting),
            ),
            clip=ClipStates(
                states, None if self._model.inline else BlockTable(self._pool), self._model.window(len(clip))
            ),
            drafts=list(look.drafts) if language else [],
        )

    def _tasked(self, prompt: list[int]) -> list[int]:
        """Return a prompt, or its part after the language, with the token of the task that was asked for."""
        if not self.submit.listen.translate or self._model.tasks is None:
            return prompt
        transcribe, translate = self._model.tasks
        return [translate if token == transcribe else token for token in prompt]

    def _name_language(self, request: Request, token: int) -> None:
        self._guess = self._model.language_of(token)
        if token == self._model.nobody:
            self._no_speech = 1.0
        request.tokens += [token, *self._tasked(self._model.after_language(token))]
        request.prompt_tokens = len(request.tokens)
        transcription_of(request).detects_language = False

    def _looked(self, request: Request, outcome: TranscriptionOutcome, change: Change, now: float) -> None:
        look = self._look
        assert look is not None
        tokens = request.tokens[request.prompt_tokens :]
        self._tokens += len(tokens)
        self._before = (look.start, self._logprobs)
        self._attention = ((look.start, look.end), outcome.attention)
        self._look = None
        change.drop.append(request)
        self._tell(self._listener.decoded(look, tokens, self._logprobs, self._no_speech), change, now)
        self._go_on(change, now)

    def _timed(self, closed: Closed) -> tuple[Word, ...]:
        """Return the words of a segment with their times, if its last look has its attention weights."""
        place, attention = self._attention
        if attention is None or place != (closed.start, closed.end):
            return ()
        # The transcriber may have cut off a loop: then there are more rows than tokens.
        begin_s, rows = closed.start / LISTEN_RATE, attention[:, : len(closed.tokens) + 1]
        found = self._model.words_of(closed.tokens, rows, closed.end - closed.start)
        return tuple(Word(text, begin_s + start, begin_s + end) for text, start, end in found)

    # ---- words

    def _tell(self, heard: Heard, change: Change, now: float) -> None:
        settled = self._joined(heard.settled)
        if settled:
            self._space = None
        self._tail = self._joined(heard.tail)
        if heard.closed is not None and self._space is None:
            self._space = " "
        segments: tuple[Segment, ...] = ()
        if heard.closed is not None and heard.closed.tokens:
            self._language = self._language or self._guess
            segments = (self._segment(heard.closed),)
        if settled or self._tail:
            self._first_text_s = self._first_text_s or now
        self._publish(settled, change, segments)

    def _joined(self, tokens: Sequence[int]) -> str:
        """Return tokens as text that follows the settled text; some models put a space before a clip's first word."""
        text = self._model.text_of(tokens)
        return text if self._space is None or not text.strip() else self._space + text.lstrip()

    def _segment(self, closed: Closed) -> Segment:
        self._logprob_sum += sum(closed.logprobs)
        self._scored += len(closed.logprobs)
        return Segment(
            text=self._model.text_of(closed.tokens).strip(),
            start_s=closed.start / LISTEN_RATE,
            end_s=closed.end / LISTEN_RATE,
            logprob=sum(closed.logprobs) / max(1, len(closed.logprobs)),
            tokens=len(closed.tokens),
            no_speech=closed.no_speech,
            language=self._language,
            words=self._timed(closed),
        )

    def _publish(self, settled: str, change: Change, segments: tuple[Segment, ...] = ()) -> None:
        self._reported = self._total if change.end else self._listener.heard
        heard_s = self._reported / LISTEN_RATE
        covered_s = max(self._reported, self._listener.covered) / LISTEN_RATE
        name, epoch = self.submit.request_id, self.submit.epoch
        change.messages.append(Words(name, epoch, settled, self._tail, heard_s, segments, covered_s))


def _policy_of(model: SpellingModel) -> ListenPolicy:
    if model.fixed_window:
        return WINDOW_POLICY
    return LONG_POLICY if model.long_segments else DEFAULT_POLICY


class SampleQueue:
    """Samples in the order they came; bytes become numbers once."""

    def __init__(self) -> None:
        self.samples = 0  # how many wait
        self._pieces: deque[NDArray[np.float32]] = deque()
        self._odd = b""  # the first byte of a sample

    def add(self, pcm: bytes) -> NDArray[np.float32]:
        """Take 16-bit samples, cut anywhere; return those that are complete now, -1 to 1."""
        pcm = self._odd + pcm if self._odd else pcm
        count = len(pcm) // SAMPLE_BYTES
        self._odd = pcm[count * SAMPLE_BYTES :]
        samples: NDArray[np.float32] = np.multiply(np.frombuffer(pcm, "<i2", count), 1 / 32768, dtype=np.float32)
        if count:
            self._pieces.append(samples)
            self.samples += count
        return samples

    def take(self, most: int) -> NDArray[np.float32]:
        """Return and forget the first samples, up to `most`."""
        count = min(most, self.samples)
        taken, left = [], count
        while left:
            piece = self._pieces.popleft()
            if len(piece) > left:
                self._pieces.appendleft(piece[left:])
            taken.append(piece[:left])
            left -= len(taken[-1])
        self.samples -= count
        return taken[0] if len(taken) == 1 else np.concatenate([np.zeros(0, np.float32), *taken])
