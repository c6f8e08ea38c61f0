"""Critical prompts on a device, beside the step under way: graphs, buffers and a stream of their own, the same pages.

The stream goes first: wherever a block of the step's threads ends, theirs begin. It knows rows, models and tensors; who
may come here, and with which blocks, is express.py's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from voxlane.engine.cache import KVCache
from voxlane.engine.cuda.device import Stopwatch, watched
from voxlane.engine.cuda.prompt_graphs import PromptGraphs
from voxlane.engine.cuda.prompts import Prompts, PromptTicket
from voxlane.engine.cuda.rows import is_penalised, needs_host
from voxlane.engine.express import EXPRESS_ROWS, EXPRESS_TOKENS
from voxlane.engine.plan import Load
from voxlane.engine.request import Request
from voxlane.engine.runner import Immediate, Model, Outcome


@dataclass(slots=True)
class Ticket:
    """Prompts under way."""

    prompts: PromptTicket
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    over: bool = False


class CudaExpress(Immediate):
    """Runs a language model on prompts, one launch at a time, whatever else runs."""

    overlaps = True

    def __init__(self, model: Model, cache: KVCache, device: torch.device, *, context_tokens: int) -> None:
        beside = torch.zeros((2, EXPRESS_ROWS), dtype=torch.int32, device=device)
        self._device = device
        self._graphs = PromptGraphs(
            *(model, cache, device, beside), max_rows=EXPRESS_ROWS, context_tokens=context_tokens
        )
        self._prompts = Prompts(model, cache, device, beside, self._graphs)
        self._watch = Stopwatch(device)
        self.phases: dict[str, tuple[float, float]] = {}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def capture(self, progress: Callable[[float], None] = lambda done: None) -> None:
        """Capture the steps; nothing may be running, and never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        with self._aside():
            # Memory of their own, too: another graph may run at the same time.
            self._graphs.capture(torch.cuda.graph_pool_handle(), EXPRESS_TOKENS, progress, self._stream)
        torch.cuda.synchronize(self._device)

    def takes(self, request: Request) -> bool:
        """Return whether the request's token can be chosen by a graph alone."""
        fits = self._graphs.shape(EXPRESS_TOKENS, EXPRESS_ROWS, len(request.tokens)) is not None
        return fits and not needs_host(request) and not is_penalised(request)

    def launch(self, load: Load) -> Ticket:
        """Queue prompts; those before must have been waited for."""
        assert not load.moves, "whoever comes here needs no block moved"
        begin = time.monotonic()
        with watched(self._device), self._aside():
            self._watch.start()
            ticket = Ticket(self._prompts.launch(load.rows))
            self._watch.stop()
        ticket.phases["launch"] = (begin, time.monotonic())
        return ticket

    def done(self, ticket: Ticket) -> bool:
        """Return whether the device is through with them."""
        with watched(self._device):
            return ticket.over or self._watch.done()

    def wait(self, ticket: Ticket) -> None:
        """Wait for prompts, and keep what the next ones will overwrite."""
        if ticket.over:
            return
        with watched(self._device):
            ticket.phases["device"] = self._watch.wait()
        self._prompts.keep(ticket.prompts)
        ticket.over = True

    def collect(self, ticket: Ticket) -> list[Outcome]:
        """Return the outcomes of the rows in their order."""
        self.wait(ticket)
        self.phases = ticket.phases
        return self._prompts.collect(ticket.prompts)

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
