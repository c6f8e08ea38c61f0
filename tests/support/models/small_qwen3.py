"""A small random Qwen3 with a tokenizer, as Hugging Face lays a model out, and a LoRA adapter that PEFT has written."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from checkpoints import CONFIGS, write_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from voxlane.engine.audio import torchaudio_import as torchaudio_import  # before transformers, which imports torchaudio

PROSE = Path(__file__).parents[2] / "data" / "prose.txt"
BEGIN, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 512


def write_qwen3(directory: Path) -> Path:
    """Write the model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[STOP, BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(PROSE)], trainer)
    ends = tokenizer.token_to_id(END)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 4096, "eos_token_id": ends}
    write_checkpoint(directory, {**CONFIGS["qwen3"], **sizes, "bos_token_id": tokenizer.token_to_id(STOP)})
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": END, "pad_token": STOP, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def write_adapter(model: Path, directory: Path) -> None:
    """Write an adapter of the model that changes its answers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's own, about transformers
        get_peft_model(AutoModelForCausalLM.from_pretrained(model, local_files_only=True), config).save_pretrained(
            directory
        )
