"""Run inside the peer: write random checkpoints in the real layout, and the package's output for them.

Argument: a folder with plan.json: for each checkpoint its configuration and the cases to run. Beside it are written a
directory for each checkpoint and a .safetensors file for each case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import qwen_tts_peer_imports  # noqa: F401  first: stands in for what the package drags in
import torch
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
from safetensors.torch import load_file, save_file
from torch import Tensor


def main(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    given = load_file(folder / "given.safetensors")
    for index, (name, checkpoint) in enumerate(plan.items()):
        model = make(checkpoint["config"], index, checkpoint["end_scale"])
        model.save_pretrained(folder / name)
        for case in checkpoint["cases"]:
            results = run(model, case, given)
            save_file(
                {key: value.contiguous() for key, value in results.items()}, folder / f"{case['name']}.safetensors"
            )


def make(config: dict[str, Any], seed: int, end_scale: float) -> Any:
    """Return a model with weights large enough that every part of it affects the logits."""
    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.3 * values
        elif parameter.ndim == 1:
            values = 0.3 * values
        elif "embedding" in name:
            values = 0.5 * values
        else:
            values = 1.5 * values / parameter[0].numel() ** 0.5
        parameter.copy_(values)
    model.talker.codec_head.weight[config["talker_config"]["codec_eos_token_id"]] *= end_scale
    return model


def run(model: Any, case: dict[str, Any], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the greedy frames of a whole `generate`, and the logits for forced frames."""
    results: dict[str, Tensor] = {}
    clone = None
    if case["clip"]:
        embedding = model.extract_speaker_embedding(given[case["clip"]].numpy(), 24_000)
        results["embedding"] = embedding
        imitate = bool(case["clip_text"])
        frames = given[case["name"] + ".clip_frames"] if imitate else None
        clone = {
            "ref_spk_embedding": [embedding],
            "ref_code": [frames],
            "x_vector_only_mode": [not imitate],
            "icl_mode": [imitate],
        }
    heard: dict[str, Any] = {}
    generate = model.talker.generate

    def listen(**arguments: Any) -> Any:
        heard.update(arguments)
        return generate(**arguments)

    model.talker.generate = listen
    frames, _ = model.generate(
        input_ids=[torch.tensor([case["role"] + case["text"] + case["tail"]])],
        instruct_ids=[torch.tensor([case["instructions"]])] if case["instructions"] else None,
        ref_ids=[torch.tensor([case["role"] + case["clip_text"] + case["tail"][:2]])],
        voice_clone_prompt=clone,
        languages=[case["language"]],
        speakers=[case["speaker"] or None],
        non_streaming_mode=case["whole_text"],
        max_new_tokens=case["max_frames"] + 1,  # `generate` drops the last one
        do_sample=False,
        subtalker_dosample=False,
        repetition_penalty=case["repetition_penalty"],
    )
    model.talker.generate = generate
    results["frames"] = frames[0]
    return results | force(model.talker, heard, given[case["name"] + ".forced"])


def force(talker: Any, heard: dict[str, Any], codes: Tensor) -> dict[str, Tensor]:
    """Return the talker's and the predictor's logits with `codes` [frames, groups] forced after the prompt."""
    prompt, text, pad = heard["inputs_embeds"], heard["trailing_text_hidden"], heard["tts_pad_embed"]
    tables = [talker.get_input_embeddings(), *talker.code_predictor.get_input_embeddings()]
    rows = sum(table(codes[:, group]) for group, table in enumerate(tables))[None]
    rows = rows + torch.cat((text, pad.expand(-1, len(codes), -1)), dim=1)[:, : len(codes)]
    everything = torch.cat((prompt, rows), dim=1)
    mask = torch.ones(everything.shape[:2], dtype=torch.long)
    output = talker(inputs_embeds=everything, attention_mask=mask, output_hidden_states=True)
    start = prompt.shape[1] - 1
    hidden = output.hidden_states[0][-1][0, start:]
    inner, _ = talker.forward_sub_talker_finetune(codes, hidden[:-1])
    return {"hidden": hidden, "logits": output.logits[0, start:], "inner_logits": inner}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
