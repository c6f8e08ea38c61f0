"""Runs LFM2-Audio's part of a plan: positions of dialogues in; tokens of text, frames and their samples out.

A request's `payload` is a `DialogueStream`; its `tokens` are the numbers of its positions. A step encodes the clips
that its positions are rows of, computes positions of every row, makes the next token or frame of each row that has one
due, and decodes the frames of each stream that has a chunk of them (codec_streams.py). A stream whose state row is
behind makes no frame; its tokens do not wait.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Codes, Dialogue, SpokenClip
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.qwen3_tts.choice import packet_rows
from voxlane.engine.models.streaming_codec import StreamingCodec
from voxlane.engine.runners.codec_streams import NO_SAMPLES, CodecRunner, CodecStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.runners.sampler import choose
from voxlane.engine.schedule.plan import ModelBatch, Row

KEPT_ROWS = 8192
"""Rows of encoded clips that a runner keeps: eleven minutes of sound, 32 MiB in bfloat16. A conversation brings its
clips along with every turn, and to encode 10 s of sound anew takes a core of a CPU 0.84 s."""


@dataclass(slots=True, eq=False)
class DialogueStream(CodecStream):
    """What the model needs of a request."""

    utterance: Dialogue


@dataclass(slots=True)
class ConverseOutcome(Outcome):
    """What a step made for a dialogue: a token or a frame, or neither; and samples of frames from `decoded` on."""

    token: int | None = None
    frame: Codes | None = None  # a first code of `end_code` ends the sound
    samples: NDArray[np.float32] = field(default_factory=lambda: NO_SAMPLES)


class EncodedClips:
    """The rows of the clips that were needed last, by what was said in them."""

    def __init__(self, most_rows: int = KEPT_ROWS) -> None:
        self._most_rows = most_rows
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()  # those used last are at the end

    def encode(self, clips: Iterable[SpokenClip], encode: Callable[[list[SpokenClip]], None]) -> None:
        """Give every clip its rows: those that are kept, or what `encode` makes."""
        wanted = list(clips)
        fresh = {clip.digest: clip for clip in wanted if clip.digest not in self._rows}
        if fresh:
            encode(list(fresh.values()))
        for clip in wanted:
            rows = fresh[clip.digest].rows if clip.digest in fresh else self._rows[clip.digest]
            assert rows is not None, "a clip was encoded"
            clip.rows, clip.mel = rows, None
            self._rows[clip.digest] = rows
            self._rows.move_to_end(clip.digest)
        while sum(map(len, self._rows.values())) > self._most_rows:
            self._rows.popitem(last=False)


class ConverseRunner(CodecRunner):
    """Runs LFM2-Audio and its codec on the host."""

    def __init__(self, model: Lfm2Audio, codec: StreamingCodec, cache: KVCache, *, slots: int, max_rows: int) -> None:
        super().__init__(codec, cache, slots=slots, end_code=model.end_code)
        self.model = model
        self._scratch = model.scratch(max_rows)
        self._clips = EncodedClips()

    def launch(self, load: ModelBatch) -> Any:
        """Run the model's part of a plan; return outcomes in the order of its rows."""
        rows, marks = load.rows, [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        with torch.inference_mode():
            _, layout = self._layout(rows)
            ranges = [(dialogue_of(row), row.start, row.start + row.count) for row in rows]
            self._clips.encode(unencoded(ranges), self.model.encode)
            marks.append(time.monotonic())
            hidden = self.model.forward(self.model.inputs(ranges), layout, self.cache.layers)
            marks.append(time.monotonic())
            self._catch_up([stream for row in rows if (stream := stream_of(row)).slot >= 0])
            marks.append(time.monotonic())
            tokens, frames = self._tokens(rows, hidden), self._frames(rows, hidden)
            marks.append(time.monotonic())
            sounds = self._decode(rows, frames)
        marks.append(time.monotonic())
        phases = ("move", "encode", "forward", "hear", "sample", "codec")
        self.phases = dict(zip(phases, itertools.pairwise(marks), strict=True))
        return [self._outcome(tokens, frames, sounds, index) for index in range(len(rows))]

    def _tokens(self, rows: list[Row], hidden: Tensor) -> dict[int, int]:
        """Return the next token of every row that has one due; -1 where none can be chosen."""
        due = _due(rows, lambda row: dialogue_of(row).token_due(row.start + row.count))
        if not due:
            return {}
        logits = self.model.logits(hidden[torch.tensor(list(due.values()))])
        choices = choose(logits, [rows[index].request for index in due])
        return {index: -1 if one is None else one.token for index, one in zip(due, choices, strict=True)}

    def _frames(self, rows: list[Row], hidden: Tensor) -> dict[int, Codes]:
        """Return the next frame of every row that has one due."""
        due = _due(rows, lambda row: stream_of(row).makes_frame(row))
        if not due:
            return {}
        packet = []
        for index in due:
            stream, position = stream_of(rows[index]), rows[index].start + rows[index].count
            packet.append(packet_rows(stream.sampling, stream.seed, position * self.model.config.groups)[0])
        places = torch.tensor(list(due.values()))
        made = self.model.make_frames(hidden[places], torch.tensor(packet, dtype=torch.int32), self._scratch)
        return {index: tuple(codes) for index, codes in zip(due, made.tolist(), strict=True)}

    def _outcome(
        self, tokens: dict[int, int], frames: dict[int, Codes], sounds: dict[int, NDArray[np.float32]], index: int
    ) -> Outcome:
        token, frame, samples = tokens.get(index), frames.get(index), sounds.get(index, NO_SAMPLES)
        if token == -1 or (frame is not None and min(frame) < 0) or not np.isfinite(samples).all():
            return Outcome(failed=True)
        return ConverseOutcome(token=token, frame=frame, samples=samples)


def _due(rows: list[Row], wanted: Callable[[Row], bool]) -> dict[int, int]:
    """Return, by the index of a row that is wanted, the place of its last position in the step."""
    ends = itertools.accumulate(row.count for row in rows)
    return {index: end - 1 for index, (row, end) in enumerate(zip(rows, ends, strict=True)) if wanted(row)}


def unencoded(ranges: list[tuple[Dialogue, int, int]]) -> list[SpokenClip]:
    """Return the clips that a step reads and that have no rows yet, each once."""
    found: dict[int, SpokenClip] = {}
    for dialogue, start, stop in ranges:
        for piece in dialogue.pieces[start:stop]:
            if isinstance(piece, ClipRow) and piece.clip.rows is None:
                found[id(piece.clip)] = piece.clip
    return list(found.values())


def stream_of(row: Row) -> DialogueStream:
    """Return the stream that a row goes on with."""
    assert isinstance(row.request.payload, DialogueStream)
    return row.request.payload


def dialogue_of(row: Row) -> Dialogue:
    """Return the dialogue that a row goes on with."""
    return stream_of(row).utterance
