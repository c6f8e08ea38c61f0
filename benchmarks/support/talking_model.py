"""A chat model of a real shape that says one text, whatever it is asked: a load of true size with a reply to speak.

    python -m support.talking_model --shape qwen3-8b --words-of FILE.gguf --to FOLDER --device cuda

Random weights answer with random tokens, which no voice can read. Here attention and MLP are random and add next to
nothing to a token's embedding, and the output head gives each token of the text its predecessor's embedding: so every
token of the text follows the one before it. All products have their full size. The vocabulary is a GGUF file's.
"""

from __future__ import annotations

import json
from pathlib import Path

from gguf import GGUFReader, TokenType
from safetensors.torch import save_file

from support.command_line import command_line
from support.random_models import SHAPES, RandomWeights
from voxlane.engine.text.tokenizer import Tokenizer

TEXT = (
    "Rain falls on an old harbour while fishing boats return with silver herring, and the lamp keeper counts each sail "
    "that passes below his window; nobody else is awake at this hour! Would you like to hear what happened next? Well: "
    "when morning came, seven children ran down from every house, shouting about a green whale."
)
CERTAINTY = 30.0  # the logit of the next token; those of others are about 0
FADED = 1e-3  # the factor of what attention and MLP add


def chain(tokenizer: Tokenizer) -> list[int]:
    """Return the end of a prompt, the text's tokens, each once, and the end of a reply."""
    prompt, *_ = tokenizer.encode("\n")
    tokens = [prompt]
    for token in tokenizer.encode(TEXT):
        if token not in tokens:
            tokens.append(token)
    return [*tokens, next(iter(tokenizer.eos_ids))]


def write(shape: str, words: Path, folder: Path, device: str) -> None:
    """Write the model's directory."""
    config = {**SHAPES[shape], "tie_word_embeddings": False}
    folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(words, folder)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tokens = chain(Tokenizer.open(words))
    weights = RandomWeights(config, device)
    tensors = {}
    for name in weights.names():
        tensor = weights.tensor(name)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= FADED
        elif name == "model.norm.weight":
            tensor.fill_(1.0)
        tensors[name] = tensor.cpu()
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    head *= FADED
    before = embedding[tokens[:-1]].float()
    spread = before.square().mean(1, keepdim=True).sqrt()
    head[tokens[1:]] = (CERTAINTY * before / spread / before.shape[1]).to(head.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_vocabulary(words: Path, folder: Path) -> None:
    """Write the vocabulary of a GGUF file of Qwen's in the two files that its authors publish."""
    fields = GGUFReader(words).fields
    pieces = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    plain, added = {}, {}
    for number, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
        if kind == TokenType.NORMAL:
            plain[piece] = number
        elif kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
            added[str(number)] = {"content": piece, "special": kind == TokenType.CONTROL}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": added,
        "eos_token": "<|im_end|>",
        "chat_template": fields["tokenizer.chat_template"].contents(),
    }
    (folder / "vocab.json").write_text(json.dumps(plain), "utf-8")
    (folder / "merges.txt").write_text("\n".join(fields["tokenizer.ggml.merges"].contents()) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def main() -> None:
    """Write a model."""
    parser = command_line(__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--words-of", type=Path, required=True, help="a GGUF file of Qwen's, for its vocabulary")
    parser.add_argument("--to", type=Path, required=True, help="a folder")
    parser.add_argument("--device", default="cpu", help="that makes the numbers (%(default)s)")
    options = parser.parse_args()
    write(options.shape, options.words_of, options.to, options.device)


if __name__ == "__main__":
    main()
