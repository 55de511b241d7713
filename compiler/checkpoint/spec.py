"""What a checkpoint says about its model, in our words, and how its weights are read.

`ModelSpec` is data: every family that Ingot compiles is a value of it, filled from `config.json` or GGUF
metadata by a small table per architecture (`config.py`, `gguf.py`). `TensorSource` streams weights by row
ranges so that no reader ever holds more than it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class CheckpointError(Exception):
    """A checkpoint that cannot be compiled. The text says what was found, what is allowed, what to do."""


class RopeKind(StrEnum):
    NONE = "none"
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: the kind, its base, rotated elements of a head, and the kind's own parameters.

    `parameters` holds the config's numbers under their transformers names (`factor`, `low_freq_factor`,
    `high_freq_factor`, `original_max_position_embeddings`, `beta_fast`, `beta_slow`, `mscale`,
    `mscale_all_dim`, `attention_factor`, `truncate`); absent keys are absent. `factors`, when not
    empty, divides each pair's inverse frequency (kind default only): GGUF's form of Llama 3's scaling.
    """

    kind: RopeKind
    theta: float
    rotary_dims: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    factors: tuple[float, ...] = ()  # (rotary_dims / 2,)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer. Counts are elements; `context` is in tokens.

    layer_window[i] is layer i's sliding window in tokens (0: full attention); layer_rope[i] is False for a
    layer without rotary embedding.
    """

    architecture: str  # transformers class name, e.g. LlamaForCausalLM
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    context: int  # max_position_embeddings
    norm_eps: float
    rope: RopeSpec
    layer_window: tuple[int, ...]
    layer_rope: tuple[bool, ...]
    tied_head: bool
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()


# Canonical tensor names, whatever the checkpoint calls them. {} is the layer.
#   embed.weight (V, H)   final_norm.weight (H)   head.weight (V, H; absent when tied)
#   layer.{}.attention_norm.weight (H)   layer.{}.mlp_norm.weight (H)
#   layer.{}.q.weight (NH*HS, H)  .k.weight (KV*HS, H)  .v.weight (KV*HS, H)  .o.weight (H, NH*HS)
#   and .bias of each of the four
#   layer.{}.q_norm.weight (HS)   layer.{}.k_norm.weight (HS)
#   layer.{}.gate.weight (F, H)   .up.weight (F, H)   .down.weight (H, F)   and .bias of each
# Rotary weights are in the half-split order of transformers (element i pairs with i + rotary_dims / 2).


class TensorSource(Protocol):
    """Weights by canonical name. Reading raises CheckpointError naming a tensor with NaN or infinity."""

    def names(self) -> list[str]:
        """Canonical names, sorted."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        ...

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        """Rows [begin, end) along the first axis, as float32 (exact for bf16, f16 and f32 checkpoints)."""
        ...

    def digest(self) -> str:
        """Hex sha256 over the weight files' contents in a fixed order (no paths, no times)."""
        ...


def row_spans(
    source: TensorSource, names: Sequence[str], begin: int, end: int
) -> Iterator[tuple[str, int, int]]:
    """Rows [begin, end) of the tensors' concatenation along the first axis, as (name, begin, end) of each."""
    base = 0
    for name in names:
        rows = source.shape(name)[0]
        low, high = max(begin - base, 0), min(end - base, rows)
        if low < high:
            yield name, low, high
        base += rows


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What the runtime needs to turn text into tokens: bytes of tokenizer.json, the chat template, special
    tokens.

    `special` maps bos_token, eos_token, pad_token, unk_token to their text, as chat templates expect them;
    `add_bos` says whether plain prompts begin with bos. `tokenizer` is None when the checkpoint has none (a
    plan for token ids only).
    """

    tokenizer: bytes | None
    template: str | None
    special: Mapping[str, str]
    add_bos: bool
    generation: Mapping[str, float | int | bool]  # sampling defaults of generation_config.json, as they stand


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All of a checkpoint: `weights` is None when only a config was given (`--dry-run`)."""

    spec: ModelSpec
    text: TextFiles
    weights: TensorSource | None
    name: str
