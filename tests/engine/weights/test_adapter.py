"""LoRA adapters against PEFT itself: the same logits, merged by us at load and computed by PEFT beside the model."""

from __future__ import annotations

import json
import random
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoints import CONFIGS, random_tensors, write_checkpoint
from gguf.constants import GGMLQuantizationType as Kind
from paged import Pager
from safetensors.torch import load_file, save_file
from torch import Tensor

from voxlane.engine.errors import StoreError, WeightsError
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.registry import load_model
from voxlane.engine.weights.adapter import AdaptedWeights, Adapter, locate
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.gguf import GGUFFile

from .conftest import VOCABULARY, WriteGGUF, small_tensors

MakeCheckpoint = Callable[[str], Path]

TOKENS = random.Random(5).choices(range(3, 211), k=20)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Q0, DOWN1 = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


def adapted(base: Path, adapter: Path) -> AdaptedWeights:
    weights = open_weights(base)
    return AdaptedWeights(weights, Adapter(adapter), tied=DecoderConfig.from_dict(weights.config).tied)


def logits(weights: Any, tokens: list[int] = TOKENS) -> Tensor:
    return Pager(load_model(weights, "float32")).logits(0, tokens)


def train(
    base: Path, folder: Path, tokens: list[int] = TOKENS, start: str = "", *, merge: bool = False, **settings: Any
) -> Tensor:
    """Save an adapter with every trainable number changed, and return the logits that PEFT computes with it.

    They are computed with the adapter beside the model, or with `merge` after PEFT's own merge.
    """
    import peft
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
    torch.manual_seed(1)
    init: Any = start or False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns about tied tables and the like, which are tested here
        lora = {"r": 4, "lora_alpha": 6, **settings}
        model = peft.get_peft_model(
            plain, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=init, **lora), autocast_adapter_dtype=False
        ).eval()
        if start:
            model.peft_config["default"].init_lora_weights = True
            model.save_pretrained(folder / "start")
            model.peft_config["default"].init_lora_weights = init
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder, path_initial_model_for_weight_conversion=folder / "start" if start else None)
        with torch.no_grad():
            whole = model.merge_and_unload() if merge else model
            result: Tensor = whole(torch.tensor([tokens]), use_cache=False).logits[0]
    return result


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    "all of Llama": ("llama", {"target_modules": LINEAR, "r": 3, "lora_alpha": 7}),
    "all of Qwen2": ("qwen2", {"target_modules": LINEAR}),
    "all of Qwen3": ("qwen3", {"target_modules": LINEAR}),
    "all of Gemma 3": ("gemma3", {"target_modules": LINEAR}),
    "all of one layer": ("llama", {"target_modules": LINEAR, "layers_to_transform": [1]}),
    "more than 1 in scale": ("llama", {"target_modules": ["o_proj"], "lora_alpha": 16}),
    "by the root of the rank": ("llama", {"target_modules": LINEAR, "use_rslora": True}),
    "ranks and alphas by name": (
        "llama",
        {
            "target_modules": LINEAR,
            "rank_pattern": {"q_proj": 2, r"layers\.(1|2)\.mlp\..*": 6, "^model.layers.0.self_attn.k_proj": 3},
            "alpha_pattern": {"^layers.0": 100, "v_proj|o_proj": 9, "model.layers.2.self_attn.q_proj": 1.5},
            "use_rslora": True,
        },
    ),
    "DoRA": ("llama", {"target_modules": LINEAR, "use_dora": True}),
    "DoRA of Gemma 3": ("gemma3", {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True}),
    "table": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "table, scaled": ("gemma3", {"target_modules": ["embed_tokens"]}),
    "table, head stays": ("qwen2", {"target_modules": ["embed_tokens"]}),
    "head, table stays": ("qwen2", {"target_modules": ["lm_head", "q_proj"]}),
    "table and head apart": ("qwen2", {"target_modules": ["lm_head", "embed_tokens"]}),
    "table and head as one": ("qwen2", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "whole table": ("qwen2", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "whole head": ("qwen2", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "whole table and head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    "whole norms": ("gemma3", {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm", "norm"]}),
    "all biases": ("llama-biased", {"target_modules": ["q_proj"], "bias": "all"}),
    "biases of what is changed": ("qwen2", {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"}),
    "layers the other way round": ("llama", {"target_modules": LINEAR, "fan_in_fan_out": True}),
    "PiSSA, converted": ("llama", {"target_modules": LINEAR, "start": "pissa"}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_pefts(case: str, checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    name, settings = CASES[case]
    wanted = train(checkpoint(name), tmp_path, **settings)
    before = logits(open_weights(checkpoint(name)))
    assert float((wanted - before).square().mean().sqrt() / before.std()) > 0.01  # it does change something
    torch.testing.assert_close(logits(adapted(checkpoint(name), tmp_path)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["all of Llama", "all of Qwen2", "all of Gemma 3", "DoRA"])
def test_logits_are_those_of_pefts_merge(case: str, checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    name, settings = CASES[case]
    wanted = train(checkpoint(name), tmp_path, merge=True, **settings)
    torch.testing.assert_close(logits(adapted(checkpoint(name), tmp_path)), wanted, rtol=1e-4, atol=1e-4)


def test_other_modes_cost_little(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    wanted = train(checkpoint("qwen2"), tmp_path, target_modules=[*LINEAR, "embed_tokens"])
    weights = adapted(checkpoint("qwen2"), tmp_path)
    for mode, bound in (("packed", 0.1), ("bfloat16", 0.03)):  # as without an adapter: see test_decoder.py
        found = Pager(load_model(weights, mode)).logits(0, TOKENS)  # type: ignore[arg-type]
        assert 0 < float((found - wanted).square().mean().sqrt() / wanted.std()) < bound


def quantised(architecture: str, kind: Kind) -> tuple[dict[str, Any], dict[str, Kind]]:
    """Return small_tensors() with the layers' matrices in a quantised type, and which those are."""
    tensors = {name: tensor * 0.2 for name, tensor in small_tensors(architecture).items()}
    kinds = {name: kind for name in tensors if name.startswith("blk.") and tensors[name].ndim == 2}
    return tensors | {name: gguf.quants.quantize(tensors[name], kind) for name in kinds}, kinds


@pytest.mark.parametrize(("architecture", "kind"), [("llama", Kind.Q4_0), ("qwen2", Kind.Q8_0), ("gemma3", Kind.Q8_0)])
def test_a_gguf_model_is_adapted_like_the_checkpoint_it_was_made_of(
    architecture: str, kind: Kind, write_gguf: WriteGGUF, tmp_path: Path
) -> None:
    tensors, kinds = quantised(architecture, kind)
    base = write_gguf(architecture, tensors, kinds=kinds)
    file = GGUFFile(base)
    config = dict(file.config)
    if architecture == "gemma3":
        config["hidden_activation"] = config.pop("hidden_act")
    whole = {name: file.tensor(name).to(torch.float32).contiguous() for name in file.names()}
    tokens = [token % VOCABULARY for token in TOKENS]
    wanted = train(
        write_checkpoint(tmp_path / "whole", config, whole), tmp_path / "adapter", tokens, target_modules=["q_proj"]
    )
    weights = adapted(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(weights, tokens), wanted, rtol=1e-4, atol=1e-4)
    # A changed matrix has no codes and becomes 8 bits; an unchanged one keeps its codes.
    assert weights.blocks(f"{Q0}.weight") is None
    ours, theirs = weights.blocks(f"{DOWN1}.weight"), file.blocks(f"{DOWN1}.weight")
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours.codes, theirs.codes)


def write(folder: Path, tensors: dict[str, Tensor] | None = None, **settings: object) -> Path:
    """Write an adapter of rank 2 by hand. By default it changes two matrices of the checkpoints."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "them/their-model", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        factors(Q0) | factors(DOWN1, 64, 96) if tensors is None else tensors, folder / "adapter_model.safetensors"
    )
    return folder


def factors(module: str, out: int = 64, inputs: int = 64, rank: int = 2, prefix: str = "base_model.model.") -> Any:
    generator = torch.Generator().manual_seed(7)
    return {
        f"{prefix}{module}.lora_A.weight": torch.randn(rank, inputs, generator=generator),
        f"{prefix}{module}.lora_B.weight": torch.randn(out, rank, generator=generator),
    }


def test_the_change_is_scale_times_b_a(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    base = open_weights(checkpoint("llama"))
    found = adapted(checkpoint("llama"), write(tmp_path / "a"))
    a, b = factors(Q0).values()
    torch.testing.assert_close(found.tensor(f"{Q0}.weight"), base.tensor(f"{Q0}.weight") + 2.0 * b @ a)
    assert torch.equal(
        found.tensor(f"{DOWN1.replace('1', '0')}.weight"), base.tensor(f"{DOWN1.replace('1', '0')}.weight")
    )
    assert found.names() == base.names()
    assert found.config == base.config
    for absent in (found.tensor, found.blocks):
        with pytest.raises(KeyError):
            absent("model.layers.9.self_attn.q_proj.weight")


def test_an_adapters_own_name_may_stand_in_its_keys(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    plain = adapted(checkpoint("llama"), write(tmp_path / "a", factors(Q0)))
    named = {name.replace(".weight", ".default.weight"): tensor for name, tensor in factors(Q0).items()}
    found = adapted(checkpoint("llama"), write(tmp_path / "b", named))
    assert torch.equal(found.tensor(f"{Q0}.weight"), plain.tensor(f"{Q0}.weight"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_factors_of_other_types_are_multiplied_in_float32(
    dtype: torch.dtype, checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    narrow = {name: tensor.to(dtype) for name, tensor in factors(Q0).items()}
    found = adapted(checkpoint("llama"), write(tmp_path / "a", narrow)).tensor(f"{Q0}.weight")
    a, b = (tensor.to(torch.float32) for tensor in narrow.values())
    torch.testing.assert_close(found, open_weights(checkpoint("llama")).tensor(f"{Q0}.weight") + 2.0 * b @ a)


def test_a_vision_models_adapter_fits_its_text_half(tmp_path: Path) -> None:
    """The adapter and the model may spell the names differently; changes to the vision tower are left out."""
    config = CONFIGS["gemma3"]
    text = write_checkpoint(tmp_path / "text", config)
    wanted = logits(adapted(text, write(tmp_path / "plain", factors(Q0))))
    nested = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    renamed = {f"language_model.{name}": tensor for name, tensor in random_tensors(config).items()}
    vision = write_checkpoint(tmp_path / "vision", nested, renamed)
    tower = factors("model.vision_tower.encoder.q_proj")
    head = torch.randn(211, 64, generator=torch.Generator().manual_seed(3))
    for index, prefix in enumerate(("model.language_model.", "language_model.model.")):
        module = Q0.replace("model.", prefix)
        adapter = write(tmp_path / f"adapter-{index}", factors(module) | tower)
        for base in (text, vision):
            torch.testing.assert_close(logits(adapted(base, adapter)), wanted)
        write(adapter, {"base_model.model.lm_head.weight": head})  # tied in the config, under text_config: untied here
        own = [logits(adapted(base, adapter)) for base in (text, vision)]
        assert torch.equal(*own)
        assert not torch.equal(own[0], wanted)


NONE = torch.zeros(2, 64)
TABLE = "base_model.model.model.embed_tokens"
BROKEN: dict[str, tuple[dict[str, Tensor] | None, dict[str, object], str]] = {
    "another method": (None, {"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
    "no method": (None, {"peft_type": None}, "peft_type is None"),
    "activated": (None, {"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens is set \(\[1, 2\]\)"),
    "Megatron": (None, {"megatron_config": {"a": 1}}, "megatron_config is set"),
    "a bias of its own": (None, {"lora_bias": True}, "lora_bias is set"),
    "more layers": (None, {"layer_replication": [[0, 2]]}, "layer_replication is set"),
    "what is not known yet": (None, {"use_something_new": True}, "use_something_new is set"),
    "PiSSA": (None, {"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base model"),
    "OLoRA": (None, {"init_lora_weights": "olora"}, "changes the base model too: save the adapter with path_initial"),
    "LoftQ": (None, {"init_lora_weights": "loftq"}, "changes the base model"),
    "rank 0": (None, {"r": 0}, "r: 0 is not a rank"),
    "a true rank": (None, {"r": True}, "r: True is not a rank"),
    "no rank": (None, {"r": None}, "r: None is not a rank"),
    "another rank": (None, {"r": 3}, r"q_proj: factors of shapes \[2, 64\] and \[64, 2\] are not of rank 3"),
    "another rank by name": (None, {"rank_pattern": {"q_proj": 8}}, "are not of rank 8"),
    "a flag in a text": (None, {"use_rslora": "true"}, "use_rslora: 'true' is neither true nor false"),
    "no alpha": (None, {"lora_alpha": "4"}, "lora_alpha: '4' is not a usable number"),
    "a huge alpha": (None, {"lora_alpha": 1e300}, r"lora_alpha: 1e\+300 is not a usable number"),
    "a bad pattern": (None, {"rank_pattern": {"(q": 2}}, r"rank_pattern: '\(q' has a parenthesis that is not closed"),
    "a bad value": (None, {"alpha_pattern": {"q": None}}, "alpha_pattern: None is not a usable number"),
    "patterns in a list": (None, {"rank_pattern": [1]}, "rank_pattern is not an object"),
    "saved modules in a text": (None, {"modules_to_save": "lm_head"}, "modules_to_save is not a list of names"),
    "saved modules that are not there": (None, {"modules_to_save": ["lm_head"]}, "modules_to_save has lm_head, but"),
    "no tensors": ({}, {}, "no tensor in it that changes"),
    "half a pair": (dict(list(factors(Q0).items())[:1]), {}, "q_proj has lora_A without its counterpart"),
    "the other half": (dict(list(factors(Q0).items())[1:]), {}, "q_proj has lora_B without its counterpart"),
    "a mixed pair": (
        {f"{TABLE}.lora_embedding_A": NONE, f"{TABLE}.lora_B.weight": NONE.t().contiguous()},
        {},
        "lora_B, lora_embedding_A without",
    ),
    "a magnitude alone": ({f"{TABLE}.lora_magnitude_vector": NONE[0]}, {"use_dora": True}, "has a magnitude without"),
    "a magnitude too many": (
        factors(Q0) | {f"base_model.model.{Q0}.lora_magnitude_vector": torch.ones(64)},
        {},
        "has a lora_magnitude_vector, but use_dora is false",
    ),
    "a magnitude too few": (None, {"use_dora": True}, "has no lora_magnitude_vector, but use_dora is true"),
    "a short magnitude": (
        factors(Q0) | {f"base_model.model.{Q0}.lora_magnitude_vector": torch.ones(63)},
        {"use_dora": True},
        r"lora_magnitude_vector' is for a matrix of \[63\], but",
    ),
    "twice": (
        factors(Q0) | {name.replace(".weight", ".default.weight"): t for name, t in factors(Q0).items()},
        {},
        "are for the same place",
    ),
    "twice by another name": (
        factors(Q0) | factors(Q0.replace("model.", "model.language_model.")),
        {},
        "there are two changes of model.layers.0.self_attn.q_proj.weight",
    ),
    "factors in 3 dimensions": ({name: tensor[None] for name, tensor in factors(Q0).items()}, {}, "are not of rank 2"),
    "a layer too many": (factors(Q0.replace("0", "9")), {}, r"layers.9.self_attn.q_proj.lora_A.weight' fits nothing"),
    "another architecture": (factors("transformer.h.0.attn"), {}, "which has no transformer.h.0.attn.weight"),
    "a bias that is not there": (
        {f"base_model.model.{Q0}.base_layer.bias": torch.zeros(64)},
        {},
        "which has no model.layers.0.self_attn.q_proj.bias",
    ),
    "a factor's bias": (factors(Q0) | {f"base_model.model.{Q0}.lora_B.bias": torch.zeros(64)}, {}, "fits nothing"),
    "tokens of its own": ({f"{TABLE}.token_adapter.trainable_tokens_delta": NONE}, {}, "fits nothing in the model"),
    "another width": (
        factors(Q0, inputs=96),
        {},
        r"a matrix of \[64, 96\], but model.layers.0.self_attn.q_proj.weight is \[64, 64\]: it was trained on them/",
    ),
    "another vocabulary": ({f"{TABLE}.weight": torch.zeros(212, 64)}, {}, r"of \[212, 64\], but .* is \[211, 64\]"),
    "integers": (
        {name: tensor.to(torch.int32) for name, tensor in factors(Q0).items()},
        {},
        "lora_A.weight' is I32; supported are",
    ),
    "not a number": (
        {name: tensor * float("nan") for name, tensor in factors(Q0).items()},
        {},
        "lora_A.weight' has a number in it that is not finite",
    ),
    "an infinite table": ({f"{TABLE}.weight": torch.full((211, 64), torch.inf)}, {}, "that is not finite"),
    "too large together": (
        {name: tensor * 1e25 for name, tensor in factors(Q0).items()},
        {},
        "q_proj.weight is not finite with the adapter in it",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_merged_is_one_line_that_says_why(name: str, checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    tensors, settings, reason = BROKEN[name]
    folder = write(tmp_path / "adapter", tensors, **settings)
    with pytest.raises(WeightsError, match=reason) as caught:
        load_model(adapted(checkpoint("llama"), folder), "float32")
    assert str(caught.value).startswith(f"{folder}/adapter_")
    assert "\n" not in str(caught.value)


def test_a_row_of_length_zero_has_no_direction(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIGS["llama"])
    tensors[f"{Q0}.weight"][5] = 0
    base = write_checkpoint(tmp_path / "base", CONFIGS["llama"], tensors)
    made = factors(Q0) | {f"base_model.model.{Q0}.lora_magnitude_vector": torch.ones(64)}
    made[f"base_model.model.{Q0}.lora_B.weight"][5] = 0
    with pytest.raises(WeightsError, match="not finite with the adapter"):
        load_model(adapted(base, write(tmp_path / "adapter", made, use_dora=True)), "float32")


def test_damaged_files(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    whole = file.read_bytes()
    for data, reason in (
        (b"", "longer than the file"),
        (whole[:100], "longer than the file"),
        (whole[:-9], "beyond the end"),
        (struct.pack("<Q", 1 << 62) + b"{}", "longer than the file"),
        (struct.pack("<Q", 40) + b"not json" * 20, "not valid JSON"),
    ):
        file.write_bytes(data)
        with pytest.raises(WeightsError, match=reason):
            Adapter(folder)
    with open(file, "wb") as sparse:
        sparse.write(struct.pack("<Q", 50 << 20))
        sparse.truncate(60 << 20)
    with pytest.raises(WeightsError, match="larger than 16 MiB"):
        Adapter(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": NaN}')
    with pytest.raises(WeightsError, match="not valid JSON"):
        Adapter(folder)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter")
    (folder / "adapter_model.safetensors").rename(folder / "elsewhere")
    with pytest.raises(WeightsError, match=r"there is no adapter_model\.safetensors in it"):
        Adapter(folder)
    (folder / "elsewhere").rename(folder / "adapter_model.bin")
    with pytest.raises(
        WeightsError, match=r"adapter_model\.bin: a pickle, which is never loaded: save the adapter again"
    ):
        Adapter(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(WeightsError, match=r"not an adapter: there is no adapter_config\.json in it"):
        Adapter(folder)


def test_where_an_adapter_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "adapter")
    assert locate(str(folder)) == folder
    assert locate(str(folder / "adapter_model.safetensors")) == folder
    assert locate(str(folder / "adapter_config.json")) == folder
    with pytest.raises(StoreError, match=r"nowhere: there is no such adapter: a directory with adapter_config\.json"):
        locate("nowhere")
    monkeypatch.setattr("voxlane.engine.weights.store.resolve", lambda name, **_: tmp_path / name.replace(":", "/"))
    assert locate("hf:them/adapter") == tmp_path / "hf/them/adapter"
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="not an adapter"):
        Adapter(locate(str(tmp_path / "model.gguf")))


def test_what_peft_saves_along_of_a_tied_model_is_both_its_tables(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    train(checkpoint("qwen2"), tmp_path, target_modules=["embed_tokens"])
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    (saved,) = (name for name in tensors if "base_layer" in name)
    tensors[saved] *= 2
    save_file(tensors, file)
    found = adapted(checkpoint("qwen2"), tmp_path)
    assert torch.equal(found.tensor("lm_head.weight"), tensors[saved])
    assert found.names()[-1] == "lm_head.weight"
    assert found.config["tie_word_embeddings"] is False
