"""What the package liquid-audio makes of a folder of LFM2-Audio. Runs inside the peer.

liquid_audio_peer.py FOLDER

The folder holds the model, clips.safetensors, hidden.safetensors and given.json. Written beside them are told.json with
prompts and answers, and told.safetensors with the rows of the clips and the frames of the hidden rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from liquid_audio import ChatState, LFM2AudioModel, LFM2AudioProcessor, LFMModality
from safetensors.torch import load_file, save_file
from torch import Tensor

MANNER = "Respond with interleaved text and audio."
RATE = 16_000


class LiquidAudio:
    """A loaded folder."""

    def __init__(self, folder: Path) -> None:
        self._processor = LFM2AudioProcessor.from_pretrained(folder, device="cpu").eval()
        self._model = LFM2AudioModel.from_pretrained(folder, dtype=torch.float32, device="cpu").eval()
        self._clips = load_file(folder / "clips.safetensors")

    def numbers(self, hidden: Tensor) -> dict[str, Tensor]:
        """Return the rows of every clip, and the likeliest frames of hidden rows."""
        found = {"frames": torch.stack([self._model._sample_audio_frame(row) for row in hidden])}
        for name, clip in self._clips.items():
            mel, _ = self._processor.audio(clip[None].clone(), torch.tensor([len(clip)]))
            rows, count = self._model.conformer(mel, torch.tensor([mel.shape[2]]))
            found[name] = self._model.audio_adapter(rows[0, :, : int(count)].T)
        return found

    def talk(self, turns: list[dict[str, str]], steps: int) -> list[dict[str, Any]]:
        """Return the prompt and the likeliest answer of each turn; the answers become part of the conversation."""
        chat, told = self._begun(MANNER), []
        for turn in turns:
            told.append(self._answer(chat, turn, steps, self._model.generate_interleaved))
            texts, frames = (
                [piece for piece in told[-1]["pieces"] if (len(piece) == 1) == one] for one in (True, False)
            )
            kinds = [LFMModality.TEXT if len(piece) == 1 else LFMModality.AUDIO_OUT for piece in told[-1]["pieces"]]
            chat.append(
                text=torch.tensor(texts, dtype=torch.int64).view(-1, 1).T,
                audio_out=torch.tensor(frames, dtype=torch.int64).view(-1, self._model.codebooks).T,
                modality_flag=torch.tensor(kinds, dtype=torch.int64),
            )
            chat.end_turn()
        return told

    def read(self, task: str, turn: dict[str, str], steps: int) -> dict[str, Any]:
        """Return the prompt and the likeliest answer where the model itself decides between text and sound."""
        return self._answer(self._begun(task), turn, steps, self._model.generate_sequential)

    def _begun(self, system: str) -> Any:
        chat = ChatState(self._processor, codebooks=self._model.codebooks, dtype=torch.float32)
        chat.new_turn("system")
        chat.add_text(system)
        chat.end_turn()
        return chat

    def _answer(self, chat: Any, turn: dict[str, str], steps: int, generate: Any) -> dict[str, Any]:
        chat.new_turn("user")
        if "clip" in turn:
            chat.add_audio(self._clips[turn["clip"]][None].clone(), RATE)
        else:
            chat.add_text(turn["text"])
        chat.end_turn()
        chat.new_turn("assistant")
        prompt = _positions(chat)
        return {"prompt": prompt, "pieces": [piece.tolist() for piece in generate(**chat, max_new_tokens=steps)]}


def _positions(chat: Any) -> list[list[int] | None]:
    """Return a conversation's tokens and frames as lists, None for a row of a clip."""
    texts, frames = iter(chat.text[0].tolist()), iter(chat.audio_out.T.tolist())
    made: dict[int, Any] = {
        LFMModality.TEXT: lambda: [next(texts)],
        LFMModality.AUDIO_IN: lambda: None,
        LFMModality.AUDIO_OUT: lambda: next(frames),
    }
    return [made[kind]() for kind in chat.modality_flag[0].tolist()]


def main(folder: Path) -> None:
    """Answer what is given."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    given, peer = json.loads((folder / "given.json").read_text()), LiquidAudio(folder)
    steps = given["steps"]
    told = {
        "talks": [peer.talk(turns, steps) for turns in given["talks"]],
        "read": [peer.read(one["task"], one, steps) for one in given["read"]],
    }
    (folder / "told.json").write_text(json.dumps(told))
    numbers = peer.numbers(load_file(folder / "hidden.safetensors")["hidden"])
    save_file({name: one.contiguous() for name, one in numbers.items()}, folder / "told.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
