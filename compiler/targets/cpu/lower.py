"""Lower: one fused op becomes one CPU command. Operand positions, flags and parameters are those of
`plans.layout.KERNELS`.

Scratch that a kernel needs between its phases (normalised or quantised inputs, rotated queries, sampling
candidates) is an arena tensor like any other, so that the plan knows its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....plans.layout import I8_GROUP, KERNELS, Dtype, Flag, Kernel, k_padded
from ...graph.graph import Graph, Kind, Op, Tensor
from ...passes.layout import scale_name
from ...passes.schedule import Draft

NO_FLAGS = Flag(0)
LINEAR = {Dtype.I8: Kernel.LINEAR_I8, Dtype.E4M3: Kernel.LINEAR_E4M3, Dtype.BF16: Kernel.LINEAR_BF16}
EMBED = {Dtype.I8: Kernel.EMBED_I8, Dtype.E4M3: Kernel.EMBED_E4M3, Dtype.BF16: Kernel.EMBED_BF16}
ATTENTION = {
    Dtype.I8: Kernel.ATTENTION_I8,
    Dtype.E4M3: Kernel.ATTENTION_E4M3,
    Dtype.E5M2: Kernel.ATTENTION_E5M2,
    Dtype.BF16: Kernel.ATTENTION_BF16,
}


def _draft(
    kernel: Kernel, op: Op, operands: Mapping[str, str | None], flags: Flag = NO_FLAGS, **rest: object
) -> Draft:
    """A draft with `operands` (by name) put into the kernel's positions."""
    spec = KERNELS[kernel]
    positions = [operand.name for operand in spec.operands]
    assert set(operands) <= set(positions), f"{kernel.name}: {sorted(set(operands) - set(positions))}"
    return Draft(kernel, flags, op.layer, tuple(operands.get(name) for name in positions), **rest)  # type: ignore[arg-type]


def _scratch(name: str, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
    return Tensor(name, shape, dtype, Kind.ACTIVATION)


def _embed(graph: Graph, op: Op) -> Draft:
    weight = graph.tensors[op.inputs["weight"]]
    operands: dict[str, str | None] = {
        "tokens": op.inputs["tokens"], "weight": weight.name, "out": op.outputs["out"],
    }  # fmt: skip
    if weight.dtype == Dtype.E4M3:
        operands["weight_scale"] = scale_name(weight.name)
    return _draft(EMBED[weight.dtype], op, operands)


def _rope_table(graph: Graph, op: Op) -> Draft:
    operands = {
        "positions": op.inputs["positions"],
        "inverse_frequency": op.inputs["inverse_frequency"],
        "out": op.outputs["out"],
    }
    return _draft(Kernel.ROPE_TABLE, op, operands, f=(float(op.attributes["attention_factor"]),))


def _linear(graph: Graph, op: Op) -> Draft:
    weight, out = graph.tensors[op.inputs["weight"]], op.outputs["out"]
    rows, width = graph.rows, weight.shape[1]
    padded = k_padded(width, weight.dtype)
    activation = _scratch(
        f"{out}.activation", (rows, padded), Dtype.I8 if weight.dtype == Dtype.I8 else Dtype.F32
    )
    operands: dict[str, str | None] = {
        "x": op.inputs["x"], "weight": weight.name, "activation": activation.name, "out": out,
    }  # fmt: skip
    flags, scratch = Flag(0), [activation]
    roles = {"norm": Flag.NORM, "bias": Flag.BIAS, "residual": Flag.RESIDUAL, "row_index": Flag.GATHER}
    for role, flag in roles.items():
        if role in op.inputs:
            operands[role] = op.inputs[role]
            flags |= flag
    if op.attributes.get("silu_mul", False):
        flags |= Flag.SILU_MUL
    if weight.dtype == Dtype.I8:
        scale = _scratch(f"{out}.activation_scale", (rows, padded // I8_GROUP), Dtype.F32)
        operands["activation_scale"] = scale.name
        scratch.append(scale)
    elif weight.dtype == Dtype.E4M3:
        operands["weight_scale"] = scale_name(weight.name)
    eps = float(op.attributes["eps"]) if flags & Flag.NORM else 0.0
    return _draft(LINEAR[weight.dtype], op, operands, flags, f=(eps,), scratch=tuple(scratch))


def _attention(graph: Graph, op: Op) -> Draft:
    k, v = graph.tensors[op.outputs["k_cache"]], graph.tensors[op.outputs["v_cache"]]
    out = op.outputs["out"]
    q = _scratch(f"{out}.q", graph.tensors[out].shape, Dtype.F32)
    operands: dict[str, str | None] = {
        "qkv": op.inputs["qkv"], "positions": op.inputs["positions"], "leases": op.inputs["leases"],
        "granules": "granule_table", "k": k.name, "v": v.name, "q": q.name, "out": out,
    }  # fmt: skip
    flags = Flag(0)
    if "rope" in op.inputs:
        operands["rope"] = op.inputs["rope"]
        flags |= Flag.ROPE
    if "q_norm" in op.inputs:
        operands |= {"q_norm": op.inputs["q_norm"], "k_norm": op.inputs["k_norm"]}
        flags |= Flag.QK_NORM
    if k.dtype == Dtype.I8:
        operands |= {"k_scale": scale_name(k.name), "v_scale": scale_name(v.name)}
    attributes = op.attributes
    floats = (
        float(attributes["softmax_scale"]),
        float(attributes.get("eps", 0.0)) if flags & Flag.QK_NORM else 0.0,
    )
    return _draft(
        ATTENTION[k.dtype], op, operands, flags, f=floats, u=(int(attributes["window"]),), scratch=(q,)
    )  # fmt: skip


def _sample(graph: Graph, op: Op) -> Draft:
    logits = graph.tensors[op.inputs["logits"]]
    scratch = _scratch("sample.scratch", (graph.rows, 2, logits.shape[1]), Dtype.U32)
    operands = {**op.inputs, **op.outputs, "scratch": scratch.name}
    return _draft(Kernel.SAMPLE, op, operands, scratch=(scratch,))


LOWERINGS: Mapping[str, Callable[[Graph, Op], Draft]] = {
    "embed": _embed,
    "rope_table": _rope_table,
    "fused_linear": _linear,
    "fused_attention": _attention,
    "sample": _sample,
}


def lower(graph: Graph, op: Op) -> Draft:
    """The command of one op. Raises KeyError for an op that the fuse pass should have removed."""
    return LOWERINGS[op.kind](graph, op)
