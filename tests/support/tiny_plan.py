"""Builds a complete, valid, tiny plan by hand, independent of the compiler: every table, bucket and optional
section.

As a script: `python tests/support/tiny_plan.py OUT [--weights i8|e4m3|bf16] [--kv i8|e4m3|e5m2|bf16]
[--layers N]`. The weights are seeded noise: the plan runs, but says nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ingot.plans.layout import (
    DTYPE_BYTES,
    ENGINE_BYTES,
    EVENT,
    EVENT_RING_ENTRIES,
    KERNELS,
    NONE_INDEX,
    PAGE_BYTES,
    SAMPLING,
    STATE_TENSORS,
    TOP_LOGPROBS_MAX,
    Dtype,
    Family,
    Flag,
    Kernel,
    Layout,
    Region,
    Section,
    Target,
    Unit,
    k_padded,
    panel_count,
    round_up,
    tensor_bytes,
)  # fmt: skip
from ingot.plans.records import (
    CommandEntry,
    PlanTables,
    ProgramEntry,
    RegionEntry,
    Selftest,
    TensorEntry,
)  # fmt: skip
from ingot.plans.writer import PlanWriter

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.panels import pack


@dataclass(frozen=True, slots=True)
class TinySpec:
    """What a tiny plan is like. Sizes are deliberately no multiples of a block."""

    weights: Dtype = Dtype.I8
    kv: Dtype = Dtype.I8
    layers: int = 1
    vocabulary: int = 48
    hidden: int = 32
    query_heads: int = 2
    kv_heads: int = 1
    head_size: int = 16
    rotary_pairs: int = 8
    ffn: int = 40
    context: int = 300
    rows: tuple[int, ...] = (1, 2, 4)
    head_rows: tuple[int, ...] = (1, 2)
    qk_norm: bool = False
    bias: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class TinyPlan:
    """A plan in memory: its tables, the bytes of every tensor of WEIGHTS and SCALES, and its self-test."""

    tables: PlanTables
    weights: Mapping[str, bytes]
    selftest: Selftest


@dataclass(slots=True)
class _Placer:
    """Bump allocation in the parts of regions; collects tensors."""

    ends: dict[tuple[Region, Unit], int] = field(default_factory=dict)
    tensors: list[TensorEntry] = field(default_factory=list)

    def add(
        self, name: str, region: Region, dtype: Dtype, dims: tuple[int, ...], *,
        unit: Unit = Unit.FIXED, layout: Layout = Layout.ROWS,
    ) -> None:  # fmt: skip
        offset = round_up(self.ends.get((region, unit), 0), 64)
        size = tensor_bytes(dims, dtype, layout)
        self.tensors.append(TensorEntry(name, region, unit, dtype, layout, dims, offset, size))
        self.ends[region, unit] = offset + size


@dataclass(slots=True)
class _Program:
    """A program being built: commands whose operands are tensor names, and its arena tensors' lifetimes."""

    family: Family
    rows: int
    commands: list[tuple[Kernel, int, int, Mapping[str, str], tuple[float, ...], tuple[int, ...]]] = field(
        default_factory=list
    )
    shapes: dict[str, tuple[Dtype, tuple[int, ...]]] = field(default_factory=dict)
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)

    def arena(self, name: str, dtype: Dtype, *dims: int) -> str:
        self.shapes[name] = (dtype, dims)
        return name

    def add(
        self, kernel: Kernel, operands: Mapping[str, str], flags: int = 0, layer: int = NONE_INDEX,
        f: tuple[float, ...] = (), u: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        at = len(self.commands)
        for name in operands.values():
            if name in self.shapes:
                first, _ = self.lives.get(name, (at, at))
                self.lives[name] = (first, at)
        self.commands.append((kernel, flags, layer, operands, f, u))


def _weights(spec: TinySpec) -> dict[str, tuple[np.ndarray, Layout]]:
    """Float32 weights (rows, k) by name, with the layout each is packed in."""
    random = np.random.default_rng(spec.seed)
    heads = (spec.query_heads + 2 * spec.kv_heads) * spec.head_size

    def draw(rows: int, k: int) -> np.ndarray:
        return (random.standard_normal((rows, k)) / np.sqrt(k)).astype(np.float32)

    weights = {"embed.weight": (draw(spec.vocabulary, spec.hidden), Layout.PANELS)}
    for i in range(spec.layers):
        weights |= {
            f"layer.{i}.qkv.weight": (draw(heads, spec.hidden), Layout.PANELS),
            f"layer.{i}.o.weight": (draw(spec.hidden, spec.query_heads * spec.head_size), Layout.PANELS),
            f"layer.{i}.gate_up.weight": (draw(2 * spec.ffn, spec.hidden), Layout.PANELS_PAIRED),
            f"layer.{i}.down.weight": (draw(spec.hidden, spec.ffn), Layout.PANELS),
        }
    return weights


def _scales(spec: TinySpec) -> dict[str, np.ndarray]:
    """Float32 vectors of SCALES by name, but the weights' own scales."""
    random = np.random.default_rng(spec.seed + 1)
    exponents = np.arange(spec.rotary_pairs, dtype=np.float32) / max(spec.rotary_pairs, 1)
    scales = {"inverse_frequency": np.power(np.float32(10000), -exponents)}
    norms = {"final_norm.weight": spec.hidden}
    for i in range(spec.layers):
        norms |= {f"layer.{i}.attention_norm.weight": spec.hidden, f"layer.{i}.mlp_norm.weight": spec.hidden}
        if spec.qk_norm:
            norms |= {f"layer.{i}.q_norm.weight": spec.head_size, f"layer.{i}.k_norm.weight": spec.head_size}
    scales |= {name: 1 + random.standard_normal(size) / 8 for name, size in norms.items()}
    if spec.bias:
        heads = (spec.query_heads + 2 * spec.kv_heads) * spec.head_size
        for i in range(spec.layers):
            bias = np.zeros(16 * panel_count(heads, Layout.PANELS))
            bias[:heads] = random.standard_normal(heads) / 8
            scales[f"layer.{i}.qkv.bias"] = bias
    return {name: value.astype(np.float32) for name, value in scales.items()}


def _linear(
    spec: TinySpec, program: _Program, weight: str, width: tuple[int, int], operands: dict[str, str],
    flags: Flag, layer: int = NONE_INDEX,
) -> None:  # fmt: skip
    """Adds a linear with `width` (k, weight rows) and its scratch operands."""
    k = k_padded(width[0], spec.weights)
    tag = f"{program.family.name.lower()}{program.rows}.{len(program.commands)}"
    activation = Dtype.I8 if spec.weights == Dtype.I8 else Dtype.F32
    operands |= {
        "weight": weight,
        "activation": program.arena(f"{tag}.activation", activation, program.rows, k),
    }
    if spec.weights == Dtype.I8:
        operands["activation_scale"] = program.arena(
            f"{tag}.activation_scale", Dtype.F32, program.rows, k // 32
        )
    elif spec.weights == Dtype.E4M3:
        operands["weight_scale"] = f"{weight}_scale"
    kernel = {Dtype.I8: Kernel.LINEAR_I8, Dtype.E4M3: Kernel.LINEAR_E4M3, Dtype.BF16: Kernel.LINEAR_BF16}
    program.add(kernel[spec.weights], operands, flags, layer, f=(1e-5,))


def _body(spec: TinySpec, rows: int) -> _Program:
    program = _Program(Family.BODY, rows)
    q = spec.query_heads * spec.head_size
    qkv = q + 2 * spec.kv_heads * spec.head_size
    tag = f"body{rows}"
    x = program.arena(f"{tag}.embed", Dtype.F32, rows, spec.hidden)
    embed = {Dtype.I8: Kernel.EMBED_I8, Dtype.E4M3: Kernel.EMBED_E4M3, Dtype.BF16: Kernel.EMBED_BF16}[
        spec.weights
    ]
    operands = {"tokens": "row_tokens", "weight": "embed.weight", "out": x}
    if spec.weights == Dtype.E4M3:
        operands["weight_scale"] = "embed.weight_scale"
    program.add(embed, operands)
    rope = program.arena(f"{tag}.rope", Dtype.F32, rows, 2, spec.rotary_pairs)
    program.add(
        Kernel.ROPE_TABLE,
        {"positions": "row_positions", "inverse_frequency": "inverse_frequency", "out": rope},
        f=(1.0,),
    )
    for i in range(spec.layers):
        name = f"{tag}.layer{i}"
        qkv_out = program.arena(f"{name}.qkv", Dtype.F32, rows, qkv)
        operands = {"x": x, "norm": f"layer.{i}.attention_norm.weight", "out": qkv_out}
        flags = Flag.NORM
        if spec.bias:
            operands["bias"] = f"layer.{i}.qkv.bias"
            flags |= Flag.BIAS
        _linear(spec, program, f"layer.{i}.qkv.weight", (spec.hidden, qkv), operands, flags, i)
        attended = _attention(spec, program, i, qkv_out, rope)
        after = program.arena(f"{name}.after_attention", Dtype.F32, rows, spec.hidden)
        operands = {"x": attended, "residual": x, "out": after}
        _linear(spec, program, f"layer.{i}.o.weight", (q, spec.hidden), operands, Flag.RESIDUAL, i)
        gated = program.arena(f"{name}.gated", Dtype.F32, rows, spec.ffn)
        operands = {"x": after, "norm": f"layer.{i}.mlp_norm.weight", "out": gated}
        flags = Flag.NORM | Flag.SILU_MUL
        _linear(spec, program, f"layer.{i}.gate_up.weight", (spec.hidden, 2 * spec.ffn), operands, flags, i)
        last = i == spec.layers - 1
        x = "hidden" if last else program.arena(f"{name}.out", Dtype.F32, rows, spec.hidden)
        operands = {"x": gated, "residual": after, "out": x}
        _linear(spec, program, f"layer.{i}.down.weight", (spec.ffn, spec.hidden), operands, Flag.RESIDUAL, i)
    return program


def _attention(spec: TinySpec, program: _Program, layer: int, qkv: str, rope: str) -> str:
    rows, q = program.rows, spec.query_heads * spec.head_size
    out = program.arena(f"body{rows}.layer{layer}.attended", Dtype.F32, rows, q)
    operands = {
        "qkv": qkv, "rope": rope, "positions": "row_positions", "leases": "row_leases",
        "granules": "granule_table",
        "k": f"layer.{layer}.k", "v": f"layer.{layer}.v", "out": out,
        "q": program.arena(f"body{rows}.layer{layer}.q", Dtype.F32, rows, q),
    }  # fmt: skip
    flags = Flag.ROPE
    if spec.kv == Dtype.I8:
        operands |= {"k_scale": f"layer.{layer}.k_scale", "v_scale": f"layer.{layer}.v_scale"}
    if spec.qk_norm:
        operands |= {"q_norm": f"layer.{layer}.q_norm.weight", "k_norm": f"layer.{layer}.k_norm.weight"}
        flags |= Flag.QK_NORM
    kernel = {
        Dtype.I8: Kernel.ATTENTION_I8, Dtype.E4M3: Kernel.ATTENTION_E4M3, Dtype.E5M2: Kernel.ATTENTION_E5M2,
        Dtype.BF16: Kernel.ATTENTION_BF16,
    }[spec.kv]  # fmt: skip
    window = 150 if layer % 2 else 0
    program.add(kernel, operands, flags, layer, f=(spec.head_size**-0.5, 1e-5), u=(window,))
    return out


def _head(spec: TinySpec, rows: int) -> _Program:
    program = _Program(Family.HEAD, rows)
    operands = {"x": "hidden", "norm": "final_norm.weight", "row_index": "head_rows", "out": "logits"}
    _linear(spec, program, "embed.weight", (spec.hidden, spec.vocabulary), operands, Flag.NORM | Flag.GATHER)
    scratch = program.arena(f"head{rows}.scratch", Dtype.U32, rows, 2, spec.vocabulary)
    program.add(Kernel.SAMPLE, {
        "logits": "logits", "requests": "head_requests", "positions": "head_positions",
        "sampling": "sampling",
        "token_counts": "token_counts", "scratch": scratch, "out_tokens": "out_tokens",
        "top_tokens": "top_tokens",
        "top_logprobs": "top_logprobs",
    })  # fmt: skip
    return program


def _place(program: _Program, base: int) -> tuple[list[TensorEntry], int, int]:
    """First-fit placement by lifetimes: (arena tensors, arena bytes, lower bound)."""
    placed: list[TensorEntry] = []
    for name, (dtype, dims) in program.shapes.items():
        first, last = program.lives[name]
        size = tensor_bytes(dims, dtype, Layout.ROWS)
        rivals = [t for t in placed if t.first_command <= base + last and t.last_command >= base + first]
        offset = 0
        for rival in sorted(rivals, key=lambda tensor: tensor.offset):
            if rival.offset < offset + size and offset < rival.offset + rival.bytes:
                offset = round_up(rival.offset + rival.bytes, 64)
        placed.append(TensorEntry(
            name, Region.ARENA, Unit.FIXED, dtype, Layout.ROWS, dims, offset, size, base + first, base + last
        ))  # fmt: skip
    alive = [
        sum(round_up(t.bytes, 64) for t in placed if t.first_command <= base + c <= t.last_command)
        for c in range(len(program.commands))
    ]
    return placed, max(t.offset + t.bytes for t in placed), max(alive)


def _fixed_tensors(spec: TinySpec, scales: Mapping[str, np.ndarray]) -> _Placer:
    """Every tensor outside the arena, region by region."""
    placer = _Placer()
    for name, (weight, layout) in _weights(spec).items():
        placer.add(name, Region.WEIGHTS, spec.weights, weight.shape, layout=layout)
    for name, value in scales.items():
        placer.add(name, Region.SCALES, Dtype.F32, value.shape)
    symbols = {
        "ENGINE_BYTES": ENGINE_BYTES, "EVENT_BYTES": EVENT.bytes * EVENT_RING_ENTRIES, "M": spec.rows[-1],
        "L": spec.head_rows[-1], "H": spec.hidden, "V": spec.vocabulary, "S": spec.context,
        "C": -(-spec.context // 128), "B": 1 + TOP_LOGPROBS_MAX, "Y": SAMPLING.bytes,
    }  # fmt: skip
    for name, (region, unit, dtype, dims) in STATE_TENSORS.items():
        placer.add(name, region, dtype, tuple(symbols.get(d) or int(d) for d in dims.split()), unit=unit)
    for i in range(spec.layers):
        shape = {"k": (spec.kv_heads, spec.head_size, 128), "v": (spec.kv_heads, 128, spec.head_size)}
        for role, dims in shape.items():
            placer.add(f"layer.{i}.{role}", Region.KV, spec.kv, dims, unit=Unit.GRANULE)
            if spec.kv == Dtype.I8:
                scale = (spec.kv_heads, 128)
                placer.add(f"layer.{i}.{role}_scale", Region.KV, Dtype.F16, scale, unit=Unit.GRANULE)
    placer.tensors.sort(key=lambda tensor: (tensor.region, tensor.unit, tensor.offset))
    return placer


def _header(spec: TinySpec) -> dict[str, object]:
    return {
        "target": Target.CPU, "vocabulary": spec.vocabulary, "layers": spec.layers, "hidden": spec.hidden,
        "query_heads": spec.query_heads, "kv_heads": spec.kv_heads, "head_size": spec.head_size,
        "rotary_pairs": spec.rotary_pairs, "context": spec.context, "rows_max": spec.rows[-1],
        "head_rows_max": spec.head_rows[-1], "requests_max": 8, "requests_default": 4, "granules_max": 64,
        "granules_default": 12, "default_max_tokens": 64, "weights_dtype": spec.weights, "kv_dtype": spec.kv,
        "activation_dtype": Dtype.I8 if spec.weights == Dtype.I8 else Dtype.F32, "bos_token": 1,
        "eos_count": 1,
        "eos_tokens": (2,),
    }  # fmt: skip


def _tokenizer(vocabulary: int) -> bytes:
    """A tokenizer.json of one word per token: `t0 t1 ...`."""
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(vocabulary)}, "unk_token": "t0"},
    }).encode()  # fmt: skip


