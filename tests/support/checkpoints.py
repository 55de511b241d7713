"""Small random checkpoints of every family that Ingot compiles, written by transformers itself.

A case names a family and its oddities: head sizes that are not powers of two, seven query heads on one KV
head, windows shorter than a prompt, every rope scaling, every bias. Weights are drawn wide enough that logits
are not flat; norms are not one and biases not zero, so that a swapped or forgotten tensor shows. The
tokenizers are real ones, trained on the paragraph below. Only tests import this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers.tokenization_utils_base import generate_merges

VOCABULARY = 1003
BOS, EOS, PAD = 0, 1, 2

PARAGRAPH = """The harbour master kept a ledger of every ship, its berth and the hour it was due to leave.
Nothing entered the basin unless a berth had been promised to it, and nothing that had been promised a berth
was ever turned away. On Tuesday the 14th of March 1893 there were 27 ships, 3 tugs and a barge; by Friday
only 19 remained. "It's simple," she'd say, "we count before we promise." The apprentices didn't always
agree: they'd rather guess, and they were often wrong.
def admit(ship, basin): return basin.free >= ship.length  # metres, never feet
for (int i = 0; i < count; ++i) { total += lengths[i] * 2.5; }
Der Hafenmeister prüft täglich die Größe der Schiffe. Le capitaine a déjà réservé sa place près de l'écluse.
港の長は毎日、船の数を数える。 港口每天都很忙碌。 Кораблей в гавани было двадцать семь. 😀🚢⚓"""

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# The pre-tokenizer of each family, as its released tokenizer.json states it.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = _WORDS + r"\p{N}{1,3}" + _REST
QWEN2_PATTERN = _WORDS + r"\p{N}" + _REST


@dataclass(frozen=True, slots=True)
class Case:
    """One checkpoint: a transformers class, its config's departures from `BASE`, and the tokenizer it
    carries.
    """

    architecture: str
    tokenizer: str = "gpt2"
    config: Mapping[str, Any] = field(default_factory=dict)


BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 136, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 40, "max_position_embeddings": 384,
    "rms_norm_eps": 1e-5, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
    "tie_word_embeddings": False,
}  # fmt: skip

SMALL_SMOLLM2 = {
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None, "hidden_size": 72,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}  # fmt: skip

CASES: dict[str, Case] = {
    "llama2": Case("Llama", "llama", {"head_dim": None}),
    "llama3": Case("Llama", "llama-bpe", {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
        "eos_token_id": [EOS, 4], "head_dim": 64, "num_hidden_layers": 3,
    }),
    "llama_linear": Case("Llama", "llama", {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, "head_dim": 80,
    }),
    "llama_yarn": Case("Llama", "gpt2", {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 96,
            "beta_fast": 24.0, "beta_slow": 2.0,
        },
    }),
    "llama_biases": Case("Llama", "gpt2", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "mistral": Case("Mistral", "llama", {
        "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 80, "sliding_window": 24,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "num_hidden_layers": 3,
    }),
    "qwen2": Case("Qwen2", "qwen2", {
        "tie_word_embeddings": True, "head_dim": None, "rms_norm_eps": 1e-6, "use_sliding_window": False,
        "sliding_window": 64, "max_window_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }),
    "qwen2_window": Case("Qwen2", "qwen2", {
        "head_dim": None, "hidden_size": 120, "num_attention_heads": 3, "num_key_value_heads": 3,
        "num_hidden_layers": 3,
        "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 2.0,
            "original_max_position_embeddings": 192,
        },
    }),
    "qwen3": Case("Qwen3", "qwen2", {
        "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 40, "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6, "eos_token_id": [EOS, 4],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }),
    "qwen3_biases": Case("Qwen3", "qwen2", {
        "head_dim": 64, "attention_bias": True, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }),
    "smollm2": Case("Llama", "smollm", SMALL_SMOLLM2),
    "smollm3": Case("SmolLM3", "llama-bpe", {
        "head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3,
        "hidden_size": 80, "no_rope_layers": [1, 0, 1], "no_rope_layer_interval": 2,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2000000.0},
    }),
    "smollm3_interval": Case("SmolLM3", "llama-bpe", {
        "num_hidden_layers": 5, "head_dim": None, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    }),
    "smollm3_window": Case("SmolLM3", "llama-bpe", {
        "head_dim": None, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "hidden_size": 96,
        "no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 20,
        "tie_word_embeddings": False,
        "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    }),
}  # fmt: skip

SENTENCEPIECE_FIRST = 261  # after 5 special tokens and 256 bytes
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]


def _byte_level(pattern: str | None, digits: bool) -> Tokenizer:
    """A GPT-2-like byte-level BPE whose text is first split by `pattern` (None: GPT-2's own)."""
    tokenizer = Tokenizer(models.BPE())
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if pattern is not None:
        parts.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(PARAGRAPH.splitlines(), trainer)
    return tokenizer


def sentencepiece_score(token: int) -> float:
    """A piece's score by its id, as in Llama 2's tokenizer.model: 0 for the first merge, then less by one
    each.
    """
    return float(SENTENCEPIECE_FIRST - token)


def _sentencepiece() -> Tokenizer:
    """A Llama-2-like BPE with byte fallback: `▁` for a space, one in front of the text, bos before it."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(
        PARAGRAPH.splitlines(), trainers.BpeTrainer(vocab_size=500, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    tokens = ["<s>", "</s>", "<unk>", *SPECIAL[3:], *alphabet]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merged = ["".join(merge) for merge in model["merges"]]
    for token in [*merged, *(token for token in model["vocab"] if token not in set(merged))]:
        vocabulary.setdefault(token, len(vocabulary))
    scores = {token: sentencepiece_score(i) for token, i in vocabulary.items() if i >= len(tokens)}
    merges = generate_merges(vocabulary, scores, skip_tokens=tokens)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def make_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer: `llama` (as SentencePiece), or byte-level: `gpt2`, `llama-bpe`, `qwen2`, `smollm`."""
    if kind == "llama":
        tokenizer = _sentencepiece()
    else:
        pattern = {"llama-bpe": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}.get(kind)
        tokenizer = _byte_level(pattern, digits=kind == "smollm")
        if kind == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    special = ["<s>", "</s>", "<unk>", *SPECIAL[3:]] if kind == "llama" else SPECIAL
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def write_tokenizer(directory: Path, kind: str) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json as released checkpoints have them."""
    make_tokenizer(kind).save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {
        "add_bos_token": kind == "llama", "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "model_max_length": 384,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    config |= {"unk_token": "<unk>"} if kind == "llama" else {"pad_token": "<pad>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    generation = {
        "bos_token_id": BOS,
        "eos_token_id": [EOS, 4],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2))


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Fill every parameter: matrices with a little more than unit gain, norms around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                value = 0.3 * drawn
            elif "norm" in name:
                value = 1.0 + 0.25 * drawn
            elif "embed" in name or "lm_head" in name:
                value = 0.3 * drawn
            else:
                value = drawn * (1.25 / math.sqrt(parameter.shape[1]))
            parameter.copy_(value)


def make_config(case: str) -> Any:
    """The transformers config of a case."""
    entry = CASES[case]
    values = BASE | dict(entry.config)
    if values["head_dim"] is None:
        del values["head_dim"]
    return getattr(transformers, f"{entry.architecture}Config")(**values)


def make_checkpoint(
    directory: Path, case: str, seed: int = 0, dtype: str = "bfloat16", shards: int = 1
) -> Path:
    """Write the checkpoint of `case` into a new folder of `directory` and return that folder.

    dtype is bfloat16, float16 or float32 (of the stored weights); shards > 1 writes about that many
    safetensors files and an index.
    """
    path = directory / f"{case}-{dtype}-seed{seed}-shards{shards}"
    path.mkdir(parents=True, exist_ok=True)
    config = make_config(case)
    model = getattr(transformers, f"{CASES[case].architecture}ForCausalLM")(config)
    draw_weights(model, seed)
    model = model.to(getattr(torch, dtype))
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    model.save_pretrained(path, max_shard_size=total // shards + (0 if shards > 1 else 1024))
    write_tokenizer(path, CASES[case].tokenizer)
    return path


def _random_bf16(generator: np.random.Generator, elements: int, scale: float) -> bytes:
    """`elements` bfloat16 numbers, uniform in [-scale, scale]: float32 bits, upper halves."""
    drawn = generator.random(elements, dtype=np.float32)
    drawn -= np.float32(0.5)
    drawn *= np.float32(2 * scale)
    return (drawn.view(np.uint32) >> 16).astype("<u2").tobytes()


def _write_shard(path: Path, tensors: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """One bf16 safetensors file, written a few MiB at a time (format: 8-byte length, JSON header, data)."""
    generator, offset, header = np.random.default_rng(seed), 0, {}
    for name, shape in tensors.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            left, scale = math.prod(shape), 2.0 / math.sqrt(shape[-1])
            while left:
                count = min(left, 1 << 21)
                file.write(b"\x80\x3f" * count if "norm" in name else _random_bf16(generator, count, scale))
                left -= count


def make_big_checkpoint(directory: Path, size: int = 2 << 30) -> Path:
    """Write a Llama checkpoint of about `size` bytes in bf16 shards of one layer each, and return its folder.

    Memory stays at tens of MiB whatever the size: it is for tests of how much memory a build takes. Layers
    are Llama-3.2-1B's; the vocabulary is small and there is no tokenizer.
    """
    path = directory / f"big-{size}"
    path.mkdir(parents=True, exist_ok=True)
    hidden, intermediate, heads, kv_heads, head, vocabulary = 2048, 8192, 32, 8, 64, 32000
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (kv_heads * head, hidden),
        "self_attn.v_proj": (kv_heads * head, hidden), "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }  # fmt: skip
    outer = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    layer_bytes = 2 * sum(math.prod(shape) for shape in layer.values())
    layers = max(1, (size - 2 * vocabulary * hidden) // layer_bytes)
    shards = [outer] + [
        {f"model.layers.{i}.{name}.weight": s for name, s in layer.items()} for i in range(layers)
    ]
    weight_map = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        _write_shard(path / name, tensors, seed=i)
        weight_map |= dict.fromkeys(tensors, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "vocab_size": vocabulary,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 0,
        "eos_token_id": 1,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config, indent=2))
    return path
