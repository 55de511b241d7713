"""`config.json` -> ModelSpec, by one small table per architecture.

A family names the keys that it reads, its defaults (transformers', release 5.24) and what it fixes. `INERT`
lists keys that are known not to change the maths. Any other key is an error: a config that asks for something
unknown must not be compiled as if it had not. Old and new spellings (`rope_theta` and `rope_scaling`;
`rope_parameters`) are both read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...plans.layout import Limit
from .files import boolean, integer, number, show
from .rope_config import ROPE_KEYS, read_rope
from .spec import CheckpointError, ModelSpec

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
    "tie_word_embeddings",
    "bos_token_id", "eos_token_id",
)  # fmt: skip

# Keys that do not change the maths of one forward pass: bookkeeping, training, sharding, the defaults of
# generate().
INERT = frozenset({
    # bookkeeping of the libraries that wrote or load it
    "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype",
    "auto_map",
    "_commit_hash", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset",
    "_flash_attn_2_enabled", "use_flash_attention", "use_flash_attn", "is_llama_config",
    "transformers.js_config",
    "unsloth_version", "unsloth_fixed", "torchscript", "use_bfloat16", "tf_legacy_loss", "return_dict",
    "output_attentions", "output_hidden_states", "tokenizer_class", "model_max_length",
    "tokenizer_model_max_length", "max_sequence_length", "prefix", "is_decoder", "chunk_size_feed_forward",
    # training
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "neftune_noise_alpha",
    "gradient_checkpointing", "loss_type", "finetuning_task", "id2label", "label2id", "num_labels",
    "problem_type",
    "task_specific_params",
    # defaults of generate(): the runtime takes its own from generation_config.json
    "use_cache", "pad_token_id", "sep_token_id", "decoder_start_token_id", "max_length", "min_length",
    "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens",
})  # fmt: skip

# Keys that change nothing at the values listed and are refused at any other.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "pretraining_tp": (1, None), "is_encoder_decoder": (False,), "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,), "tie_encoder_decoder": (False,), "pruned_heads": ({}, None),
    "rope_interleaved": (False, None), "use_mrope": (False, None), "partial_rotary_factor": (1, None),
    "attention_bias": (False, None), "mlp_bias": (False, None), "sliding_window": (None,),
    "layer_types": (None,),
    "max_window_layers": (None,), "no_rope_layers": (None,), "no_rope_layer_interval": (None,),
    "use_sliding_window": (False, None), "quantization_config": (None,), "use_qk_norm": (False, None),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture reads beside `SIZES` and the rope keys, its defaults, and what it always has."""

    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(
        default_factory=dict
    )  # transformers' class defaults that differ from Llama's
    qkv_bias: bool = False
    qk_norm: bool = False
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(("attention_bias", "mlp_bias", "layer_types")),
    "MistralForCausalLM": Family(("sliding_window", "layer_types"), {"sliding_window": 4096}),
    "Qwen2ForCausalLM": Family(
        WINDOW_KEYS, {"sliding_window": 4096, "max_window_layers": 28}, qkv_bias=True,
        neutral={"attention_bias": (True, None), "qkv_bias": (True, None)},
    ),
    "Qwen3ForCausalLM": Family(
        (*WINDOW_KEYS, "attention_bias"), {"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
        qk_norm=True, neutral={"use_qk_norm": (True, None)},
    ),
    # SmolLM3's release says pretraining_tp 2; the class has no such field, so it means nothing there
    "SmolLM3ForCausalLM": Family(
        ("attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval", "pretraining_tp",
        *WINDOW_KEYS),
        {"rope_theta": 2000000.0, "tie_word_embeddings": True, "bos_token_id": 128000,
        "eos_token_id": 128001},
    ),
}  # fmt: skip
LLAMA_DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10000.0, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
TOKEN_DEFAULTS: Mapping[str, Mapping[str, int]] = {  # where the class says more than None
    "LlamaForCausalLM": {"bos_token_id": 1, "eos_token_id": 2},
    "MistralForCausalLM": {"bos_token_id": 1, "eos_token_id": 2},
}