def _meta(spec: TinySpec) -> dict[str, object]:
    return {
        "name": "tiny", "architecture": "LlamaForCausalLM", "checkpoint_sha256": "0" * 64,
        "model": {"vocabulary": spec.vocabulary, "hidden": spec.hidden, "intermediate": spec.ffn},
        "numerics": {"weights": spec.weights.name.lower(), "activations": "f32", "kv": spec.kv.name.lower()},
        "text": {"special": {"bos_token": "t1", "eos_token": "t2"}, "add_bos": True, "generation": {}},
        "calibration": {"digest": "0" * 64}, "ingot": "0.1.0",
    }  # fmt: skip


def tiny_plan(spec: TinySpec = TinySpec()) -> TinyPlan:
    """The plan's tables and bytes. Every rule of VERIFY.md holds."""
    weights: dict[str, bytes] = {}
    scales = _scales(spec)
    for name, (weight, layout) in _weights(spec).items():
        weights[name], scale = pack(weight, spec.weights, layout)
        if spec.weights == Dtype.E4M3:
            scales[f"{name}_scale"] = scale
    weights |= {name: value.tobytes() for name, value in scales.items()}
    placer = _fixed_tensors(spec, scales)
    below = [tensor for tensor in placer.tensors if tensor.region < Region.ARENA]
    above = [tensor for tensor in placer.tensors if tensor.region > Region.ARENA]
    built = [_body(spec, rows) for rows in spec.rows] + [_head(spec, rows) for rows in spec.head_rows]
    arena: list[TensorEntry] = []
    programs: list[ProgramEntry] = []
    base = 0
    for program in built:
        tensors, arena_bytes, bound = _place(program, base)
        programs.append(ProgramEntry(
            program.family, program.rows, base, len(program.commands), len(below) + len(arena), len(tensors),
            arena_bytes, bound,
        ))  # fmt: skip
        arena += tensors
        base += len(program.commands)
    tensors = (*below, *arena, *above)
    selftest = Selftest(
        (1, 5, 9), (0, 3, spec.vocabulary - 1), (0.5, -0.25, 1.0), next_token=7, margin=0.125, tolerance=1e6
    )
    tables = PlanTables(
        header=_header(spec),
        regions=_regions(placer, max(program.arena_bytes for program in programs)),
        tensors=tensors,
        programs=tuple(programs),
        commands=_commands(built, {tensor.name: t for t, tensor in enumerate(tensors)}),
        meta=_meta(spec),
        tokenizer=_tokenizer(spec.vocabulary),
        template=b"{% for message in messages %}{{ message.content }} {% endfor %}",
        selftest_bytes=32 + 4 * len(selftest.prompt) + 8 * len(selftest.probe_ids),
        drift={"mean_kl": 0.001, "perplexity_ratio": 1.01},
    )
    return TinyPlan(tables, weights, selftest)


