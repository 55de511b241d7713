"""Layout: where every constant lies in WEIGHTS and SCALES, and in which panel order.

Matrices become panels of 16 output channels, read front to back by one stream; those of a gated MLP alternate
gate and up panels so that one worker holds both halves of silu_mul. Biases and E4M3 scales follow their
panels' order. WEIGHTS lie in execution order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...plans.layout import (
    PANEL_OUTPUTS,
    TENSOR_ALIGNMENT,
    Dtype,
    Layout,
    Region,
    Unit,
    panel_count,
    round_up,
    tensor_bytes,
)
from ...plans.records import TensorEntry
from ..graph.graph import Graph, Op, Tensor


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the plan and what its bytes are made of.

    role: "weight" (panels of `sources`' concatenated rows), "weight_scale" (E4M3 scale per output channel,
    made with the weight it belongs to), "bias" (concatenated, panel order, padded with zeros), "norm" and
    "table" (as they are).
    """

    entry: TensorEntry
    role: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConstantTable:
    """All constants by name, in file order per region, and the bytes of both regions."""

    constants: Mapping[str, Constant]
    weights_bytes: int
    scales_bytes: int


class _Builder:
    def __init__(self) -> None:
        self.constants: dict[str, Constant] = {}
        self.end = {Region.WEIGHTS: 0, Region.SCALES: 0}

    def add(
        self,
        name: str,
        role: str,
        dims: tuple[int, ...],
        dtype: Dtype,
        sources: tuple[str, ...],
        layout: Layout = Layout.ROWS,
    ) -> None:
        """Appends a constant; the same name again must be the same constant (a tied head)."""
        region = Region.WEIGHTS if role == "weight" else Region.SCALES
        if (known := self.constants.get(name)) is not None:
            assert (known.entry.dims, known.entry.dtype, known.entry.layout) == (dims, dtype, layout), name
            return
        offset, size = self.end[region], tensor_bytes(dims, dtype, layout)
        entry = TensorEntry(name, region, Unit.FIXED, dtype, layout, dims, offset, size)
        self.constants[name] = Constant(entry, role, sources)
        self.end[region] = round_up(offset + size, TENSOR_ALIGNMENT)

    def matrix(self, weight: Tensor, bias: Tensor | None, paired: bool) -> None:
        layout = Layout.PANELS_PAIRED if paired else Layout.PANELS
        rows, width = weight.shape
        padded = panel_count(rows, layout) * PANEL_OUTPUTS
        self.add(weight.name, "weight", (rows, width), weight.dtype, weight.sources, layout)
        if weight.dtype == Dtype.E4M3:
            self.add(scale_name(weight.name), "weight_scale", (padded,), Dtype.F32, weight.sources)
        if bias is not None:
            self.add(bias.name, "bias", (padded,), Dtype.F32, bias.sources)


def scale_name(weight: str) -> str:
    """Name of the scale that belongs to a weight or a KV cache."""
    return f"{weight}_scale"


def _op_constants(builder: _Builder, graph: Graph, op: Op) -> None:
    def tensor(role: str) -> Tensor | None:
        return graph.tensors[op.inputs[role]] if role in op.inputs else None

    if (weight := tensor("weight")) is not None:
        builder.matrix(weight, tensor("bias"), bool(op.attributes.get("silu_mul", False)))
    for role in ("norm", "q_norm", "k_norm"):
        if (norm := tensor(role)) is not None:
            builder.add(norm.name, "norm", norm.shape, Dtype.F32, norm.sources)
    if (table := tensor("inverse_frequency")) is not None:
        builder.add(table.name, "table", table.shape, Dtype.F32, table.sources)


def layout_constants(
    graphs: tuple[Graph, ...], folded: tuple[tuple[str, tuple[int, ...]], ...] = ()
) -> ConstantTable:
    """Constants of fused graphs in execution order. `folded`: (name, shape) of KV scales kept for
    inspection."""
    builder = _Builder()
    for graph in graphs:
        for op in graph.ops:
            _op_constants(builder, graph, op)
    for name, shape in folded:
        builder.add(name, "fold", shape, Dtype.F32, ())
    return ConstantTable(builder.constants, builder.end[Region.WEIGHTS], builder.end[Region.SCALES])
