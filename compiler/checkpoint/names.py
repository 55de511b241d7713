"""Which tensors a model has: canonical names with their shapes, and what transformers and llama.cpp call
them.

A checkpoint holds exactly these tensors. One that is missing, left over or of another shape is an error that
names it: a family that differs in a way its config does not say shows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .files import show
from .spec import CheckpointError, ModelSpec

Shape = tuple[int, ...]

TRANSFORMERS_OUTER = {
    "embed.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
TRANSFORMERS_LAYER = {
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
GGUF_OUTER = {
    "embed.weight": "token_embd.weight", "final_norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
}  # fmt: skip
GGUF_LAYER = {
    "attention_norm": "attn_norm", "mlp_norm": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
    "o": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate": "ffn_gate", "up": "ffn_up",
    "down": "ffn_down",
}  # fmt: skip


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every canonical tensor of the model with its shape."""
    hidden, q, kv = spec.hidden, spec.query_heads * spec.head_size, spec.kv_heads * spec.head_size
    layer: dict[str, Shape] = {
        "attention_norm.weight": (hidden,), "mlp_norm.weight": (hidden,),
        "q.weight": (q, hidden), "k.weight": (kv, hidden), "v.weight": (kv, hidden), "o.weight": (hidden, q),
        "gate.weight": (spec.intermediate, hidden), "up.weight": (spec.intermediate, hidden),
        "down.weight": (hidden, spec.intermediate),
    }  # fmt: skip
    if spec.qkv_bias:
        layer |= {"q.bias": (q,), "k.bias": (kv,), "v.bias": (kv,)}
    if spec.output_bias:
        layer |= {"o.bias": (hidden,)}
    if spec.mlp_bias:
        layer |= {"gate.bias": (spec.intermediate,), "up.bias": (spec.intermediate,), "down.bias": (hidden,)}
    if spec.qk_norm:
        layer |= {"q_norm.weight": (spec.head_size,), "k_norm.weight": (spec.head_size,)}
    shapes: dict[str, Shape] = {"embed.weight": (spec.vocabulary, hidden), "final_norm.weight": (hidden,)}
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocabulary, hidden)
    for i in range(spec.layers):
        shapes |= {f"layer.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _stored_name(name: str, outer: Mapping[str, str], layer: Mapping[str, str], prefix: str) -> str:
    if name in outer:
        return outer[name]
    _, i, part, kind = name.split(".")
    return f"{prefix}.{i}.{layer[part]}.{kind}"


def transformers_name(name: str) -> str:
    """What a transformers checkpoint calls a canonical tensor."""
    return _stored_name(name, TRANSFORMERS_OUTER, TRANSFORMERS_LAYER, "model.layers")


def gguf_name(name: str) -> str:
    """What a GGUF file calls a canonical tensor."""
    return _stored_name(name, GGUF_OUTER, GGUF_LAYER, "blk")


def match_tensors(
    expected: Mapping[str, Shape],
    stored_names: Mapping[str, str],
    found: Mapping[str, Shape],
    ignored: Iterable[str],
) -> None:
    """Check that a checkpoint's tensors are the model's.

    expected has canonical names, stored_names maps them to the checkpoint's, found has the checkpoint's names
    and shapes, ignored the names that carry nothing. Raises CheckpointError naming the first tensor that is
    missing, has another shape, or is left over.
    """
    for name, shape in expected.items():
        stored = stored_names[name]
        if stored not in found:
            raise CheckpointError(
                f"the tensor {stored} is missing; the config asks for it with shape {list(shape)}"
            )
        if tuple(found[stored]) != shape:
            raise CheckpointError(
                f"{stored} has shape {show(list(found[stored]))}; the config asks for {list(shape)}"
            )
    left = sorted(set(found) - {stored_names[name] for name in expected} - set(ignored))
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise CheckpointError(
            f"the tensor {show(left[0])}{more} is not part of the model that the config describes"
        )
