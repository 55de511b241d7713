"""Steps 28 to 34 of `VERIFY.md`: commands against KERNELS, the runtime's tables, the self-test and the texts.

Every command operand is proved to lie in an allowed region, to be alive, and to have the shape its kernel
reads (INV-02). A step returns the index of the first offence, or None, and relies on all earlier steps having
passed.
"""

from __future__ import annotations

import codecs
import math
import struct
from collections.abc import Iterator
from typing import Any

from . import layout
from .layout import (
    GRANULE_TOKENS,
    KERNELS,
    NONE_INDEX,
    STATE_TENSORS,
    TABLE_OPERANDS,
    TOP_LOGPROBS_MAX,
    Dtype,
    Family,
    Flag,
    Kernel,
    KernelSpec,
    Layout,
    Limit,
    Operand,
    Reason,
    Region,
    Section,
    k_padded,
    panel_count,
)  # fmt: skip
from .verify_tables import PlanBytes, ProgramRow, Step, TensorRow

_FREE = frozenset("KNXZWU")
_ZERO4 = bytes(4)
_TEXTS = (Section.META, Section.DRIFT, Section.TOKENIZER, Section.TEMPLATE)
_TEXT_PIECE = 1 << 20  # bytes decoded at once
_FAMILY = {kernel: Family.BODY for kernel in KERNELS if not kernel.name.startswith("LINEAR")} | {
    Kernel.SAMPLE: Family.HEAD
}
_TABLES = {
    name: {Family.BODY: body.encode(), Family.HEAD: head.encode()}
    for name, (body, head) in TABLE_OPERANDS.items()
}
_NEEDS = {int(kernel): [int(operand.needs) for operand in spec.operands] for kernel, spec in KERNELS.items()}
_DIMS = {operand.dims: operand.dims.split() for spec in KERNELS.values() for operand in spec.operands}
_GATHER, _SILU_MUL = int(Flag.GATHER), int(Flag.SILU_MUL)
Command = tuple[Any, ...]  # kernel, flags, layer, 14 tensors, 4 f, 6 u, padding, two costs


def _by_program(plan: PlanBytes) -> Iterator[tuple[int, Command, ProgramRow]]:
    for program in plan.programs:
        for c in range(program.command_begin, program.command_begin + program.command_count):
            yield c, plan.commands[c], program


def _present(plan: PlanBytes, command: Command) -> Iterator[tuple[Operand, int, TensorRow]]:
    """(operand, tensor index, tensor) of a command whose operands passed step 29."""
    kernel, flags = command[:2]
    for operand, needs, t in zip(KERNELS[kernel].operands, _NEEDS[kernel], command[3:17], strict=False):
        if not needs or flags & needs:
            yield operand, t, plan.tensors[t]


def _command_fields(plan: PlanBytes) -> int | None:
    listed = {row[0] for row in plan.kernels}
    layers = plan.header["layers"]
    for c, command, program in _by_program(plan):
        kernel, flags, layer = command[:3]
        if kernel not in listed:
            return c
        spec: KernelSpec = KERNELS[kernel]
        if _FAMILY.get(spec.id, program.family) != program.family or flags & ~spec.flags:
            return c
        if flags & _GATHER and program.family != Family.HEAD:
            return c
        if layer >= layers and layer != NONE_INDEX:
            return c
        f, u = command[17:21], command[21:27]
        if not all(map(math.isfinite, f)) or any(struct.pack(f"<{4 - len(spec.f)}f", *f[len(spec.f) :])):
            return c
        if any(u[len(spec.u) :]) or command[27] != _ZERO4:
            return c
    return None


def _operand_good(plan: PlanBytes, operand: Operand, tensor: TensorRow, flags: int, family: Family) -> bool:
    if tensor.region not in operand.regions or tensor.unit != operand.unit or tensor.dtype != operand.dtype:
        return False
    if tensor.layout not in operand.layout:
        return False
    if Layout.PANELS_PAIRED in operand.layout:
        paired = tensor.layout == Layout.PANELS_PAIRED
        if paired != bool(flags & _SILU_MUL):
            return False
    table = _TABLES.get(operand.name)
    return table is None or plan.name(tensor) == table[family]


def _command_tensors(plan: PlanBytes) -> int | None:
    count = len(plan.tensors)
    for c, command, program in _by_program(plan):
        kernel, flags = command[:2]
        operands, needs = KERNELS[kernel].operands, _NEEDS[kernel]
        family = Family(program.family)
        for o, t in enumerate(command[3:17]):
            present = o < len(operands) and (not needs[o] or flags & needs[o])
            if not present:
                if t != NONE_INDEX:
                    return c
            elif t >= count or not _operand_good(plan, operands[o], plan.tensors[t], flags, family):
                return c
    return None


def _command_lifetimes(plan: PlanBytes) -> int | None:
    for c, command, program in _by_program(plan):
        for _, t, tensor in _present(plan, command):
            if tensor.region != Region.ARENA:
                continue
            if not program.tensor_begin <= t < program.tensor_begin + program.tensor_count:
                return c
            if not tensor.first_command <= c <= tensor.last_command:
                return c
    return None


