"""The graph: a flat list of ops over tensors with fixed shapes. No control flow, no symbolic dimension.

A Graph is immutable; passes build new ones. A tensor is written once. What an op means is in `ops/`, one file
each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ingot.plans.layout import Dtype


class Kind(StrEnum):
    WEIGHT = "weight"  # constant: weights, norms, biases, tables
    ACTIVATION = "activation"  # arena; first axis is rows
    KV = "kv"  # granules
    IO = "io"  # row tables, hidden states, logits; lives across programs
    STATE = "state"  # per-request tables


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named value: shape, dtype, and what holds it. `sources` of a WEIGHT name the checkpoint tensors it is
    made of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    kind: Kind
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its kind (a name in `ops.REGISTRY`), operands and results by role, and constants."""

    kind: str
    inputs: Mapping[str, str]  # role -> tensor name
    outputs: Mapping[str, str]
    attributes: Mapping[str, float | int | bool] = field(default_factory=dict)
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in execution order over named tensors, for `rows` rows."""

    name: str  # "body" or "head"
    rows: int
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
