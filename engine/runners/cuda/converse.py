"""Runs LFM2-Audio's part of a plan on a CUDA device: clips, the backbone, tokens, frames and samples each as graphs.

codec_streams.py says how a step goes. Clips are encoded at the beginning of the step that reads their first row. Tokens
are drawn on the device; requests with penalties or biases have theirs chosen on the host, from the same hidden rows.
The same code runs on a CPU: the tests compare it with the host's ConverseRunner.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.streaming_codec import StreamingCodec
from voxlane.engine.runners.codec_streams import LEADS
from voxlane.engine.runners.converse import ConverseRunner, dialogue_of, stream_of, unencoded
from voxlane.engine.runners.cuda.codec_streams import CodecStep, CudaCodecRunner, KnownStream, Progress
from voxlane.engine.runners.cuda.conformer_graphs import ConformerGraphs
from voxlane.engine.runners.cuda.converse_graphs import DialogueGraphs, SoundGraphs, TextGraphs
from voxlane.engine.runners.cuda.device import Stopwatch
from voxlane.engine.runners.cuda.frame_rings import FrameRings
from voxlane.engine.runners.cuda.rows import is_penalised, write_rules
from voxlane.engine.runners.cuda.staged_graphs import Size
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.runners.sampler import choose
from voxlane.engine.schedule.plan import ModelBatch, Row


@dataclass(slots=True)
class DialogueStep(CodecStep):
    """A step under way that makes tokens too."""

    written: list[int] = field(default_factory=list)  # rows that make a token
    tokens: dict[int, int] = field(default_factory=dict)  # by row, once it is done; -1: none can be chosen


class CudaConverse(CudaCodecRunner, ConverseRunner):
    """Runs LFM2-Audio and its codec on one device."""

    def __init__(
        self,
        model: Lfm2Audio,
        codec: StreamingCodec,
        cache: KVCache,
        device: torch.device,
        *,
        slots: int,
        max_rows: int,
        max_tokens: int,
    ) -> None:
        """Prepare for steps of at most so many rows and positions."""
        super().__init__(model, codec, cache, slots=slots, max_rows=max_rows)
        self._open(device, FrameRings(slots + LEADS, model.config.groups, device), max_rows=max_rows)
        self._graphs = DialogueGraphs(
            model,
            cache,
            device,
            max_rows=max_rows,
            max_tokens=max_tokens,
            context_tokens=min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        )
        self._encoder = ConformerGraphs(model.encoder, device)
        hidden = self._graphs.hidden
        self._text = TextGraphs(model, hidden, device, max_rows=max_rows)
        self._speech = SoundGraphs(model, hidden, self._rings, self._scratch, device, max_rows=max_rows)

    def _capture(self, pool: object, progress: Progress) -> None:
        self._encoder.capture(pool)
        self._graphs.capture(pool, lambda done: progress(done / 2))
        self._text.capture(pool, lambda done: progress((2 + done) / 4))
        self._speech.capture(pool, lambda done: progress((3 + done) / 4))

    # ---- queued on the device

    def _launch(self, load: ModelBatch, watch: Stopwatch) -> DialogueStep:
        rows = load.rows
        streams = [stream_of(row) for row in rows]
        ready = {index: self._meet(stream) for index, stream in enumerate(streams) if stream.slot >= 0}
        clips = unencoded([(dialogue_of(row), row.start, row.start + row.count) for row in rows])
        # Before the watch begins: what a step costs does not depend on the clips in it.
        self._clips.encode(clips, partial(self.model.encode, encode=self._encoder.encode))
        if behind := any(streams[index].stale for index in ready):
            watch.start()
        self._catch_up_known((streams[index], known) for index, known in ready.items())
        size = self._fill(rows)
        if not behind:
            watch.start()  # the device has been idle while the packet was written
        self._graphs.launch(size)
        written = [index for index, row in enumerate(rows) if dialogue_of(row).token_due(row.start + row.count)]
        due = [index for index, row in enumerate(rows) if streams[index].makes_frame(row)]
        self._launch_text(written, rows)
        self._launch_speech([(index, rows[index], ready[index]) for index in due])
        before = {index: (ready[index].frames, streams[index].decoded) for index in due}
        ticket = DialogueStep(load, due, before, watch, Stopwatch(self._device), written=written)
        for index in due:
            ready[index].frames += 1
        self._decode_ahead(ticket, [(index, streams[index], ready[index]) for index in due])
        watch.stop()
        return ticket

    def _fill(self, rows: list[Row]) -> Size:
        """Write the rows' positions, slots and inputs for a step, and queue the rows of their clips."""
        pieces = [dialogue_of(row).pieces[row.start : row.start + row.count] for row in rows]
        count = sum(map(len, pieces))
        wide = any(len(own) > 1 or isinstance(own[0], ClipRow) for own in pieces)
        size = self._graphs.size(count, len(rows), wide=wide)
        host, place = self._graphs.packet(size).host, 0
        heard: list[ClipRow] = []
        for index, (row, own) in enumerate(zip(rows, pieces, strict=True)):
            table, stop = row.request.table, row.start + row.count
            host["positions"][place : place + row.count] = range(row.start, stop)
            host["slots"][place : place + row.count] = table.slots(row.start, stop)
            host["starts"][index], host["lengths"][index] = place, stop
            host["tables"][index, : len(table.blocks)] = table.blocks
            for piece in own:
                if isinstance(piece, int):
                    host["tokens"][place] = piece
                elif isinstance(piece, tuple):
                    host["codes"][place] = piece
                else:
                    host["clips"][place] = len(heard)
                    heard.append(piece)
                place += 1
            if wide:
                host["wanted"][index] = place - 1
        host["starts"][len(rows) :] = count
        self._graphs.send_clips(_slices(heard))
        return size

    def _launch_text(self, written: list[int], rows: list[Row]) -> None:
        """Queue the choice of the next tokens of some rows."""
        if not written:
            return
        size = self._text.size(len(written))
        host = self._text.packet(size).host
        host["places"][: len(written)] = written
        for place, index in enumerate(written):
            row = rows[index]
            host["rules"][place, POSITION] = row.start + row.count - 1
            write_rules(host["rules"][place], row.request)
        self._text.launch(size)

    def _launch_speech(self, due: list[tuple[int, Row, KnownStream]]) -> None:
        """Queue the choice of the next frames of some rows."""
        if not due:
            return
        size, count = self._speech.size(len(due)), len(due)
        host = self._speech.packet(size).host
        host["places"][:count] = [index for index, _, _ in due]
        host["streams"][:count] = [stream_of(row).slot for _, row, _ in due]
        host["numbers"][:count] = [known.frames for _, _, known in due]
        host["rules"][:count] = np.stack([known.first for _, _, known in due])
        host["rules"][:count, POSITION] = [(row.start + row.count) * self.model.config.groups for _, row, _ in due]
        self._speech.launch(size)

    # ---- when it is done

    def _look(self, ticket: CodecStep) -> None:
        assert isinstance(ticket, DialogueStep)
        chosen = self._text.chosen[: len(ticket.written)].tolist()
        ticket.tokens = dict(zip(ticket.written, chosen, strict=True))
        self._choose_on_host(ticket)
        made = self._speech.made[: len(ticket.due)].tolist()
        self._settle(ticket, {index: tuple(codes) for index, codes in zip(ticket.due, made, strict=True)})

    def _choose_on_host(self, ticket: DialogueStep) -> None:
        """Choose again the tokens of requests with penalties or biases."""
        rows = ticket.load.rows
        places = [index for index in ticket.written if is_penalised(rows[index].request)]
        if places:
            hidden = self._graphs.hidden[torch.tensor(places, device=self._device)]
            choices = choose(self.model.logits(hidden).float().cpu(), [rows[index].request for index in places])
            ticket.tokens |= {
                index: -1 if one is None else one.token for index, one in zip(places, choices, strict=True)
            }

    def _outcomes(self, ticket: CodecStep, sounds: dict[int, NDArray[np.float32]]) -> list[Outcome]:
        assert isinstance(ticket, DialogueStep)
        assert ticket.frames is not None, "a step was looked at"
        return [self._outcome(ticket.tokens, ticket.frames, sounds, index) for index in range(len(ticket.load.rows))]


def _slices(heard: list[ClipRow]) -> list[Tensor]:
    """Return rows of clips in their order, those that follow each other in a clip as one piece."""
    found: list[Tensor] = []
    for _, run in itertools.groupby(enumerate(heard), key=lambda one: (id(one[1].clip), one[1].index - one[0])):
        own = [row for _, row in run]
        rows = own[0].clip.rows
        assert rows is not None, "a clip is encoded before it is read"
        found.append(rows[own[0].index : own[-1].index + 1])
    return found
