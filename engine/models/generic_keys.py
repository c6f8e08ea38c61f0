"""Keys that Hugging Face's library writes into every model's files, whatever the model.

Older versions of it write all of them into each part of a config.json. Some do not change a model's result; the others
do, except at one value.
"""

from __future__ import annotations

from collections.abc import Mapping

NOTES = frozenset({
    *("_commit_hash", "_from_model_config", "_name_or_path", "architectures", "auto_map", "model_type", "name_or_path"),
    *("dtype", "torch_dtype", "transformers_version", "use_bfloat16", "tf_legacy_loss", "torchscript"),
    # training, and heads that classify
    *("attention_dropout", "finetuning_task", "gradient_checkpointing", "id2label", "initializer_range", "label2id"),
    *("num_labels", "problem_type", "task_specific_params"),
    # how the library computes the same result, and what else it returns
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "cache_config"),
    *("chunk_size_feed_forward", "compile_config", "continuous_batching_config", "disable_compile", "is_decoder"),
    *("low_memory", "output_attentions", "output_hidden_states", "output_logits", "output_scores"),
    *("prefill_chunk_size", "remove_invalid_values", "renormalize_logits", "return_dict", "return_dict_in_generate"),
    *("max_cache_len", "return_legacy_cache", "use_cache"),
    # a second model for speculation: the result stays the same
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind"),
    *("is_assistant", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("prompt_lookup_num_tokens", "speculation_type", "target_lookbehind", "use_mtp"),
    # of several beams; there is one
    *("early_stopping", "length_penalty"),
    # tokens that our own prompts and vocabularies name
    *("bos_token_id", "decoder_start_token_id", "pad_token_id", "sep_token_id", "tokenizer_class"),
})  # fmt: skip
"""Keys that are ignored in any file: they do not change the result."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,), "cross_attention_hidden_size": (), "is_encoder_decoder": (False,),
    "prefix": ("",), "pruned_heads": ({},), "tie_encoder_decoder": (False,),
    "bad_words_ids": ([],), "begin_suppress_tokens": ([],), "cache_implementation": ("dynamic", "static"),
    "constraints": (), "diversity_penalty": (0,), "dola_layers": (), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (), "force_words_ids": (), "forced_bos_token_id": (),
    "forced_eos_token_id": (), "guidance_scale": (1,), "max_time": (), "min_length": (0,), "min_new_tokens": (0,),
    "min_p": (0,), "no_repeat_ngram_size": (0,), "num_beam_groups": (1,), "num_beams": (1,),
    "num_return_sequences": (1,), "penalty_alpha": (0,), "repetition_penalty": (1,), "sequence_bias": (),
    "stop_strings": (), "suppress_tokens": ([],), "token_healing": (False,), "top_h": (1,), "typical_p": (1,),
    "watermarking_config": (),
}  # fmt: skip
"""Keys that change the result, and the values at which they do not; null never does."""

CHOOSING = frozenset({"do_sample", "eos_token_id", "max_length", "max_new_tokens", "temperature", "top_k", "top_p"})
"""How tokens are chosen and where they end: the code that asks a part of a model for tokens decides that itself."""
