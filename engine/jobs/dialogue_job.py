"""What every job of a speech-to-speech model has in common: a dialogue, whose positions are one request.

The prompt is read as soon as it is there. The model's turn begins when the prompt is complete; then each step makes a
token of text or a frame of sound. A listener who has audio gets several frames at a time. To go back to a frame, a new
request goes on from the positions before it; the old request's outcome of a step under way is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from voxlane.engine.api import RequestStats, SamplingParams, Submit
from voxlane.engine.jobs.codec_speech import CodecSpeechJob
from voxlane.engine.jobs.job import Change
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue, Piece, number_of
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseOutcome, DialogueStream
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState

ANSWERING = SpeechSampling(temperature=1.0, top_k=4)
READING = SpeechSampling(temperature=0.8, top_k=64)
"""How the authors draw the codes of a frame: in a conversation, and of a text that is read aloud."""


@dataclass(frozen=True, slots=True)
class ConverseFacts:
    """What jobs need of a model."""

    text_run: int  # tokens of text in turn with
    sound_run: int  # frames of sound
    frame_samples: int
    sample_rate: int
    limit: int  # positions that a conversation may have
    slots: StateRows
    pool: BlockPool
    prompts: ConversePrompts
    sampling: SpeechSampling = ANSWERING
    reading: SpeechSampling = READING

    @property
    def frame_s(self) -> float:
        """Return the seconds of sound of one frame."""
        return self.frame_samples / self.sample_rate


class DialogueJob(CodecSpeechJob):
    """One job, and the dialogue that it goes on with."""

    sounds = True
    """Whether the model's turn may have sound: then it needs a state row."""

    _stream: DialogueStream

    def __init__(
        self,
        submit: Submit,
        now: float,
        facts: ConverseFacts,
        prompt: Sequence[Piece],
        tokens: SamplingParams,
        frames: SpeechSampling,
        seed: int,
    ) -> None:
        """Begin with a prompt; `tokens` and `frames` tell how they are chosen, the latter with `seed`."""
        super().__init__(submit, now, facts.sample_rate, facts.slots)
        self._facts = facts
        self._tokens = tokens
        self._frames = frames
        self._seed = seed
        self._requests = 0  # made so far
        self._preemptions = 0  # of the requests before the present one
        self._dialogue = Dialogue(prompt)
        self._request, self._stream = self._begin(now)

    @property
    def wants_work(self) -> bool:
        """Whether a state row can be taken."""
        return not self.paused and self.waits and self._facts.slots.serves(self)

    @property
    def restless(self) -> bool:
        """Whether it speaks: then another stream may take its state row, or leave it one."""
        return not self.paused and self._speaks

    @property
    def waits(self) -> bool:
        """Whether it needs a state row now: not before the model's turn."""
        return self._speaks and super().waits

    @property
    def _speaks(self) -> bool:
        return self.sounds and self._dialogue.turn is not None

    def open(self, now: float) -> Change:
        """Begin to read the prompt."""
        self.refresh(now)
        return Change(begin=[self._request])

    def work(self, now: float) -> Change:
        """Take a state row."""
        self.refresh(now)
        return Change()

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return structs.replace(super().stats(now), preemptions=self._preemptions + self._request.preemptions)

    @property
    def _most_frames(self) -> int:
        """Return how many frames of sound the turn may have."""
        return self._frames.max_frames

    def _take(self, row: Row, outcome: ConverseOutcome) -> None:
        """Add a step's token or frame to the dialogue."""
        dialogue, table = self._dialogue, self._request.table
        if outcome.token is not None:
            dialogue.add_token(outcome.token)
        elif outcome.frame is not None:
            dialogue.add(outcome.frame)
        elif dialogue.frame_due(row.start + row.count):  # its state row is behind: compute this again
            table.rewind(row.start + row.count - 1)
        table.seal(self._request.tokens, min(row.start + row.count, table.length))
        self._stream.decoded += len(outcome.samples) // self._facts.frame_samples

    # ---- requests

    def _begin(self, now: float) -> tuple[Request, DialogueStream]:
        submit, dialogue = self.submit, self._dialogue
        self._requests += 1
        stream = DialogueStream(dialogue, self._frames, self._seed, slot=self._slot)
        numbers = [number_of(piece) for piece in dialogue.pieces]
        request = Request(
            id=f"{submit.request_id}/{self._requests}",
            task="converse",
            tokens=numbers,
            prompt_tokens=len(numbers),
            table=BlockTable(self._facts.pool, submit.tenant),
            sampling=self._tokens,
            priority=submit.priority,
            arrival_s=now,
            session=submit.session,
            seed=self._seed,
            limit=self._facts.limit,
            model="speech",
            payload=stream,
        )
        return request, stream

    def _renew(self, change: Change, now: float, decoded: int = 0, *, keeps: bool = False) -> None:
        """Go on in a new request, `decoded` frames of whose dialogue were sent; with `keeps` its positions begin as
        those of the request before.
        """
        before = self._request
        change.drop.append(before)
        self._preemptions += before.preemptions
        self._request, self._stream = self._begin(now)
        self._stream.decoded = decoded
        if keeps and before.blocks:
            self._request.table = before.table.fork()
            self._request.table.rewind(min(self._request.table.length, self._dialogue.available - 1))
            self._request.state, self._request.started = RequestState.RUNNING, before.started
        change.begin.append(self._request)

    def refresh(self, now: float) -> None:
        """Tell the scheduler how much there is to compute, and when it is wanted."""
        request, dialogue = self._request, self._dialogue
        request.tokens += [number_of(piece) for piece in dialogue.pieces[len(request.tokens) :]]
        speaks = self._speaks
        if speaks and self._slot < 0 < request.pending:
            self._take_row()
        lacking = request.pending <= 0 or (speaks and self._slot < 0)
        if request.waiting_for_input and not lacking:
            request.progress_s, request.due_s = now, self._first_due(now)
        request.waiting_for_input = lacking
        if speaks:
            ahead_s = self._set_due(now, self._facts.frame_s)
            self._stream.chunk = 1 if self._last_before_text else self._stream.chunk_for(ahead_s / self._facts.frame_s)
            self._facts.slots.make_way(self, now)

    @property
    def _last_before_text(self) -> bool:
        """Whether no frame may follow the next one for a while: then all frames are decoded with it."""
        dialogue, turn = self._dialogue, self._dialogue.turn
        assert turn is not None, "the model's turn has begun"
        last = dialogue.spoken + 1 >= self._most_frames or dialogue.available + 1 >= self._facts.limit
        return last or (turn.left == 1 and not turn.text_complete)
