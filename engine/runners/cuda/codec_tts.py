"""Runs a codec language model's part of a plan on a CUDA device: one graph for frames, others for their samples.

codec_streams.py says how a step goes. The same code runs on a CPU, kernel by kernel: the tests compare it with the
host's Talker.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import SPEAKER, Codes
from voxlane.engine.runners.codec_streams import LEADS, CodecStream
from voxlane.engine.runners.codec_tts import CodecTTS, UtteranceStream, stream_of
from voxlane.engine.runners.cuda.codec_streams import CodecStep, CudaCodecRunner, KnownStream, Progress
from voxlane.engine.runners.cuda.codec_tts_graphs import FrameGraphs, Streams
from voxlane.engine.runners.cuda.device import Stopwatch
from voxlane.engine.runners.cuda.staged_graphs import Size
from voxlane.engine.runners.cuda.staging import StagingBuffer
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import ModelBatch, Row


class CudaCodecTTS(CudaCodecRunner, CodecTTS):
    """Runs a talker and its codec on one device."""

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Qwen3TTSCodec,
        cache: KVCache,
        device: torch.device,
        *,
        slots: int,
        max_rows: int,
        max_tokens: int,
    ) -> None:
        """Prepare for steps of at most so many rows and tokens."""
        super().__init__(model, codec, cache, slots=slots, max_rows=max_rows)
        context_tokens = min(model.talker.context_tokens, cache.num_blocks * cache.block_tokens)
        self._streams = Streams(slots + LEADS, model, device)
        self._open(device, self._streams, max_rows=max_rows)
        self._graphs = FrameGraphs(
            model,
            cache,
            self._streams,
            self._scratch,
            device,
            max_rows=max_rows,
            max_tokens=max_tokens,
            context_tokens=context_tokens,
        )

    def _capture(self, pool: object, progress: Progress) -> None:
        self._graphs.capture(pool, progress)

    # ---- queued on the device

    def _launch(self, load: ModelBatch, watch: Stopwatch) -> CodecStep:
        rows = load.rows
        streams = [stream_of(row) for row in rows]
        ready = [self._meet(stream) for stream in streams]
        if behind := any(stream.stale for stream in streams):
            watch.start()
        self._catch_up_known(zip(streams, ready, strict=True))
        due = [index for index, row in enumerate(rows) if streams[index].makes_frame(row)]
        plain = set(due)
        wide = any(row.count > 1 or index not in plain or not ready[index].frames for index, row in enumerate(rows))
        size = self._graphs.size(sum(row.count for row in rows), len(rows), wide=wide)
        packet = self._graphs.packet(size)
        self._fill(rows, packet, size)
        self._rule(due, [(streams[index], ready[index]) for index in due], packet)
        if not behind:
            watch.start()  # the device has been idle while the packet was written
        self._graphs.launch(size)
        before = {index: (ready[index].frames, streams[index].decoded) for index in due}
        ticket = CodecStep(load, due, before, watch, Stopwatch(self._device))
        for index in due:
            ready[index].frames += 1
        self._decode_ahead(ticket, [(index, streams[index], ready[index]) for index in due])
        watch.stop()
        return ticket

    def _tell(self, stream: CodecStream) -> None:
        assert isinstance(stream, UtteranceStream)
        self._streams.set(stream.slot, stream.utterance.frames, stream.utterance.speaker)

    def _rule(self, due: list[int], streams: list[tuple[UtteranceStream, KnownStream]], packet: StagingBuffer) -> None:
        """Write how the next frames of rows are chosen."""
        if not due:
            return
        host, positions = packet.host, [known.frames * self.model.config.groups for _, known in streams]
        host["streams"][due] = [stream.slot for stream, _ in streams]
        host["penalty"].view(np.float32)[due] = [stream.sampling.repetition_penalty for stream, _ in streams]
        first, inner = [known.first for _, known in streams], [known.inner for _, known in streams]
        for name, rules in (("first", first), ("inner", inner)):
            host[name][due] = np.stack(rules)
            host[name][due, POSITION] = positions

    def _fill(self, rows: list[Row], packet: StagingBuffer, size: Size) -> None:
        """Write the rows' positions, slots and inputs."""
        host = packet.host
        text: list[int] = []
        codes: list[Codes] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for index, row in enumerate(rows):
            table, stop = row.request.table, row.start + row.count
            own_text, own_codes = stream_of(row).utterance.rows(row.start, stop)
            text += own_text
            codes += own_codes
            positions += range(row.start, stop)
            slots += table.slots(row.start, stop)
            starts.append(len(text))
            host["tables"][index, : len(table.blocks)] = table.blocks
        tokens, count = len(text), len(rows)
        for name, numbers in (("text", text), ("positions", positions), ("slots", slots)):
            host[name][:tokens] = numbers
        host["starts"][: count + 1], host["starts"][count + 1 :] = starts, tokens
        host["lengths"][:count] = [row.start + row.count for row in rows]
        if size.wide:
            host["codes"][:tokens] = codes
            host["wanted"][:count] = np.array(starts[1:]) - 1
            for row, first in zip(rows, starts, strict=False):
                for place in range(first, first + row.count):
                    if codes[place][0] == SPEAKER:
                        host["voices"][place] = stream_of(row).slot

    # ---- when it is done

    def _look(self, ticket: CodecStep) -> None:
        made = self._graphs.made[: len(ticket.load.rows)].tolist()  # a row's place on the device is its index
        self._settle(ticket, {index: tuple(made[index]) for index in ticket.due})

    def _outcomes(self, ticket: CodecStep, sounds: dict[int, NDArray[np.float32]]) -> list[Outcome]:
        assert ticket.frames is not None, "a step was looked at"
        return [self._outcome(ticket.frames.get(index), sounds.get(index)) for index in range(len(ticket.load.rows))]
