"""A small random LFM2-Audio: its tensors and its folder, with a vocabulary of bytes and a random Mimi beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from checkpoints import CONFIGS, random_tensors
from lfm2_audio_parts import CONFIG, ENCODER, GROUPS, Values, depth_parts, encoder_tensors
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from voxlane.engine.models.lfm2_audio.config import AUDIO_START, CODES, END_OF_TURN, TEXT_END

FIRST_BYTE = 131
VOCABULARY = FIRST_BYTE + 256 + 5
"""Bytes follow the published numbers of control tokens; the last few tokens have no text."""

CONTROLS = {"<|pad|>": 0, "<|startoftext|>": 1, "<|endoftext|>": 2, "<|im_start|>": 6, "<|im_end|>": END_OF_TURN}
CONTROLS |= {"<|audio_start|>": AUDIO_START, "<|text_end|>": TEXT_END}

MIMI: dict[str, Any] = {
    "codebook_dim": 12, "codebook_size": CODES, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2,
    "num_filters": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_quantizers": GROUPS,
    "num_semantic_quantizers": 1, "sampling_rate": 24_000, "sliding_window": 9, "upsample_groups": 24,
    "upsampling_ratios": [4, 3, 2],
    "vector_quantization_hidden_dimension": 12,
}  # fmt: skip
"""Frames of 48 samples: most tests have no time for 1,920."""

LIKELY = 20.0
"""The factor by which the embeddings of letters are larger that are to be written; they are the output head, too."""

BREATH = -2.5
"""The factor by which the first codes' output for the end of sound is larger: it comes after some ten frames."""

MARK = 1e5
"""The number in a token's embedding that makes another one follow: nothing else counts beside it."""

TRUE_RATIOS = (8, 6, 5, 4)
"""The upsampling of frames of 1,920 samples, as long as the published codec's: 80 ms."""


def backbone() -> Values:
    """Return the configuration of a small LFM2 with the published control tokens in its vocabulary."""
    return {**CONFIGS["lfm2"], "vocab_size": VOCABULARY, "max_position_embeddings": 2048}


def config() -> Values:
    """Return the configuration of the whole model."""
    return {**CONFIG, "lfm": backbone(), "interleaved_n_text": 3, "interleaved_n_audio": 4}


def tensors() -> dict[str, Tensor]:
    """Return all its tensors."""
    text = random_tensors(backbone())
    return {
        **{f"lfm.{name.removeprefix('model.')}": tensor for name, tensor in text.items()},
        **encoder_tensors(ENCODER),
        **depth_parts(tied=True),
    }


def write(
    folder: Path,
    ratios: Sequence[int] = MIMI["upsampling_ratios"],
    letters: str = "",
    *,
    breathes: bool = False,
    breath: float = BREATH,
    follows: Mapping[int, int] | None = None,
) -> Path:
    """Write the folder, and return it; with `letters` the model writes nearly nothing else, and never ends.

    A model that `breathes` ends its sound now and then. With `follows` one token is the likeliest after another.
    """
    import transformers

    numbers = tensors()
    if letters:
        rows = [token_of(letter) for letter in letters]
        numbers["lfm.embed_tokens.weight"][rows] *= LIKELY
        numbers["lfm.embed_tokens.weight"][[END_OF_TURN, TEXT_END]] = 0.0
    if breathes:
        numbers["depth_embeddings.0.to_logits.weight"][CODES] *= breath
    for place, (before, after) in enumerate((follows or {}).items(), start=1):
        _link(numbers, place, before, after)
    write_model(folder, config(), numbers)
    torch.manual_seed(3)
    codec = transformers.MimiModel(transformers.MimiConfig(**MIMI | {"upsampling_ratios": list(ratios)})).eval()
    with torch.no_grad():
        for name, tensor in codec.state_dict().items():
            if name.endswith("embed_sum"):
                tensor.normal_(std=0.5)
            elif name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 2.0)
        codes = torch.randint(CODES, (1, GROUPS, 24))
        loudness = codec.decode(codes).audio_values.std()
        for tensor in codec.decoder.decoder_seanet.layers[-1].parameters():
            tensor.mul_(0.1 / loudness)
    codec.save_pretrained(folder / "mimi")
    return folder


def token_of(letter: str) -> int:
    """Return the token of a letter, a space or the end of a line."""
    return FIRST_BYTE + _alphabet().index({" ": "Ġ", "\n": "Ċ"}.get(letter, letter))


def _link(numbers: dict[str, Tensor], place: int, before: int, after: int) -> None:
    """Make a token the likeliest after another.

    One number of a hidden row means the one token, another that the other follows; nothing else is written there. The
    last layer turns the one into the other. The table of tokens is the output head, too, so the first is cut off there.
    They lie far apart, in groups of numbers that are packed with a scale each.
    """
    cause, effect, table = place, -place, numbers["lfm.embed_tokens.weight"]
    for name, tensor in numbers.items():
        if name.startswith("lfm.") and name.endswith(("out_proj.weight", "feed_forward.w2.weight")):
            tensor[[cause, effect]] = 0.0
    for found in (table, numbers["audio_embedding.embedding.weight"]):
        found[:, [cause, effect]] = 0.0
    table[before, cause], table[after, effect] = MARK, 1.0
    last = f"lfm.layers.{CONFIGS['lfm2']['num_hidden_layers'] - 1}."
    numbers[f"{last}ffn_norm.weight"][cause] = 1.0
    for name in ("w1", "w3"):
        numbers[f"{last}feed_forward.{name}.weight"][place] = 0.0
        numbers[f"{last}feed_forward.{name}.weight"][place, cause] = 1.0
    numbers[f"{last}feed_forward.w2.weight"][:, place] = 0.0
    numbers[f"{last}feed_forward.w2.weight"][effect, place] = MARK
    numbers["lfm.embedding_norm.weight"][[cause, effect]] = torch.tensor([0.0, 10.0])


def write_model(folder: Path, values: Values, numbers: dict[str, Tensor]) -> None:
    """Write a folder without a codec."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    save_file({name: one.contiguous() for name, one in numbers.items()}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(_vocabulary()))
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "tokenizer_class": "PreTrainedTokenizerFast"}))


def _alphabet() -> list[str]:
    return sorted(ByteLevel.alphabet())


def _vocabulary() -> dict[str, Any]:
    # tokenizers numbers an added token itself unless its text is an entry of the model.
    controls = {id_: text for text, id_ in CONTROLS.items()}
    entries = [*(controls.get(id_, f"<|reserved_{id_}|>") for id_ in range(FIRST_BYTE)), *_alphabet()]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": id_,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for text, id_ in CONTROLS.items()
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {one: n for n, one in enumerate(entries)}, "merges": []},
    }
