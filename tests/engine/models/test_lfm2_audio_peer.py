"""LFM2-Audio against the authors' package liquid-audio 1.0.0, which has a licence of its own and wants Python 3.12.

VOXLANE_LIQUID_AUDIO names a virtual environment with the package in it; without it the tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lfm2_audio_checkpoint as checkpoint
import pytest
import torch
from converse_house import House, sound
from lfm2_audio_parts import BACKBONE, ENCODER, GROUPS, SOUND, encoder_tensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from voxlane.engine.api import ChatMessage
from voxlane.engine.audio.nemo_mel import nemo_mel
from voxlane.engine.kernels.sampling.sampling import MIN_P
from voxlane.engine.models.lfm2_audio.config import AUDIO_START, CODES, END_OF_TURN, TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Piece
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.lfm2_audio.random_model import random_mimi
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.safetensors import SafetensorsDirectory

PLACE = os.environ.get("VOXLANE_LIQUID_AUDIO", "")
pytestmark = pytest.mark.skipif(not PLACE, reason="VOXLANE_LIQUID_AUDIO names no environment with liquid-audio")

SCRIPT = Path(__file__).parents[2] / "support/models/liquid_audio_peer.py"
DEADLINE_SECONDS = 300
TOLERANCE = 1e-5
"""Of rows whose numbers are about 0.2: four times what was measured."""

SOUNDS: dict[str, object] = {**SOUND, "features": 128}  # the package's conversations have no other spectrogram
HEARS: dict[str, object] = {**ENCODER, "feat_in": 128}
SECONDS = {"short": 0.5, "odd": 0.7012, "long": 3.0, "longest": 12.0}
STEPS, RUNS = 40, (2, 6)
TALKS: list[list[dict[str, str]]] = [
    [{"text": "Wer da? 你好,\n\n and so on"}, {"clip": "long"}],
    [{"clip": "short"}, {"clip": "longest"}, {"text": "and so?"}],
    [{"clip": "long"}, {"clip": "odd"}, {"clip": "short"}],
]
READ = [{"task": "Perform ASR.", "clip": "longest"}, {"task": "Perform TTS.", "text": "What is this obsession?"}]
LIKELIER = {AUDIO_START: 2.0, TEXT_END: 0.9, END_OF_TURN: 1.4}
END_LIKELIER = 3.0
"""Factors of embeddings, which are heads too: with them text and sound change in every way."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A model, and what the package told of it."""

    model: Lfm2Audio
    prompts: ConversePrompts
    clips: dict[str, Tensor]
    hidden: Tensor
    told: dict[str, Any]  # prompts and answers
    numbers: dict[str, Tensor]

    def said(self, turn: dict[str, str]) -> list[Piece]:
        """Return the positions of what a person says."""
        return (
            self.prompts.spoken(pcm(self.clips[turn["clip"]])) if "clip" in turn else self.prompts.typed(turn["text"])
        )

    def answer(self, prompt: list[Piece], turn: Turn | None = None) -> list[Piece]:
        """Return the likeliest answer."""
        codec = random_mimi({"num_filters": 4, "num_hidden_layers": 1}, GROUPS, torch.float32, torch.device("cpu"))
        house = House(self.model, codec)
        return house.answer(house.ask(prompt, turn=turn), STEPS)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("liquid-audio")
    runs = {"interleaved_n_text": RUNS[0], "interleaved_n_audio": RUNS[1]}
    config = checkpoint.config() | runs | {"encoder": HEARS, "preprocessor": SOUNDS}
    checkpoint.write_model(folder, config, tensors())
    clips = {name: sound(seconds, 3).mul(32768).round() / 32768 for name, seconds in SECONDS.items()}
    hidden = torch.randn(64, BACKBONE, generator=torch.Generator().manual_seed(2))
    save_file(clips, folder / "clips.safetensors")
    save_file({"hidden": hidden}, folder / "hidden.safetensors")
    (folder / "given.json").write_text(json.dumps({"talks": TALKS, "read": READ, "steps": STEPS}))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [Path(PLACE) / "bin" / "python", SCRIPT, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, f"the package failed:\n{done.stderr[-4000:]}"
    weights, told = SafetensorsDirectory(folder), json.loads((folder / "told.json").read_text())
    model = Lfm2Audio.load(weights, "float32")
    prompts = ConversePrompts.of(model, Tokenizer.from_weights(weights))
    return Compared(model, prompts, clips, hidden, told, load_file(folder / "told.safetensors"))


def tensors() -> dict[str, Tensor]:
    """Return random tensors. Only a frame's first code can be the end of sound: ours chooses it nowhere else."""
    numbers = checkpoint.tensors() | encoder_tensors(HEARS)
    for token, factor in LIKELIER.items():
        numbers["lfm.embed_tokens.weight"][token] *= factor
    for group in range(GROUPS):
        for part in ("embedding", "to_logits"):
            numbers[f"depth_embeddings.{group}.{part}.weight"][CODES] *= 0.0 if group else END_LIKELIER
    return numbers


def pcm(clip: Tensor) -> bytes:
    """Return a clip as a listener sends it."""
    return (clip * 32768).to(torch.int16).numpy().tobytes()


def bare(pieces: list[Piece]) -> list[list[int] | None]:
    """Return positions as the package's are told."""
    return [None if isinstance(one, ClipRow) else [one] if isinstance(one, int) else list(one) for one in pieces]


@pytest.mark.parametrize("name", list(SECONDS))
def test_the_rows_of_a_clip(compared: Compared, name: str) -> None:
    (rows,) = compared.model.encoder.encode([nemo_mel(compared.clips[name])])
    torch.testing.assert_close(rows, compared.numbers[name], rtol=0, atol=TOLERANCE)


def test_the_likeliest_frames(compared: Compared) -> None:
    packet, scratch = torch.zeros(len(compared.hidden), MIN_P + 1, dtype=torch.int32), compared.model.scratch(64)
    assert torch.equal(compared.model.make_frames(compared.hidden, packet, scratch), compared.numbers["frames"])


@pytest.mark.parametrize("number", range(len(TALKS)))
def test_conversations(compared: Compared, number: int) -> None:
    """The package keeps its answers in the conversation, ours gets them back with the messages."""
    messages: list[ChatMessage] = []
    for turn, told in zip(TALKS[number], compared.told["talks"][number], strict=True):
        prompt = [*compared.prompts.open(messages), *compared.said(turn), *compared.prompts.close()]
        assert bare(prompt) == told["prompt"]
        made = bare(compared.answer(prompt))
        heard = pcm(compared.clips[turn["clip"]]) if "clip" in turn else b""
        pieces = tuple(tuple(piece or ()) for piece in made)
        messages += [
            ChatMessage("user", turn.get("text", ""), sound=heard),
            ChatMessage("assistant", "", pieces=pieces),
        ]
        assert [piece for piece in made if piece != [END_OF_TURN]] == told["pieces"]


def test_the_conversations_change_between_text_and_sound_in_every_way(compared: Compared) -> None:
    """Text is completed; sound ends, also before the text is complete: then the text has the rest of the run."""
    answers = [turn["pieces"] for talk in compared.told["talks"] for turn in talk]
    assert any(len(pieces) < STEPS for pieces in answers)
    assert any([TEXT_END] in pieces for pieces in answers)
    whole = [pieces[: pieces.index([TEXT_END])] if [TEXT_END] in pieces else pieces for pieces in answers]
    runs = [[len(list(run)) for _, run in itertools.groupby(pieces, key=len)] for pieces in whole]
    assert any(texts != RUNS[0] for lengths in runs for texts in lengths[:-1:2])
    assert any([AUDIO_START] in read["pieces"] for read in compared.told["read"])


@pytest.mark.parametrize("number", range(len(READ)))
def test_recognition_and_reading_aloud(compared: Compared, number: int) -> None:
    told, rows = compared.told["read"][number], iter(compared.said(READ[number]))
    prompt = [next(rows) if one is None else one[0] for one in told["prompt"]]
    assert bare(compared.answer(prompt, Turn.sequential())) == told["pieces"]
