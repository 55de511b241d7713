"""A GGUF file -> Checkpoint: metadata to ModelSpec, tensors dequantised by row ranges, the tokenizer rebuilt.

llama.cpp stores the q and k projections of Llama-like models with each head's rotary halves interleaved (its
rotary embedding pairs neighbours); they are read back in the half-split order of transformers. Frequency
factors (`rope_freqs.weight`, how Llama 3's scaling is stored) are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf as ggml
import numpy as np
from numpy.typing import NDArray

from ...plans.layout import Limit
from .files import integer, number, show
from .gguf_file import GgufFile, GgufTensor, Value, read_gguf
from .gguf_tokenizer import gguf_text
from .names import Shape, gguf_name, match_tensors, tensor_shapes
from .rope_config import FACTOR_MAX, THETA_MAX
from .spec import Checkpoint, CheckpointError, ModelSpec, RopeKind, RopeSpec
from .streams import StoredFile, digest_files, read_rows

TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "TQ1_0",
    "TQ2_0", "MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
SMOLLM3_ROPE_INTERVAL = 4  # llama.cpp fixes it: every fourth layer does not rotate


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """What an architecture name of GGUF stands for here."""

    architecture: str
    permuted: bool  # q and k have interleaved rotary halves
    qk_norm: bool = False


FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("LlamaForCausalLM", True),
    "qwen2": GgufFamily("Qwen2ForCausalLM", False),
    "qwen3": GgufFamily("Qwen3ForCausalLM", False, qk_norm=True),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", True),
}
READ_KEYS = frozenset({
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window", "rope.dimension_count", "rope.freq_base", "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
})  # fmt: skip
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,), "expert_used_count": (0,), "attention.causal": (True,), "pooling_type": (0,),
    "tensor_data_layout": ("Meta AI original pth",), "use_parallel_residual": (False,),
    "rope.scaling.yarn_ext_factor": (1.0,), "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
}  # fmt: skip


def ggml_sizes() -> dict[int, tuple[str, int, int]]:
    """ggml type -> (name, elements of a block, bytes of a block), for the types that can be dequantised."""
    return {
        int(kind): (kind.name, *ggml.GGML_QUANT_SIZES[kind])
        for kind in ggml.GGMLQuantizationType
        if kind.name in TYPES
    }


def _check_keys(metadata: Mapping[str, Value], prefix: str) -> None:
    """Raise CheckpointError for a key of the architecture that is unknown: it may change the maths."""
    if metadata.get("general.type", "model") != "model":
        raise CheckpointError(
            f"general.type is {show(metadata['general.type'])}; only a model can be compiled"
        )
    if metadata.get("split.count") not in (None, 0, 1):
        raise CheckpointError(
            "the GGUF file is one of several parts; join them with llama-gguf-split --merge"
        )
    for key, value in metadata.items():
        suffix = key.removeprefix(prefix)
        if suffix == key or suffix in READ_KEYS:
            continue
        if suffix not in NEUTRAL:
            raise CheckpointError(
                f"the metadata key {show(key)} ({show(value)}) is unknown: it may change the maths"
            )
        if value not in NEUTRAL[suffix]:
            allowed = " or ".join(show(one) for one in NEUTRAL[suffix])
            raise CheckpointError(f"{key} is {show(value)}; it is compiled only with {allowed}")


def _rope(found: Mapping[str, Value], rotary: int, factors: tuple[float, ...]) -> RopeSpec:
    """The rotary embedding as llama.cpp computes it, in transformers' terms (llama.cpp's ggml_rope_ext)."""
    theta = number(found, "rope.freq_base", 1.0 + 1e-6, THETA_MAX, 10000.0)
    kind = found.get("rope.scaling.type", "linear" if "rope.scale_linear" in found else "none")
    if kind not in ("none", "linear", "yarn"):
        raise CheckpointError(
            f"the rope scaling {show(kind)} is not supported; these are: none, linear, yarn"
        )
    attention = number(found, "rope.scaling.attn_factor", 1e-6, FACTOR_MAX, 1.0)
    if kind == "none":
        if attention != 1.0:
            raise CheckpointError(f"rope.scaling.attn_factor is {attention:g}; without scaling it must be 1")
        return RopeSpec(RopeKind.DEFAULT, theta, rotary, {}, factors)
    if factors:
        raise CheckpointError(
            f"{ROPE_FACTORS} and the rope scaling {kind} are both given; one of them is supported"
        )
    key = (
        "rope.scale_linear"
        if "rope.scaling.factor" not in found and "rope.scale_linear" in found
        else "rope.scaling.factor"
    )
    factor = number(found, key, 1.0, FACTOR_MAX)
    if kind == "linear":
        return RopeSpec(RopeKind.LINEAR, theta, rotary, {"factor": factor})
    parameters = {"factor": factor}
    original = "rope.scaling.original_context_length"
    parameters["original_max_position_embeddings"] = float(integer(found, original, 1, int(Limit.CONTEXT)))
    for name in ("beta_fast", "beta_slow"):
        if f"rope.scaling.yarn_{name}" in found:
            parameters[name] = number(found, f"rope.scaling.yarn_{name}", 1e-3, FACTOR_MAX)
    if attention != 1.0:
        parameters["attention_factor"] = attention * float(1.0 + 0.1 * np.log(factor))
    return RopeSpec(RopeKind.YARN, theta, rotary, parameters)


def _rope_factors(file: GgufFile, rotary: int) -> tuple[float, ...]:
    """The divisors of the inverse frequencies (rotary / 2), or nothing when there are none or all are one."""
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return ()
    if tensor.shape != (rotary // 2,):
        raise CheckpointError(
            f"{ROPE_FACTORS} has shape {show(list(tensor.shape))}; {rotary // 2} factors are needed"
        )
    factors = tuple(float(value) for value in _read_stored(file.file, tensor, ROPE_FACTORS, 0, 1).reshape(-1))
    if any(not 1e-3 <= value <= FACTOR_MAX for value in factors):
        raise CheckpointError(f"{ROPE_FACTORS} has a factor outside 0.001 to {FACTOR_MAX:g}")
    return () if all(value == 1.0 for value in factors) else factors


def _windows(found: Mapping[str, Value], arch: str, layers: int, context: int) -> tuple[int, ...]:
    """A window of a Llama-like file is Mistral's: every layer has it. Which layers it means elsewhere is
    unknown.
    """
    window = integer(found, "attention.sliding_window", 0, int(Limit.CONTEXT), 0)
    if window and arch != "llama" and window < context:
        raise CheckpointError(
            f"{arch}.attention.sliding_window is {window}; GGUF does not say which layers it is for"
        )
    return (window if arch == "llama" else 0,) * layers


def gguf_spec(file: GgufFile) -> ModelSpec:
    """The model of a GGUF file. Raises CheckpointError naming the key and value, or the tensor, at fault."""
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        raise CheckpointError(
            f"the architecture {show(arch)} is not supported; these are: {', '.join(FAMILIES)}"
        )
    family, prefix = FAMILIES[arch], f"{arch}."
    _check_keys(file.metadata, prefix)
    found = {
        key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)
    }
    hidden = integer(found, "embedding_length", 1, int(Limit.HIDDEN))
    layers = integer(found, "block_count", 1, int(Limit.LAYERS))
    context = integer(found, "context_length", 2, int(Limit.CONTEXT))
    query = integer(found, "attention.head_count", 1, int(Limit.HEADS))
    kv = integer(found, "attention.head_count_kv", 1, int(Limit.HEADS), query)
    head = integer(found, "attention.key_length", 8, int(Limit.HEAD_SIZE), hidden // query)
    if (
        query % kv
        or head % 8
        or integer(found, "attention.value_length", 8, int(Limit.HEAD_SIZE), head) != head
    ):
        raise CheckpointError(
            f"{query} query heads, {kv} KV heads of size {head}: KV heads must divide query heads; keys and "
            "values have one size, a multiple of 8"
        )
    rotary = integer(found, "rope.dimension_count", 2, head, head)
    if rotary % 2:
        raise CheckpointError(f"{prefix}rope.dimension_count is {rotary}; it must be even")
    embed = file.tensors.get("token_embd.weight")
    if embed is None or len(embed.shape) != 2 or embed.shape[0] > int(Limit.VOCABULARY):
        raise CheckpointError("token_embd.weight is missing or has an impossible shape")
    windows = _windows(found, arch, layers, context)
    skips = arch == "smollm3"
    return ModelSpec(
        architecture="MistralForCausalLM" if any(windows) else family.architecture,
        vocabulary=embed.shape[0], hidden=hidden, layers=layers, query_heads=query, kv_heads=kv,
        head_size=head,
        intermediate=integer(found, "feed_forward_length", 1, int(Limit.HIDDEN)), context=context,
        norm_eps=number(found, "attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_rope(found, rotary, _rope_factors(file, rotary)), layer_window=windows,
        layer_rope=tuple(not skips or (i + 1) % SMOLLM3_ROPE_INTERVAL != 0 for i in range(layers)),
        tied_head="output.weight" not in file.tensors, qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors, mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=family.qk_norm,
    )  # fmt: skip


def _read_stored(
    file: StoredFile, tensor: GgufTensor, name: str, begin: int, end: int
) -> NDArray[np.float32]:
    """Rows [begin, end) as they lie in the file, dequantised, (end - begin, elements of a row) float32.

    A tensor of one dimension is one row here.
    """
    kind = ggml.GGMLQuantizationType[tensor.type]

    def widen(data: NDArray[np.uint8]) -> NDArray[np.float32]:
        out: NDArray[np.float32] = ggml.quants.dequantize(data, kind)
        return out

    row = (tensor.row_bytes, tensor.shape[-1])
    return read_rows(file, name, tensor.offset, (begin, end), row, widen)


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """A TensorSource over one GGUF file. `heads` has, for q and k of permuted families, (head size, rotated
    part).
    """

    file: StoredFile
    tensors: Mapping[str, GgufTensor]  # by canonical name
    head_size: int
    rotary: int
    permuted: bool

    def names(self) -> list[str]:
        """Canonical names, sorted."""
        return sorted(self.tensors)

    def shape(self, name: str) -> Shape:
        """The tensor's shape, without reading it."""
        return self.tensors[name].shape

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        """Rows [begin, end) along the first axis, float32. Raises CheckpointError for NaN or infinity."""
        tensor = self.tensors[name]
        rows = tensor.shape[0]
        end = rows if end is None else end
        assert 0 <= begin <= end <= rows, (name, begin, end, rows)
        permuted = self.permuted and name.split(".")[-2] in ("q", "k")
        if not permuted and len(tensor.shape) > 1:
            return _read_stored(self.file, tensor, tensor.name, begin, end)
        if len(tensor.shape) == 1:
            whole = _read_stored(self.file, tensor, tensor.name, 0, 1).reshape(-1, 1)
            return (self._half_split(whole) if permuted else whole)[begin:end, 0]
        first, last = begin // self.head_size, -(-end // self.head_size)
        heads = _read_stored(self.file, tensor, tensor.name, first * self.head_size, last * self.head_size)
        offset = first * self.head_size
        return self._half_split(heads)[begin - offset : end - offset]

    def _half_split(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Whole heads of interleaved rows -> the order of transformers: even rows first, then odd ones.

        llama.cpp's converter permutes (heads, 2, half) to (heads, half, 2); this undoes it over the rotated
        part.
        """
        heads = rows.reshape(-1, self.head_size, rows.shape[1])
        order = np.concatenate(
            [
                np.arange(0, self.rotary, 2),
                np.arange(1, self.rotary, 2),
                np.arange(self.rotary, self.head_size),
            ]
        )
        return heads[:, order].reshape(rows.shape)

    def digest(self) -> str:
        """Hex sha256 over the file."""
        return digest_files([self.file])


def open_gguf(path: Path, config_only: bool) -> Checkpoint:
    """Open a GGUF file. Raises CheckpointError for anything that cannot be compiled exactly."""
    file = read_gguf(path, ggml_sizes())
    spec, text = gguf_text(file.metadata, gguf_spec(file))
    if config_only:
        return Checkpoint(spec, text, None, path.stem)
    shapes = tensor_shapes(spec)
    stored = {name: gguf_name(name) for name in shapes}
    # Frequencies that early converters stored beside the weights: the metadata says the same.
    ignored = {ROPE_FACTORS, *(name for name in file.tensors if name.endswith(".attn_rot_embd.weight"))}
    match_tensors(shapes, stored, {name: tensor.shape for name, tensor in file.tensors.items()}, ignored)
    tensors = {name: file.tensors[stored[name]] for name in shapes}
    permuted = FAMILIES[str(file.metadata["general.architecture"])].permuted
    return Checkpoint(
        spec,
        text,
        GgufWeights(file.file, tensors, spec.head_size, spec.rope.rotary_dims, permuted),
        path.stem,
    )
