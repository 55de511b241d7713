"""The `config.json` of released models of every family, as their publishers wrote them, with what each must
become.

They hold the keys that checkpoints in the wild carry, from transformers 4.31 to 5: the reader must take all
of them.
"""

from __future__ import annotations

from typing import Any

_OLD = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "pretraining_tp": 1,
    "torch_dtype": "bfloat16",
    **_OLD,
}
_LLAMA3: dict[str, Any] = {
    **_LLAMA,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "transformers_version": "4.45.0.dev0",
    "vocab_size": 128256,
}
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
}
_SMOLLM3_ROPE = [1, 1, 1, 0] * 9

RELEASED: dict[str, dict[str, Any]] = {
    "Llama-2-7b": {
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "Llama-3.1-8B-Instruct": {
        **_LLAMA3, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "Llama-3.2-1B": {
        **_LLAMA3, "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "tie_word_embeddings": True, "eos_token_id": 128001,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "SmolLM2-135M-Instruct": {
        **_LLAMA, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "transformers_version": "4.42.3", "vocab_size": 49152,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True,
        "vocab_size": 32000,
    },
    "Mistral-7B-Instruct-v0.3": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0",
        "use_cache": True, "vocab_size": 32768,
    },
    "Qwen2.5-0.5B": {
        **_QWEN2, "eos_token_id": 151643, "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False,
        "vocab_size": 151936,
    },
    "Qwen2.5-7B-Instruct with yarn": {
        **_QWEN2, "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "Qwen3-0.6B": {
        **_QWEN2, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
        "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_scaling": None,
        "sliding_window": None, "tie_word_embeddings": True, "transformers_version": "4.51.0",
        "vocab_size": 151936,
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": _SMOLLM3_ROPE, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False,
        "use_sliding_window": False, "vocab_size": 128256,
    },
}  # fmt: skip

# (head size, KV heads, tied, windows of the first and last layer, layers that rotate, rope kind, theta, eos
# tokens)
EXPECTED: dict[str, tuple[Any, ...]] = {
    "Llama-2-7b": (128, 32, False, (0, 0), 32, "default", 10000.0, (2,)),
    "Llama-3.1-8B-Instruct": (128, 8, False, (0, 0), 32, "llama3", 500000.0, (128001, 128008, 128009)),
    "Llama-3.2-1B": (64, 8, True, (0, 0), 16, "llama3", 500000.0, (128001,)),
    "SmolLM2-135M-Instruct": (64, 3, True, (0, 0), 30, "default", 100000.0, (2,)),
    "Mistral-7B-v0.1": (128, 8, False, (4096, 4096), 32, "default", 10000.0, (2,)),
    "Mistral-7B-Instruct-v0.3": (128, 8, False, (0, 0), 32, "default", 1000000.0, (2,)),
    "Qwen2.5-0.5B": (64, 2, True, (0, 0), 24, "default", 1000000.0, (151643,)),
    "Qwen2.5-7B-Instruct with yarn": (128, 4, False, (0, 0), 28, "yarn", 1000000.0, (151645,)),
    "Qwen3-0.6B": (128, 8, True, (0, 0), 28, "default", 1000000.0, (151645,)),
    "SmolLM3-3B": (128, 4, True, (0, 0), 27, "default", 5000000.0, (128012,)),
}