def _architecture(config: Mapping[str, Any]) -> str:
    found = config.get("architectures")
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str):
        raise CheckpointError(f"architectures is {show(found)}; it must name one of {', '.join(FAMILIES)}")
    if found[0] not in FAMILIES:
        raise CheckpointError(
            f"the architecture {show(found[0])} is not supported; these are: {', '.join(FAMILIES)}"
        )
    return found[0]


def _refuse_unknown(config: Mapping[str, Any], family: Family) -> None:
    """Raise CheckpointError for the first key that may change the maths in a way nobody here knows."""
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise CheckpointError(
            f"the checkpoint is quantised (quantization_config {show(method)}); give the original, or GGUF"
        )
    known = {*SIZES, *ROPE_KEYS, *family.keys}
    neutral = {**NEUTRAL, **family.neutral}
    for key, value in config.items():
        if key in known or key in INERT:
            continue
        if key not in neutral:
            raise CheckpointError(
                f"the config key {show(key)} (value {show(value)}) is unknown: it may change the maths"
            )
        if not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
            for allowed in neutral[key]
        ):
            allowed_text = " or ".join(show(allowed) for allowed in neutral[key])
            raise CheckpointError(
                f"{key} is {show(value)}; this architecture is compiled only with {allowed_text}"
            )


