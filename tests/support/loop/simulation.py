"""The engine's loop without a model: pages that remember which prefix was written to them, and a virtual clock.

A token depends on the whole prefix before it, and reading a page that holds anything else fails at once. So every wrong
block, lost copy or stale cache entry shows, and the expected output of a request is known without running it. With a
StateWindow, blocks also keep what a convolution needs of its last tokens, and a token overwrites an older one's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from voxlane.engine.api import ChatMessage, Finished, FromEngine, Pause, Submit, Text, ToEngine, Tool
from voxlane.engine.jobs.admission import Intake
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.jobs.factory import Cloning
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool, StateWindow
from voxlane.engine.runners.decoder import Immediate, Outcome, ScoreOutcome, TokenOutcome
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import TEXT, Limits, ModelBatch, ModelResources, Move, Row
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.schedule.speculation import accepted
from voxlane.engine.text.tools import CallStyle

VOCABULARY = 30
EOS = 1
Content = tuple[str, object]  # tenant or clip, and which part of it


def next_token(prefix: Sequence[int]) -> int:
    """Return the pretended model's token after `prefix`: periodic enough that guesses are right sometimes."""
    return _follows(bytes(prefix[-2:]) if len(prefix) % 3 else bytes(prefix[-6:]))


@lru_cache(1 << 16)
def _follows(seed: bytes) -> int:
    return 2 + hashlib.blake2b(seed, digest_size=2).digest()[0] % (VOCABULARY - 2)


