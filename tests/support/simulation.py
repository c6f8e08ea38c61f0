"""The engine's loop without a model: pages that remember which prefix was written to them, and a clock that is told.

A token depends on the whole prefix before it, and reading a page that holds anything else fails at once: so every
wrong block, lost copy or stale cache entry shows, and a request's right output is known without running it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from voxlane.engine.api import ChatMessage, Finished, FromEngine, Submit, Text, ToEngine, Tool
from voxlane.engine.core import Core
from voxlane.engine.cost import CostModel
from voxlane.engine.intake import Intake
from voxlane.engine.jobs.text import TextDesk
from voxlane.engine.kv import BlockPool
from voxlane.engine.lookup import accepted
from voxlane.engine.plan import Load, Station
from voxlane.engine.runner import Outcome
from voxlane.engine.sampler import Choice
from voxlane.engine.scheduler import Limits, Scheduler
from voxlane.engine.tools import CallStyle

VOCABULARY = 30
EOS = 1
Content = tuple[str, tuple[int, ...]]  # tenant, prefix


def next_token(prefix: Sequence[int]) -> int:
    """Return what the pretended model says after `prefix`: periodic enough for guesses to be right sometimes."""
    seed = bytes(prefix[-2:]) if len(prefix) % 3 else bytes(prefix[-6:])
    return 2 + hashlib.blake2b(seed, digest_size=2).digest()[0] % (VOCABULARY - 2)


def expected_text(prompt: str, count: int) -> str:
    """Return the output of a request that runs alone."""
    tokens = Letters().encode(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return "".join(chr(64 + token) for token in tokens[start:])


class Letters:
    """A tokenizer of single characters."""

    vocab_size = VOCABULARY
    eos_ids = frozenset({EOS})
    special_ids = frozenset({0, EOS})

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        return [ord(letter) - 64 for letter in text]

    call_style = CallStyle(opening="")

    def encode_chat(self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool], begin: str) -> list[int]:
        return self.encode("".join(message.content for message in messages) + begin)

    def encode_open(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool]
    ) -> tuple[list[int], frozenset[int]]:
        return self.encode("".join(message.content for message in messages)), self.eos_ids

    def token_bytes(self, token: int) -> bytes:
        return bytes([64 + token])

    def token_name(self, token: int) -> str:
        return f"<{token}>"


@dataclass
class Clock:
    """Time as the test tells it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class PretendEngine:
    """Carries out plans on pages that hold prefixes."""

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

    def run(self, load: Load) -> list[Outcome]:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("pretended fault")
        self._move(load)
        tokens = sum(row.count + len(row.drafts) for row in load.rows)
        self.clock.now += self.step_s + self.token_s * tokens
        return [self._row(row) for row in load.rows]

    def _move(self, load: Load) -> None:
        size = self.block_tokens
        for move in load.moves:
            self.on_move(move.kind)
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

    def _row(self, row) -> Outcome:
        request = row.request
        tokens = [*request.tokens[: row.start + row.count], *row.drafts]
        tenant = self.tenants.get(request.id, "")
        slots = request.table.slots(0, len(tokens))
        for position in range(row.start, len(tokens)):
            self.device[slots[position]] = (tenant, tuple(tokens[: position + 1]))
        for position, slot in enumerate(slots):
            assert self.device.get(slot) == (tenant, tuple(tokens[: position + 1])), "a page holds another prefix"
        if not row.reaches_end:
            return Outcome()
        first = row.start + row.count
        greedy = [next_token(tokens[:stop]) for stop in range(first, len(tokens) + 1)]
        return Outcome(choices=[Choice(token) for token in accepted(row.drafts, greedy)])


class Simulation:
    """A core over pretended pages, and what came out of it so far."""

    def __init__(self, *, blocks: int, host_blocks: int, block_tokens: int = 4, prefix_cache: bool = True, **limits):
        self.clock = Clock()
        self.pool = BlockPool(blocks, block_tokens, key=b"test", prefix_cache=prefix_cache)
        host = BlockPool(host_blocks, block_tokens, prefix_cache=False)
        self.engine = PretendEngine(self.clock, block_tokens)
        self.scheduler = Scheduler({"chat": Station(self.pool, host, CostModel())}, Limits(**limits))
        self.intake = Intake(Letters(), self.pool, vocabulary=VOCABULARY, context_tokens=10_000, draw_seed=lambda: 0)
        self.letters = Letters()
        desk = TextDesk(self.intake, self.letters)
        self.core = Core(self.scheduler, {"chat": self.engine}, {"chat": desk}, clock=self.clock, max_waiting=1000)
        self.texts: dict[str, str] = {}
        self.ends: dict[str, FromEngine] = {}
        self.steps = 0

    def send(self, *commands: ToEngine) -> list[FromEngine]:
        for command in commands:
            if isinstance(command, Submit):
                self.engine.tenants[command.request_id] = command.tenant
        return self._collect(self.core.handle(commands))

    def step(self) -> list[FromEngine]:
        self.steps += 1
        messages = self._collect(self.core.step())
        self.scheduler.check()
        return messages

    def run(self, most: int = 100_000) -> None:
        """Step until nothing is left to do, or fail after `most` steps."""
        start = self.steps
        while self.core.busy:
            assert self.steps - start < most, "the engine is stuck"
            self.step()

    def _collect(self, messages: list[FromEngine]) -> list[FromEngine]:
        for message in messages:
            if isinstance(message, Text):
                assert message.request_id not in self.ends, "text after the end"
                self.texts[message.request_id] = self.texts.get(message.request_id, "") + message.text
            elif hasattr(message, "request_id") and type(message).__name__ in ("Finished", "Refused"):
                assert message.request_id not in self.ends, "a second end"
                self.ends[message.request_id] = message
        return messages


def reason(message: FromEngine) -> str:
    """Return how a request ended."""
    return message.reason if isinstance(message, Finished) else "refused"