def _token_ids(values: Mapping[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    """One token id or a list of them, each once, in the order given. null is none."""
    found = values.get(key)
    ids = [] if found is None else found if isinstance(found, list) else [found]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise CheckpointError(
                f"{key} is {show(found)}; token ids are whole numbers from 0 to {vocabulary - 1}"
            )
    return tuple(dict.fromkeys(ids))


def add_eos_tokens(spec: ModelSpec, generation: Mapping[str, Any]) -> ModelSpec:
    """The spec with generation_config.json's eos tokens after the config's own."""
    more = _token_ids(generation, "eos_token_id", spec.vocabulary)
    return replace(spec, eos_tokens=tuple(dict.fromkeys((*spec.eos_tokens, *more))))


def _layer_types(config: Mapping[str, Any], layers: int) -> tuple[bool, ...] | None:
    """layer_types as one `slides` per layer, or None when absent."""
    found = config.get("layer_types")
    if found is None:
        return None
    allowed = ("full_attention", "sliding_attention")
    if not isinstance(found, list) or len(found) != layers or not all(kind in allowed for kind in found):
        raise CheckpointError(
            f"layer_types is {show(found)}; it must list {' or '.join(allowed)} for each layer"
        )
    return tuple(kind == "sliding_attention" for kind in found)


def _layer_rope(config: Mapping[str, Any], architecture: str, layers: int) -> tuple[bool, ...]:
    """Which layers rotate: all; SmolLM3 leaves out those at 0 in no_rope_layers (default: each fourth)."""
    if architecture != "SmolLM3ForCausalLM":
        return (True,) * layers
    found = config.get("no_rope_layers")
    if found is None:
        interval = integer(config, "no_rope_layer_interval", 1, int(Limit.LAYERS), 4)
        return tuple((i + 1) % interval != 0 for i in range(layers))
    if (
        not isinstance(found, list)
        or len(found) < layers
        or not all(type(x) is int and x in (0, 1) for x in found)
    ):
        raise CheckpointError(f"no_rope_layers is {show(found)}; it must list a 0 or a 1 for each layer")
    return tuple(value == 1 for value in found[:layers])


def _layer_window(
    config: Mapping[str, Any], architecture: str, layer_rope: tuple[bool, ...]
) -> tuple[int, ...]:
    """Each layer's sliding window in tokens, 0 for full attention, as each transformers class decides it."""
    layers = len(layer_rope)
    types = _layer_types(config, layers)
    if architecture == "LlamaForCausalLM":
        if types is not None and any(types):
            raise CheckpointError("layer_types has sliding_attention; LlamaForCausalLM attends to everything")
        return (0,) * layers
    window = 0
    if config.get("sliding_window") is not None:
        window = integer(config, "sliding_window", 1, int(Limit.CONTEXT))
    if architecture == "MistralForCausalLM":
        if types is not None and types != (window > 0,) * layers:
            raise CheckpointError(
                "layer_types alternates; MistralForCausalLM uses its sliding window on all layers or none"
            )
        return (window,) * layers
    if not boolean(config, "use_sliding_window", False):
        window = 0
    if types is None and architecture == "SmolLM3ForCausalLM":
        types = tuple(window > 0 and not rope for rope in layer_rope)
    elif types is None:
        first = integer(config, "max_window_layers", 0, int(Limit.CONTEXT))
        types = tuple(window > 0 and i >= first for i in range(layers))
    elif any(types) and not window:
        raise CheckpointError(
            "layer_types has sliding_attention but no sliding window is in use; set use_sliding_window"
        )
    return tuple(window if slides else 0 for slides in types)


def _heads(config: Mapping[str, Any], hidden: int) -> tuple[int, int, int]:
    """(query heads, KV heads, head size)."""
    query = integer(config, "num_attention_heads", 1, int(Limit.HEADS))
    if "num_key_value_heads" not in config and config.get("architectures") != ["LlamaForCausalLM"]:
        raise CheckpointError(
            "num_key_value_heads is missing; a number from 1 to num_attention_heads is required"
        )
    kv = integer(config, "num_key_value_heads", 1, int(Limit.HEADS), query)
    if query % kv:
        raise CheckpointError(
            f"num_attention_heads is {query}; it must be a multiple of num_key_value_heads ({kv})"
        )
    if config.get("head_dim") is None and hidden % query:
        raise CheckpointError(
            f"hidden_size {hidden} is not a multiple of {query} heads; head_dim must say their size"
        )
    head = integer(config, "head_dim", 1, int(Limit.HEAD_SIZE), hidden // query)
    if head % 8:
        raise CheckpointError(
            f"the head size is {head}; it must be a multiple of 8 up to {int(Limit.HEAD_SIZE)}"
        )
    return query, kv, head


def model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The model that a parsed config.json describes. Raises CheckpointError naming the key and value at
    fault.
    """
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    _refuse_unknown(config, family)
    defaults = {**LLAMA_DEFAULTS, **TOKEN_DEFAULTS.get(architecture, {}), **family.defaults}
    config = {**defaults, **config}
    if config["hidden_act"] != "silu":
        raise CheckpointError(f'hidden_act is {show(config["hidden_act"])}; only "silu" is compiled')
    vocabulary = integer(config, "vocab_size", 1, int(Limit.VOCABULARY))
    hidden = integer(config, "hidden_size", 1, int(Limit.HIDDEN))
    layers = integer(config, "num_hidden_layers", 1, int(Limit.LAYERS))
    context = integer(config, "max_position_embeddings", 2, int(Limit.CONTEXT))
    query, kv, head = _heads(config, hidden)
    layer_rope = _layer_rope(config, architecture, layers)
    attention_bias = "attention_bias" in family.keys and boolean(config, "attention_bias", False)
    bos = _token_ids(config, "bos_token_id", vocabulary)
    return ModelSpec(
        architecture=architecture, vocabulary=vocabulary, hidden=hidden,
        intermediate=integer(config, "intermediate_size", 1, int(Limit.HIDDEN)), layers=layers,
        query_heads=query, kv_heads=kv, head_size=head, context=context,
        norm_eps=number(config, "rms_norm_eps", 0.0, 1.0),
        rope=read_rope(config, head, context),
        layer_window=_layer_window(config, architecture, layer_rope), layer_rope=layer_rope,
        tied_head=boolean(config, "tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or attention_bias, output_bias=attention_bias,
        mlp_bias="mlp_bias" in family.keys and boolean(config, "mlp_bias", False), qk_norm=family.qk_norm,
        bos_token=bos[0] if bos else None, eos_tokens=_token_ids(config, "eos_token_id", vocabulary),
    )  # fmt: skip