def _symbols(plan: PlanBytes) -> dict[str, int]:
    """Values of the symbols that the header or a constant fixes."""
    h = plan.header
    return {
        "M": h["rows_max"], "L": h["head_rows_max"], "H": h["hidden"], "V": h["vocabulary"],
        "D": h["head_size"],
        "G": h["kv_heads"], "Q": h["query_heads"] * h["head_size"],
        "A": (h["query_heads"] + 2 * h["kv_heads"]) * h["head_size"], "P": h["rotary_pairs"],
        "C": -(-h["context"] // GRANULE_TOKENS), "S": h["context"], "T": GRANULE_TOKENS, "2": 2,
        "B": 1 + TOP_LOGPROBS_MAX, "Y": layout.SAMPLING.bytes,
    }  # fmt: skip


def _shape_good(plan: PlanBytes, command: Command, program: ProgramRow, fixed: dict[str, int]) -> bool:
    gather = command[1] & _GATHER
    io_rows = fixed["M"] if program.family == Family.BODY else fixed["L"]
    values = fixed | {"R": program.rows, "E": fixed["M"] if gather else program.rows}
    weight: TensorRow | None = None
    for operand, _, tensor in _present(plan, command):
        symbols = _DIMS[operand.dims]
        if tensor.rank != len(symbols):
            return False
        if operand.name == "weight":
            weight = tensor
        for i, (symbol, dim) in enumerate(zip(symbols, tensor.dims, strict=True)):
            value = values.setdefault(symbol, dim) if symbol in _FREE else values[symbol]
            if i == 0 and tensor.region == Region.IO and (symbol == "R" or (symbol == "E" and not gather)):
                value = io_rows
            if dim != value:
                return False
    if "W" in values and values["W"] != values["N"] * (2 if command[1] & _SILU_MUL else 1):
        return False
    if weight is None:
        return True
    if "U" in values and values["U"] != 16 * panel_count(weight.dim0, Layout(weight.layout)):
        return False
    if "X" in values and values["X"] != k_padded(values["K"], Dtype(weight.dtype)):
        return False
    return "Z" not in values or 32 * values["Z"] == values["X"]


def _command_shapes(plan: PlanBytes) -> int | None:
    fixed = _symbols(plan)
    for c, command, program in _by_program(plan):
        if not _shape_good(plan, command, program, fixed):
            return c
    return None


def _state_tensors(plan: PlanBytes) -> int | None:
    values = _symbols(plan) | {
        "ENGINE_BYTES": layout.ENGINE_BYTES,
        "EVENT_BYTES": layout.EVENT.bytes * layout.EVENT_RING_ENTRIES,
    }
    found: dict[bytes, list[TensorRow]] = {name.encode(): [] for name in STATE_TENSORS}
    for tensor in plan.tensors:
        if (rows := found.get(plan.name(tensor))) is not None:
            rows.append(tensor)
    for s, (name, (region, unit, dtype, dims)) in enumerate(STATE_TENSORS.items()):
        rows = found[name.encode()]
        if len(rows) != 1:
            return s
        tensor = rows[0]
        shape = tuple(values[dim] if dim in values else int(dim) for dim in dims.split())
        if (tensor.region, tensor.unit, tensor.dtype, tensor.layout) != (region, unit, dtype, Layout.ROWS):
            return s
        if tensor.dims != shape:
            return s
    return None


def _selftest(plan: PlanBytes) -> int | None:
    section = plan.sections.get(Section.SELFTEST)
    if section is None:
        return None
    if len(section) < layout.SELFTEST.bytes:
        return 0
    prompts, probes, next_token, margin, tolerance = struct.unpack_from("<IIIff", section)
    vocabulary = plan.header["vocabulary"]
    conditions = (
        (0, 1 <= prompts <= min(Limit.SELFTEST_TOKENS, plan.header["context"])),
        (4, 1 <= probes <= Limit.SELFTEST_TOKENS),
        (8, next_token < vocabulary),
        (12, math.isfinite(margin) and margin >= 0),
        (16, math.isfinite(tolerance) and tolerance >= 0),
        (20, not any(section[20:32])),
        (32, len(section) == 32 + 4 * prompts + 8 * probes),
    )
    for index, good in conditions:
        if not good:
            return index
    tokens = struct.unpack_from(f"<{prompts + probes}I", section, 32)
    logits = struct.unpack_from(f"<{probes}f", section, 32 + 4 * (prompts + probes))
    good = [token < vocabulary for token in tokens] + [math.isfinite(logit) for logit in logits]
    return None if all(good) else 32 + 4 * good.index(False)


def _is_text(section: memoryview) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(section), _TEXT_PIECE):
            decoder.decode(section[begin : begin + _TEXT_PIECE], final=begin + _TEXT_PIECE >= len(section))
    except UnicodeDecodeError:
        return False
    return True


def _texts(plan: PlanBytes) -> int | None:
    for kind in _TEXTS:
        if kind in plan.sections and not _is_text(plan.sections[kind]):
            return int(kind)
    return None


COMMAND_STEPS: tuple[tuple[Reason, Step], ...] = (
    (Reason.BAD_COMMAND_FIELD, _command_fields),
    (Reason.BAD_COMMAND_TENSOR, _command_tensors),
    (Reason.BAD_COMMAND_LIFETIME, _command_lifetimes),
    (Reason.BAD_COMMAND_SHAPE, _command_shapes),
    (Reason.BAD_STATE_TENSOR, _state_tensors),
    (Reason.BAD_SELFTEST, _selftest),
    (Reason.BAD_TEXT, _texts),
)
