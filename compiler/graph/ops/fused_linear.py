"""fused_linear: a linear with what stands around it: [gather_rows] [rms_norm] linear [+ bias] [silu_mul] [+
residual].

x (R, K) or, with row_index, (rows_max, K); weight (W, K), [norm (K,)], [bias (W,)], [residual (R, N)],
[row_index] -> out (R, N). N is W, or W / 2 with silu_mul, whose weight holds the gate's rows and then the
up's.
"""

from __future__ import annotations

from .definition import Call, Cost, OpDefinition, Result, ShapeError, Signature, Values, moved_bytes
from .linear import multiply
from .rms_norm import normalise
from .silu_mul import gated


def _shape(signature: Signature) -> dict[str, Result]:
    rows, width = signature.matrix()
    gather = signature.has("row_index")
    signature.activation("x", width, any_rows=gather)
    if gather:
        signature.table("row_index")
    if signature.has("norm"):
        signature.vector("norm", width)
    if signature.has("norm") != ("eps" in signature.attributes):
        raise ShapeError("norm and eps do not go together; give both or neither")
    if signature.has("norm"):
        signature.positive("eps")
    if signature.has("bias"):
        signature.vector("bias", rows)
    if signature.attributes["silu_mul"] and rows % 2:
        raise ShapeError(f"silu_mul has {rows} weight rows; an even number is needed")
    outputs = rows // 2 if signature.attributes["silu_mul"] else rows
    if signature.has("residual"):
        signature.activation("residual", outputs)
    return {"out": Result((signature.rows, outputs))}


def _reference(call: Call) -> Values:
    x = call.inputs["x"]
    if "row_index" in call.inputs:
        x = x[call.inputs["row_index"]]
    if "norm" in call.inputs:
        x = normalise(x, call.inputs["norm"], float(call.attributes["eps"]))
    out = multiply(x, call.matrices["weight"], call.inputs.get("bias"))
    if call.attributes["silu_mul"]:
        gate, up = out.chunk(2, dim=1)
        out = gated(gate, up)
    return {"out": call.inputs["residual"] + out if "residual" in call.inputs else out}


def _cost(signature: Signature) -> Cost:
    rows, width = signature.matrix()
    return Cost(moved_bytes(signature, _shape(signature)), 2 * signature.rows * rows * width)


DEFINITION = OpDefinition(
    "fused_linear", ("x", "weight"), ("out",), _shape, _reference, _cost, attributes={"silu_mul": bool},
    optional_inputs=("norm", "bias", "residual", "row_index"), optional_attributes={"eps": float},
)  # fmt: skip