def _regions(placer: _Placer, arena_bytes: int) -> tuple[RegionEntry, ...]:
    sections = {Region.WEIGHTS: Section.WEIGHTS, Region.SCALES: Section.SCALES}
    entries = []
    for region in Region:
        fixed, granule, request = (placer.ends.get((region, unit), 0) for unit in Unit)
        fixed = arena_bytes if region == Region.ARENA else fixed
        entries.append(RegionEntry(
            region, sections.get(region, 0), fixed, round_up(granule, 64), round_up(request, 64), PAGE_BYTES
        ))  # fmt: skip
    return tuple(entries)


def _commands(built: list[_Program], index: Mapping[str, int]) -> tuple[CommandEntry, ...]:
    entries = []
    for program in built:
        for kernel, flags, layer, operands, f, u in program.commands:
            known = [operand.name for operand in KERNELS[kernel].operands]
            assert set(operands) <= set(known), f"{kernel.name} has no operand {set(operands) - set(known)}"
            slots = tuple(index[operands[name]] if name in operands else NONE_INDEX for name in known)
            entries.append(CommandEntry(
                kernel, int(flags), layer, slots + (NONE_INDEX,) * (14 - len(slots)),
                f + (0.0,) * (4 - len(f)),
                u + (0,) * (6 - len(u)), cost_bytes=DTYPE_BYTES[Dtype.F32] * program.rows,
                cost_flops=program.rows,
            ))  # fmt: skip
    return tuple(entries)


def write_tiny_plan(path: Path, spec: TinySpec = TinySpec()) -> bytes:
    """Writes a tiny plan; returns its hash."""
    plan = tiny_plan(spec)
    with PlanWriter(path, plan.tables) as writer:
        for name, raw in plan.weights.items():
            writer.write(name, 0, raw)
        writer.selftest(plan.selftest)
        return writer.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=["i8", "e4m3", "bf16"], default="i8")
    parser.add_argument("--kv", choices=["i8", "e4m3", "e5m2", "bf16"], default="i8")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--qk-norm", action="store_true")
    parser.add_argument("--bias", action="store_true")
    arguments = parser.parse_args()
    spec = TinySpec(
        weights=Dtype[arguments.weights.upper()], kv=Dtype[arguments.kv.upper()], layers=arguments.layers,
        qk_norm=arguments.qk_norm, bias=arguments.bias,
    )  # fmt: skip
    print(write_tiny_plan(arguments.out, spec).hex())


if __name__ == "__main__":
    main()
