"""What an op is: its roles and attributes, the rule its shapes follow, its reference, and its cost.

Every op is one `OpDefinition` in one file of this folder, listed in `REGISTRY`. The reference is torch in
float32 and is what every other target is compared with. A definition without one cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ....plans.layout import GRANULE_TOKENS, Dtype, Layout, tensor_bytes
from ..graph import Kind, Tensor

Attributes = Mapping[str, float | int | bool]

WEIGHT_DTYPES = (Dtype.F32, Dtype.BF16, Dtype.E4M3, Dtype.I8)
KV_DTYPES = (Dtype.F32, Dtype.BF16, Dtype.E4M3, Dtype.E5M2, Dtype.I8)  # F32: unrounded, reference only
SLICE_BYTES = 32 << 20  # float32 bytes of a matrix that a reference reads at once


class ShapeError(ValueError):
    """Operands that do not fit an op. The text names the role, what was found and what is needed."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix that is read by rows, so that no reference needs all of it: (N, K) float32."""

    shape: tuple[int, int]
    read: Callable[[int, int], torch.Tensor]  # rows [begin, end) -> (end - begin, K) float32

    @staticmethod
    def of(tensor: torch.Tensor) -> Matrix:
        """A matrix whose (N, K) values are at hand."""
        return Matrix((tensor.shape[0], tensor.shape[1]), lambda begin, end: tensor[begin:end])

    def slices(self) -> Iterator[tuple[int, int]]:
        """Row ranges of at most SLICE_BYTES that cover the matrix in order."""
        step = max(1, SLICE_BYTES // (4 * self.shape[1]))
        for begin in range(0, self.shape[0], step):
            yield begin, min(begin + step, self.shape[0])

    def take(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows `indices` (R,) int64, in that order: (R, K) float32. Each distinct row is read once."""
        distinct, inverse = torch.unique(indices, return_inverse=True)
        rows = torch.cat([self.read(int(index), int(index) + 1) for index in distinct])
        return rows[inverse]


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of an op by the reference: values by role.

    inputs: activations (rows, ...) float32, tables (rows,) int64, vectors float32. matrices: the role
    "weight". caches: k_cache (granules, KV, HS, 128) and v_cache (granules, KV, 128, HS), float32 of the
    stored values; kv_write updates them in place. granules: (leases, granules of a lease) int64. kv: what
    kv_write rounds to.
    """

    rows: int
    inputs: Mapping[str, torch.Tensor]
    attributes: Attributes = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    caches: Mapping[str, torch.Tensor] = field(default_factory=dict)
    granules: torch.Tensor | None = None
    kv: Dtype = Dtype.F32


Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """What a shape rule says of an output: its shape for `rows` rows, the dtypes and kinds it may have."""

    shape: tuple[int, ...]
    dtypes: tuple[Dtype, ...] = (Dtype.F32,)
    kinds: tuple[Kind, ...] = (Kind.ACTIVATION, Kind.IO)


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes moved and multiply-adds times two of one execution at full rows; reads and writes of KV are left
    out.
    """

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Signature:
    """An op's operands as tensors, without values: what shape rules and costs look at. Every check raises
    ShapeError.
    """

    rows: int
    inputs: Mapping[str, Tensor]
    attributes: Attributes

    def has(self, role: str) -> bool:
        return role in self.inputs

    def integer(self, name: str, low: int) -> int:
        """The integer attribute `name`, at least `low`."""
        value = int(self.attributes[name])
        if value < low:
            raise ShapeError(f"attribute {name} is {value}; at least {low} is needed")
        return value

    def positive(self, name: str) -> float:
        """The float attribute `name`, above zero."""
        value = float(self.attributes[name])
        if not value > 0:
            raise ShapeError(f"attribute {name} is {value}; a number above 0 is needed")
        return value

    def _check(self, role: str, dtypes: Sequence[Dtype], kinds: Sequence[Kind], rank: int) -> Tensor:
        tensor = self.inputs[role]
        if tensor.dtype not in dtypes:
            raise ShapeError(
                f"{role} is {tensor.dtype.name}; {' or '.join(d.name for d in dtypes)} is needed"
            )
        if tensor.kind not in kinds:
            raise ShapeError(f"{role} is of kind {tensor.kind}; {' or '.join(kinds)} is needed")
        if len(tensor.shape) != rank:
            raise ShapeError(f"{role} has shape {tensor.shape}; {rank} dimensions are needed")
        return tensor

    def _rowwise(self, role: str, tensor: Tensor) -> None:
        """An activation has exactly the graph's rows; a table that lives across programs at least as many."""
        found = tensor.shape[0]
        if found != self.rows and (tensor.kind == Kind.ACTIVATION or found < self.rows):
            raise ShapeError(f"{role} has {found} rows; the graph has {self.rows}")

    def activation(self, role: str, width: int | None = None, any_rows: bool = False) -> int:
        """Width of a (R, width) float32 activation; `any_rows` for an operand that is indexed, not walked."""
        tensor = self._check(role, (Dtype.F32,), (Kind.ACTIVATION, Kind.IO), 2)
        if not any_rows:
            self._rowwise(role, tensor)
        if width is not None and tensor.shape[1] != width:
            raise ShapeError(f"{role} has width {tensor.shape[1]}; {width} is needed")
        return tensor.shape[1]

    def table(self, role: str) -> None:
        """A (rows or more,) u32 table that the runtime fills."""
        self._rowwise(role, self._check(role, (Dtype.U32,), (Kind.IO,), 1))

    def state(self, role: str, dtype: Dtype, size: int) -> None:
        """A (size,) per-request table."""
        tensor = self._check(role, (dtype,), (Kind.STATE,), 1)
        if tensor.shape[0] != size:
            raise ShapeError(f"{role} has {tensor.shape[0]} elements; {size} are needed")

    def matrix(self, role: str = "weight") -> tuple[int, int]:
        """(N, K) of a weight matrix in any weight format."""
        tensor = self._check(role, WEIGHT_DTYPES, (Kind.WEIGHT,), 2)
        return tensor.shape[0], tensor.shape[1]

    def vector(self, role: str, size: int | None = None) -> int:
        """Size of a float32 weight vector."""
        tensor = self._check(role, (Dtype.F32,), (Kind.WEIGHT,), 1)
        if size is not None and tensor.shape[0] != size:
            raise ShapeError(f"{role} has {tensor.shape[0]} elements; {size} are needed")
        return tensor.shape[0]

    def rope_table(self, role: str, head_size: int) -> int:
        """Pairs P of a (R, 2, P) table of cosines and sines for heads of `head_size`."""
        tensor = self._check(role, (Dtype.F32,), (Kind.ACTIVATION,), 3)
        self._rowwise(role, tensor)
        if tensor.shape[1] != 2 or 2 * tensor.shape[2] > head_size:
            raise ShapeError(
                f"{role} has shape {tensor.shape}; (rows, 2, P) with 2 P at most {head_size} is needed"
            )
        return tensor.shape[2]

    def caches(self, kv_heads: int, head_size: int) -> None:
        """k_cache and v_cache of granules with these heads, of one format."""
        for role, result in cache_results(kv_heads, head_size).items():
            tensor = self._check(role, KV_DTYPES, (Kind.KV,), 3)
            if tensor.shape != result.shape:
                raise ShapeError(f"{role} has shape {tensor.shape}; {result.shape} is needed")
        if self.inputs["k_cache"].dtype != self.inputs["v_cache"].dtype:
            raise ShapeError("k_cache and v_cache differ in dtype; one KV format is needed")


def cache_results(kv_heads: int, head_size: int) -> dict[str, Result]:
    """The two caches of one granule: k_cache (KV, HS, 128), v_cache (KV, 128, HS)."""
    return {
        "k_cache": Result((kv_heads, head_size, GRANULE_TOKENS), KV_DTYPES, (Kind.KV,)),
        "v_cache": Result((kv_heads, GRANULE_TOKENS, head_size), KV_DTYPES, (Kind.KV,)),
    }


def weight_bytes(tensor: Tensor) -> int:
    """Bytes a weight takes in a plan, its scales included: panels when quantised, rows otherwise."""
    if tensor.dtype == Dtype.F32:
        return tensor_bytes(tensor.shape, tensor.dtype, Layout.ROWS)
    scales = 4 * tensor.shape[0] if tensor.dtype == Dtype.E4M3 else 0
    return tensor_bytes(tensor.shape, tensor.dtype, Layout.PANELS) + scales


def moved_bytes(signature: Signature, results: Mapping[str, Result]) -> int:
    """Bytes read and written by an op that touches all its operands once, row tables at the graph's rows."""
    total = 0
    for tensor in signature.inputs.values():
        if tensor.kind == Kind.WEIGHT:
            total += weight_bytes(tensor)
        elif tensor.kind in (Kind.ACTIVATION, Kind.IO):
            width = tensor_bytes(tensor.shape[1:], tensor.dtype, Layout.ROWS)
            total += signature.rows * width
    for result in results.values():
        if Kind.KV not in result.kinds:
            total += tensor_bytes(result.shape, result.dtypes[0], Layout.ROWS)
    return total


@dataclass(frozen=True, slots=True)
class OpDefinition:
    """An op kind: roles, attributes (name -> type), shape rule, reference and cost. All of them are required.

    `optional_attributes` and `optional_inputs` may be absent; which go together is the shape rule's to say.
    `shape` returns a Result for each output and raises ShapeError; `cost` is called after `shape` accepted
    the operands.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: Callable[[Signature], dict[str, Result]]
    reference: Callable[[Call], Values]
    cost: Callable[[Signature], Cost]
    attributes: Mapping[str, type] = field(default_factory=dict)
    optional_inputs: tuple[str, ...] = ()
    optional_attributes: Mapping[str, type] = field(default_factory=dict)
    layered: bool = False  # belongs to one decoder layer: Op.layer must be set

    def __post_init__(self) -> None:
        for name in ("shape", "reference", "cost"):
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"op {self.kind} has no {name}; an op is its rule, its reference and its cost"
                )


def registry(definitions: Sequence[OpDefinition]) -> dict[str, OpDefinition]:
    """Definitions by kind. Raises ValueError when a kind is there twice."""
    table: dict[str, OpDefinition] = {}
    for definition in definitions:
        if definition.kind in table:
            raise ValueError(f"op {definition.kind} is defined twice; give one of them another name")
        table[definition.kind] = definition
    return table
