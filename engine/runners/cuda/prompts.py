"""Runs the rows of a step that are no plain decodes on a device: prompts, drafts to verify, texts to score.

Their input goes to the device in one copy, they run as a graph if one is large enough, and the results are copied back;
the host does not wait in between. Tokens that the host must choose (a grammar, alternatives wanted) are chosen when the
step is collected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import PENALTIES, POSITION, Penalties, sample
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.joint_graphs import JointGraphs, JointShape
from voxlane.engine.runners.cuda.prompt_graphs import PromptGraphs, Shape
from voxlane.engine.runners.cuda.rows import PACKET, is_penalised, needs_host, set_penalties, write_rules
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer, layout_of
from voxlane.engine.runners.decoder import (
    SCORE_ROWS,
    DecoderModel,
    Outcome,
    ScoreOutcome,
    TokenOutcome,
    scored_range,
    token_outcome,
)
from voxlane.engine.runners.sampler import SampledToken, choose
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import ChatPayload, Request

Numbers = NDArray[np.int32]
MASKS = 32
"""How many sets of tokens are kept on the device."""


@dataclass(slots=True)
class PromptTicket:
    """Rows under way. A position is a token of the step after which one is chosen; a row with drafts has several."""

    rows: list[Row]
    starts: list[int]  # where each row's tokens begin in the step, and where the last row's end
    wanted: list[int] = field(default_factory=list)  # by position: its token's index in the step
    owners: list[int] = field(default_factory=list)  # by position: an index into the rows
    plain: list[int] = field(default_factory=list)  # positions that the device chooses for
    places: list[int] = field(default_factory=list)  # of `plain`: where their choices are in `beside` and `chosen`
    chosen: Tensor | None = None  # [2, some] on the host
    probes: list[int] = field(default_factory=list)  # positions of probes
    probed: Tensor | None = None  # of `probes`: [probes, 3] on the host, as _probe makes them
    special: list[int] = field(default_factory=list)  # positions that the host chooses for
    logits: Tensor | None = None  # of `special`, on the device
    scored: list[int] = field(default_factory=list)  # indices of rows whose text is scored
    sums: Tensor | None = None  # of `scored`: [scored, 2] on the host, the sum and whether all of it was finite

    @property
    def requests(self) -> list[Request]:
        """The request of each position."""
        return [self.rows[owner].request for owner in self.owners]

    @property
    def size(self) -> tuple[int, int, int]:
        """Tokens, rows or positions if these are more, and the positions of the longest row."""
        longest = max(row.start + row.count + len(row.drafts) for row in self.rows)
        return self.starts[-1], max(len(self.rows), len(self.wanted)), longest


class PromptRunner:
    """Runs rows that are no plain decodes."""

    def __init__(
        self, model: DecoderModel, cache: KVCache, device: torch.device, beside: Tensor, graphs: PromptGraphs
    ) -> None:
        """Write choices to `beside`, [2, some] int32 on the device: the next step may go on with them."""
        self._model = model
        self._cache = cache
        self._device = device
        self._beside = beside
        self._graphs = graphs
        self._pinned = device.type == "cuda"
        self._masks: dict[frozenset[int], Tensor] = {}

    def rehearse(self, hidden: Tensor) -> None:
        """Choose tokens after some hidden states outside of graphs, to compile the kernels that this needs."""
        for count in (1, 2, 3):  # one and two rows have products of their own
            logits = self._model.logits(self._pick(hidden, list(range(count))))
            rules = self._to_device(np.zeros(count * PACKET, dtype=np.int32)).view(count, PACKET)
            chosen, fed = self._beside.new_empty((2, count)), rules[:, 0].long()
            sample(logits, rules, chosen[0], chosen[1].view(torch.float32))
            penalties = Penalties.empty(count, logits.shape[1], self._device)
            sample(logits, rules, chosen[0], chosen[1].view(torch.float32), penalties, fed)

    def launch(self, ticket: PromptTicket) -> None:
        """Queue described rows on the device; `keep` must have been called for the rows before."""
        shape = self._graphs.shape(*ticket.size)
        with torch.inference_mode():
            if shape is None or ticket.scored:
                self._launch_apart(ticket)
            else:
                self._launch_graph(ticket, shape, partial(self._graphs.launch, shape))

    def launch_jointly(self, ticket: PromptTicket, graphs: JointGraphs, shape: JointShape) -> None:
        """Queue described rows in one step with decodes, whose packet is written."""
        with torch.inference_mode():
            self._launch_graph(ticket, shape[1], partial(graphs.launch, shape))

    def keep(self, ticket: PromptTicket) -> None:
        """Copy the results of finished rows, so that the next launch does not overwrite them."""
        if ticket.chosen is not None:
            ticket.chosen = ticket.chosen.clone()

    def collect(self, ticket: PromptTicket) -> list[Outcome]:
        """Return the outcomes of finished rows."""
        requests = ticket.requests
        outcomes: list[Outcome] = [TokenOutcome() for _ in ticket.rows]
        choices: list[SampledToken | None] = [None] * len(requests)
        if ticket.chosen is not None:
            tokens, bits = ticket.chosen.numpy()
            logprobs = bits.view(np.float32)
            for position, place in zip(ticket.plain, ticket.places, strict=True):
                wanted, token = requests[position].sampling.logprobs == 0, int(tokens[place])
                choices[position] = (
                    SampledToken(token, float(logprobs[place]) if wanted else None) if token >= 0 else None
                )
        if ticket.probed is not None:
            for position, (token, sound, logprob) in zip(ticket.probes, ticket.probed.tolist(), strict=True):
                choices[position] = SampledToken(int(token), logprob) if sound else None
        if ticket.logits is not None:
            found = choose(ticket.logits.cpu(), [requests[position] for position in ticket.special])
            for position, choice in zip(ticket.special, found, strict=True):
                choices[position] = choice
        for owner, group in itertools.groupby(zip(ticket.owners, choices, strict=True), key=lambda pair: pair[0]):
            outcomes[owner] = token_outcome(ticket.rows[owner], [choice for _, choice in group])
        if ticket.sums is not None:
            for index, (total, finite) in zip(ticket.scored, ticket.sums.tolist(), strict=True):
                start, stop = scored_range(ticket.rows[index])
                outcomes[index] = ScoreOutcome(total, max(stop - start, 0), failed=not finite)
        return outcomes

    @staticmethod
    def describe(rows: list[Row]) -> PromptTicket:
        """Return rows to be launched: where their tokens lie in the step, and who chooses the next ones."""
        starts = list(itertools.accumulate((row.count + len(row.drafts) for row in rows), initial=0))
        ticket = PromptTicket(rows, starts)
        for index, (row, start, stop) in enumerate(zip(rows, starts, starts[1:], strict=False)):
            if row.request.task == "score":
                ticket.scored.append(index)
            elif row.reaches_end:
                positions = range(start + row.count - 1, stop)
                ticket.wanted += positions
                ticket.owners += [index] * len(positions)
        for position, request in enumerate(ticket.requests):
            if _is_probe(request):
                ticket.probes.append(position)
            elif needs_host(request) and not _is_only_barred(request):
                ticket.special.append(position)
            else:
                ticket.plain.append(position)
        return ticket

    # ---- queued on the device

    def _launch_graph(self, ticket: PromptTicket, shape: Shape, launch: Callable[[], None]) -> None:
        packet, requests = self._graphs.packet(shape), ticket.requests
        packet.clear("slots")
        self._fill(ticket, packet)
        packet.host["starts"][len(ticket.starts) :] = ticket.starts[-1]
        packet.host["wanted"][: len(ticket.wanted)] = ticket.wanted
        for numbers, request in zip(packet.host["rules"], requests, strict=False):
            _write_rules(numbers, request)
        launch()
        ticket.places = ticket.plain
        if ticket.plain:
            ticket.chosen = self._graphs.chosen
        # Other positions get their choices from the same hidden states, after the graph.
        ruled = [at for at in ticket.plain if is_penalised(requests[at]) or requests[at].next_barred]
        hidden = self._graphs.hidden
        assert hidden is not None
        if ticket.special:
            ticket.logits = self._model.logits(self._pick(hidden, ticket.special)).float()
        if ticket.probes:
            logits = self._model.logits(self._pick(hidden, ticket.probes))
            ticket.probed = self._probe(logits, [requests[position] for position in ticket.probes])
        if ruled:
            found = self._sample(self._model.logits(self._pick(hidden, ruled)), [requests[at] for at in ruled])
            places = self._to_device(np.array(ruled, dtype=np.int32)).long()
            self._beside[:, places] = found
            self._graphs.chosen.copy_(self._beside[:, : self._graphs.chosen.shape[1]], non_blocking=True)

    def _launch_apart(self, ticket: PromptTicket) -> None:
        """Launch kernel by kernel: for steps that no graph is large enough for."""
        rows, starts, requests = ticket.rows, ticket.starts, ticket.requests
        width = max(len(row.request.table.blocks) for row in rows)
        shapes = {
            **dict.fromkeys(("tokens", "positions", "slots"), (starts[-1],)),
            "starts": (len(starts),),
            "lengths": (len(rows),),
            "tables": (len(rows), width),
        }
        packet = StagingBuffer(shapes, PacketMemory.of(shapes, self._device))
        self._fill(ticket, packet)
        packet.send()
        part = packet.device
        layout = layout_of(
            part,
            max_query=max(row.count + len(row.drafts) for row in rows),
        )
        hidden = self._model.forward(part["tokens"].long(), layout, self._cache.layers)
        if ticket.special:
            ticket.logits = self._logits(hidden, ticket, ticket.special).float()
        if ticket.probes:
            asked = [requests[position] for position in ticket.probes]
            ticket.probed = self._probe(self._logits(hidden, ticket, ticket.probes), asked)
        if ticket.plain:
            found = self._sample(self._logits(hidden, ticket, ticket.plain), [requests[n] for n in ticket.plain])
            if found.shape[1] <= self._beside.shape[1]:
                self._beside[:, : found.shape[1]] = found
            ticket.places = list(range(found.shape[1]))
            ticket.chosen = self._to_host(found)
        if ticket.scored:
            sums = [self._score(rows[index], hidden[starts[index] : starts[index + 1]]) for index in ticket.scored]
            ticket.sums = self._to_host(torch.stack(sums))

    def _fill(self, ticket: PromptTicket, packet: StagingBuffer) -> None:
        """Write the rows' tokens, positions and slots."""
        size, host = self._cache.block_tokens, packet.host
        for index, (row, first, last) in enumerate(zip(ticket.rows, ticket.starts, ticket.starts[1:], strict=False)):
            blocks, stop = row.request.table.blocks, row.start + last - first
            host["tables"][index, : len(blocks)] = blocks
            host["tokens"][first:last] = (*row.request.tokens[row.start : row.start + row.count], *row.drafts)
            host["positions"][first:last] = where = np.arange(row.start, stop)
            host["slots"][first:last] = host["tables"][index, where // size] * size + where % size
            host["lengths"][index] = stop
        host["starts"][: len(ticket.starts)] = ticket.starts

    def _logits(self, hidden: Tensor, ticket: PromptTicket, positions: list[int]) -> Tensor:
        return self._model.logits(self._pick(hidden, [ticket.wanted[position] for position in positions]))

    def _pick(self, rows: Tensor, places: list[int]) -> Tensor:
        return rows.index_select(0, self._to_device(np.array(places, dtype=np.int32)))

    def _sample(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """Return choices for rows of logits, which it may overwrite: [2, rows] as graphs write them."""
        for row, request in enumerate(requests):
            if barred := request.next_barred:
                logits[row].masked_fill_(self._mask(barred), -torch.inf)
        packet = np.zeros((len(requests), PACKET), dtype=np.int32)
        for numbers, request in zip(packet, requests, strict=True):
            _write_rules(numbers, request)
        penalties, fed = self._penalties(packet, requests)
        chosen = self._beside.new_empty((2, len(requests)))
        sent = self._to_device(packet.reshape(-1)).view(packet.shape)
        sample(logits, sent, chosen[0], chosen[1].view(torch.float32), penalties, fed)
        return chosen

    def _probe(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """Queue, per row of logits: the likeliest token, whether its logit is finite, its ends' log-probability."""
        ends = torch.stack([self._mask(_ends_of(request)) for request in requests])
        peaks, best = logits.float().max(dim=1)
        likely = logits.masked_fill(~ends, -torch.inf).logsumexp(dim=1) - logits.logsumexp(dim=1)
        return self._to_host(torch.stack([best, torch.isfinite(peaks), likely], dim=1).double())

    def _mask(self, tokens: frozenset[int]) -> Tensor:
        """Return which tokens of the vocabulary are among some, on the device; a template has a few such sets."""
        if tokens not in self._masks:
            if len(self._masks) >= MASKS:
                self._masks.clear()
            mask = torch.zeros(self._model.vocab_size, dtype=torch.bool)
            mask[sorted(tokens)] = True
            self._masks[tokens] = mask.to(self._device)
            if self._pinned:
                torch.cuda.current_stream(self._device).synchronize()  # later steps may run on another stream
        return self._masks[tokens]

    def _penalties(self, packet: Numbers, requests: Sequence[Request]) -> tuple[Penalties | None, Tensor | None]:
        """Return penalty slots, named in `packet`, for requests that need one, and each request's newest token."""
        own = [index for index, request in enumerate(requests) if is_penalised(request)]
        if not own:
            return None, None
        penalties = Penalties.empty(len(own), self._model.vocab_size, self._device)
        for slot, index in enumerate(own):
            set_penalties(penalties, slot, requests[index], len(requests[index].tokens) - 1)
            packet[index, PENALTIES] = slot + 1
        return penalties, self._to_device(np.array([request.tokens[-1] for request in requests], dtype=np.int32)).long()

    def _score(self, row: Row, hidden: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of the text's own next tokens, and whether all were finite."""
        start, stop = scored_range(row)
        targets = self._to_device(np.array(row.request.tokens[start + 1 : stop + 1], dtype=np.int32)).long()
        hidden = hidden[start - row.start :]
        total = torch.zeros(2, dtype=torch.float64, device=self._device)
        total[1] = 1.0
        for begin in range(0, len(targets), SCORE_ROWS):
            part = targets[begin : begin + SCORE_ROWS]
            logprobs = torch.log_softmax(self._model.logits(hidden[begin : begin + len(part)]), dim=1)
            picked = logprobs.gather(1, part[:, None])
            total[0] += picked.double().sum()
            total[1] *= torch.isfinite(picked).all()
        return total

    def _to_device(self, numbers: Numbers) -> Tensor:
        # Pinned memory, which torch keeps until it was read: a copy from other memory waits for all queued work.
        staged = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=self._pinned)
        staged.numpy()[:] = numbers
        return staged.to(self._device, non_blocking=True)

    def _to_host(self, values: Tensor) -> Tensor:
        """Queue a copy to the host; it is complete when the step is."""
        there = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._pinned)
        return there.copy_(values, non_blocking=True)


def _ends_of(request: Request) -> frozenset[int]:
    return request.payload.ends if isinstance(request.payload, ChatPayload) else frozenset()


def _is_probe(request: Request) -> bool:
    return bool(_ends_of(request))


def _is_only_barred(request: Request) -> bool:
    """Return whether the device can choose the token, once some are barred."""
    ruled = isinstance(request.payload, ChatPayload) and request.payload.constraint is not None
    return not ruled and request.sampling.logprobs <= 0


def _write_rules(numbers: Numbers, request: Request) -> None:
    numbers[POSITION] = len(request.tokens) - 1
    write_rules(numbers, request)