@lru_cache(1 << 12)
def expected_text(prompt: str, count: int) -> str:
    """Return the output of a request that runs alone."""
    tokens = Letters().encode(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return "".join(chr(64 + token) for token in tokens[start:])


class Prefixes:
    """Numbers prefixes: two have the same number if and only if they are equal."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def along(self, tokens: Sequence[int]) -> Iterator[int]:
        """Yield the number of each prefix that ends with one of the tokens."""
        number = 0
        for token in tokens:
            number = self._numbers.setdefault((number, token), len(self._numbers) + 1)
            yield number


class Letters:
    """A tokenizer of single characters."""

    vocab_size = VOCABULARY
    eos_ids = frozenset({EOS})
    special_ids = frozenset({0, EOS})

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        return [ord(letter) - 64 for letter in text]

    call_style = CallStyle(opening="")
    call_starts = result_starts = frozenset[int]()
    call_marks: ClassVar[dict[int, bytes]] = {}

    def encode_chat(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool], begin: str, tenant: str
    ) -> list[int]:
        return self.encode("".join(message.content for message in messages) + begin)

    def encode_open(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool], tenant: str
    ) -> tuple[list[int], frozenset[int]]:
        return self.encode("".join(message.content for message in messages)), self.eos_ids

    def token_bytes(self, token: int) -> bytes:
        return bytes([64 + token])

    def token_name(self, token: int) -> str:
        return f"<{token}>"


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class PretendEngine(Immediate):
    """Executes plans on pages that hold prefixes."""

    clock: Clock
    block_tokens: int
    token_s: float = 1e-3
    step_s: float = 5e-3
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    device: dict[int, Content] = field(default_factory=dict)  # by slot
    host: dict[int, list[Content | None]] = field(default_factory=dict)  # by block
    fail_next: bool = False
    tenants: dict[str, str] = field(default_factory=dict)  # request id -> tenant
    on_move: Callable[[str], object] = str
    prefixes: Prefixes = field(default_factory=Prefixes)
    window: StateWindow | None = None
    states: dict[tuple[int, int], Content] = field(default_factory=dict)  # by block and slot
    host_states: dict[tuple[int, int], Content] = field(default_factory=dict)

    def launch(self, load: ModelBatch) -> list[Outcome]:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("pretended fault")
        self._move(load)
        tokens = sum(row.count + len(row.drafts) for row in load.rows)
        self.clock.now += self.step_s + self.token_s * tokens
        return [self._row(row) for row in load.rows]

    def _move(self, load: ModelBatch) -> None:
        size = self.block_tokens
        for move in load.moves:
            self.on_move(move.kind)
            self._move_states(move)
            source = range(move.source * size, move.source * size + size)
            target = range(move.target * size, move.target * size + size)
            if move.kind == "swap_out":
                self.host[move.target] = [self.device.get(slot) for slot in source]
                continue
            content = self.host[move.source] if move.kind == "swap_in" else [self.device.get(slot) for slot in source]
            for slot, value in zip(target, content, strict=True):
                if value is None:
                    self.device.pop(slot, None)
                else:
                    self.device[slot] = value

    def _move_states(self, move: Move) -> None:
        if self.window is None:
            return
        sources = self.host_states if move.kind == "swap_in" else self.states
        targets = self.host_states if move.kind == "swap_out" else self.states
        for slot in range(self.window.slots):
            content = sources.get((move.source, slot))
            targets.pop((move.target, slot), None)
            if content is not None:
                targets[move.target, slot] = content

    def _state_of(self, slot: int) -> tuple[int, int]:
        """Return the block and the place in it where a token of some slot keeps its state."""
        assert self.window is not None
        return slot // self.block_tokens, slot % self.block_tokens % self.window.slots

    def _convolve(self, start: int, slots: list[int], written: list[Content], *, live: bool) -> None:
        """Read what the tokens before `start` have left, then write what the new ones leave."""
        if self.window is None:
            return
        for position in range(max(start - self.window.reach, 0), start) if live else ():
            found = self.states.get(self._state_of(slots[position]))
            assert found == written[position], "a convolution sees another past"
        for position in range(start, len(written)):
            self.states[self._state_of(slots[position])] = written[position]

    def _row(self, row: Row) -> Outcome:
        request, stop = row.request, row.start + row.count
        slots = request.table.slots(0, stop + len(row.drafts))
        return self._run(request, row.start, request.tokens[:stop], row.drafts, slots, ends=row.reaches_end)

    def _run(
        self, request: Request, start: int, known: list[int], drafts: list[int], slots: list[int], *, ends: bool
    ) -> Outcome:
        tokens, tenant = [*known, *drafts], self.tenants.get(request.id, "")
        written = [(tenant, prefix) for prefix in self.prefixes.along(tokens)]
        for position in range(start, len(tokens)):
            self.device[slots[position]] = written[position]
        self._convolve(start, slots, written, live=request.state is not RequestState.FINISHED)
        if request.state is RequestState.FINISHED:
            return TokenOutcome()  # its blocks are others' meanwhile: what it reads is of no consequence
        assert [self.device.get(slot) for slot in slots] == written, "a page holds another prefix"
        if request.task == "score":
            return ScoreOutcome()
        if not ends:
            return TokenOutcome()
        greedy = [next_token(tokens[:stop]) for stop in range(len(known), len(tokens) + 1)]
        return TokenOutcome(choices=[SampledToken(token) for token in accepted(drafts, greedy)])


@dataclass
class Launched:
    """A running step: its input and its outcomes."""

    load: ModelBatch
    # For each row the request, tokens, drafts, slots, and whether it reaches the request's end.
    rows: list[tuple[Request, list[int], list[int], list[int], bool]]
    outcomes: list[Outcome] = field(default_factory=list)
    done: bool = False
    asked: int = 0
    span: tuple[float, float] = (0.0, 0.0)


@dataclass
class LateEngine(PretendEngine):
    """The same on its own device: it executes the batch as it was at the launch, when the host waits for it.

    It uses its own sampled tokens where the host does not know them, and refuses what no device could do.
    """

    overlaps = True
    place = RequestState.RUNNING  # state of a request in a step
    eager: bool = False  # execute at the launch
    slow: int = 0  # how often `done` is False first
    fail_wait: bool = False
    under_way: Launched | None = None
    last: dict[Request, int] = field(default_factory=dict)  # the tokens that the device sampled in the step before
    foreseen: int = 0  # steps launched with tokens that the host did not know
    prepared: int = 0  # steps planned ahead

    def samples_on_device(self, request: Request) -> bool:
        return True

    def prepare(self, load: ModelBatch) -> None:
        self.prepared += 1

    def launch(self, load: ModelBatch) -> Launched:
        if self.fail_next:
            self.fail_next = False
            self._spoil(load)
            raise RuntimeError("pretended fault")
        assert self.under_way is None, "two steps under way"
        rows = []
        for row in load.rows:
            request, stop = row.request, row.start + row.count
            assert request.state is self.place, "a step after its request left"
            tokens = request.tokens[:stop]
            slots = request.table.slots(0, stop + len(row.drafts))
            rows.append((request, tokens, list(row.drafts), slots, stop >= len(request.tokens)))
        self.under_way = Launched(load, rows)
        self.foreseen += any(row.start >= len(row.request.tokens) for row in load.rows)
        if self.eager:
            self._execute(self.under_way)
        return self.under_way

    def _spoil(self, load: ModelBatch) -> None:
        """Write what a step may have written before it failed."""
        for row in load.rows if self.window is not None else ():
            stop = row.start + row.count + len(row.drafts)
            for slot in row.request.table.slots(row.start, stop):
                self.states[self._state_of(slot)] = ("", "spoiled")

    def done(self, ticket: Launched) -> bool:
        ticket.asked += 1
        return ticket.asked > self.slow

    def wait(self, ticket: Launched) -> None:
        assert self.under_way is ticket
        self.under_way = None
        if self.fail_wait:
            self.fail_wait = False
            raise RuntimeError("pretended fault")
        self._execute(ticket)

    def collect(self, ticket: Launched) -> list[Outcome]:
        assert ticket.done
        self.phases = {"device": ticket.span}
        return ticket.outcomes

    def _execute(self, ticket: Launched) -> None:
        if ticket.done:
            return
        ticket.done = True
        self._move(ticket.load)
        begin = self.clock.now
        self.clock.now += self.step_s + self.token_s * sum(row.count + len(row.drafts) for row in ticket.load.rows)
        ticket.span = (begin, self.clock.now)
        chosen: dict[Request, int] = {}
        for row, (request, tokens, drafts, slots, ends) in zip(ticket.load.rows, ticket.rows, strict=True):
            known = [*tokens]
            if len(known) < row.start + row.count:
                known.append(self.last[request])
            assert len(known) == row.start + row.count, "more than one token that the host does not know"
            ticket.outcomes.append(self._run(request, row.start, known, drafts, slots, ends=ends))
            outcome = ticket.outcomes[-1]
            if isinstance(outcome, TokenOutcome) and outcome.choices:
                chosen[request] = outcome.choices[-1].token
        self.last = chosen


@dataclass
class LateConcurrentPrefill(LateEngine):
    """Runs prompts beside the device's steps, on the same pages; it ends before or after the step."""

    place = RequestState.CONCURRENT
    most_launches: int = 2
    launched: int = 0
    together: list[Launched] = field(default_factory=list)

    @classmethod
    def of(cls, engine: LateEngine, *, eager: bool, slow: int) -> LateConcurrentPrefill:
        """Return an concurrent_prefill on an engine's pages."""
        lane = cls(engine.clock, engine.block_tokens, eager=eager, slow=slow)
        lane.device, lane.host, lane.tenants = engine.device, engine.host, engine.tenants
        lane.prefixes, lane.states = engine.prefixes, engine.states
        engine.concurrent_prefill = lane
        return lane

    def takes(self, request: Request) -> bool:
        return True

    def launch(self, load: ModelBatch) -> Launched:
        assert not load.moves
        assert len(self.together) < self.most_launches, "too many under way"
        self.launched += 1
        ticket = super().launch(load)
        self.under_way = None
        ticket.asked = -self.slow * (self.launched % 2)  # so that prompt and step end in any order
        self.together.append(ticket)
        return ticket

    def wait(self, ticket: Launched) -> None:
        self.together.remove(ticket)
        self.under_way = ticket
        super().wait(ticket)


class Simulation:
    """A core over pretended pages, and its output so far."""

    def __init__(
        self,
        *,
        blocks: int,
        host_blocks: int,
        block_tokens: int = 4,
        prefix_cache: bool = True,
        make_engine: Callable[[Clock, int], PretendEngine] = PretendEngine,
        cloning: Cloning | None = None,
        window: StateWindow | None = None,
        **limits,
    ):
        self.clock = Clock()
        self.pool = BlockPool(blocks, block_tokens, key=b"test", prefix_cache=prefix_cache, state=window)
        host = BlockPool(host_blocks, block_tokens, prefix_cache=False)
        self.engine = make_engine(self.clock, block_tokens)
        self.engine.window = window
        if self.engine.concurrent_prefill is not None:
            self.engine.concurrent_prefill.window = window
        self.scheduler = Scheduler(
            {"chat": ModelResources(self.pool, host, CostModel(), abilities=TEXT)}, Limits(**limits)
        )
        self.intake = Intake(Letters(), self.pool, vocabulary=VOCABULARY, context_tokens=10_000, draw_seed=lambda: 0)
        self.letters = Letters()
        self.core = Core(
            self.scheduler,
            {"chat": self.engine},
            {"chat": ChatJobFactory(self.intake, self.letters)},
            clock=self.clock,
            max_waiting=1000,
            cloning=cloning,
        )
        self.texts: dict[str, str] = {}
        self.counted: dict[str, int] = {}  # tokens
        self.ends: dict[str, FromEngine] = {}
        self.steps = 0

    def send(self, *commands: ToEngine) -> list[FromEngine]:
        self._note(commands)
        return self._collect(self.core.handle(commands))

    def pause_session(self, session: str) -> Pause:
        """Return a command that pauses all requests of a session that the core knows by now."""
        jobs = self.core._jobs.jobs.items()
        return Pause(tuple(name for name, job in jobs if job.submit.session == session))

    def _note(self, commands: Sequence[ToEngine]) -> None:
        for command in commands:
            if isinstance(command, Submit):
                self.engine.tenants[command.request_id] = command.tenant

    def step(self, *surprises: ToEngine) -> list[FromEngine]:
        """Run a step; the surprises arrive at the moment a running step ends."""
        self.steps += 1
        self._note(surprises)
        coming = list(surprises)

        def receive() -> list[ToEngine]:
            came, coming[:] = list(coming), []
            return came

        messages = self._collect(self.core.step(receive))
        if coming:  # no step was running
            messages += self.send(*coming)
        self.scheduler.check()
        jobs = self.core._jobs
        wanting = {job for job in jobs.jobs.values() if job.wants_work}
        assert wanting <= set(jobs.wanting_work()), "a job that wants to work is not asked"
        return messages

    def run(self, most: int = 100_000) -> None:
        """Run steps until nothing is left to do; fail after `most` steps."""
        start = self.steps
        while self.core.busy:
            assert self.steps - start < most, "the engine is stuck"
            self.step()

    def _collect(self, messages: list[FromEngine]) -> list[FromEngine]:
        for message in messages:
            if isinstance(message, Text):
                assert message.request_id not in self.ends, "text after the end"
                assert message.tokens > self.counted.get(message.request_id, 0), "text of no token"
                self.counted[message.request_id] = message.tokens
                self.texts[message.request_id] = self.texts.get(message.request_id, "") + message.text
            elif hasattr(message, "request_id") and type(message).__name__ in ("Finished", "Refused"):
                assert message.request_id not in self.ends, "a second end"
                self.ends[message.request_id] = message
                if isinstance(message, Finished):
                    assert self.counted.get(message.request_id, 0) <= message.stats.output_tokens
        return messages


def reason(message: FromEngine) -> str:
    """Return how a request ended."""
    return message.reason if isinstance(message, Finished) else "refused"
