"""The reference executor over a plan: walks the commands of its programs in torch, on the plan's own weight
bytes.

It reads what the runtime reads (tables, panels, scales), so that a mistake in packing, layout or scheduling
shows as a difference from `executor.Reference`. It gives the golden logits of the self-test, and can stop
after any command. Arithmetic is float32 in torch's order: close to the runtime's, not bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ....plans.layout import (
    GRANULE_TOKENS,
    I8_GROUP,
    KERNELS,
    NONE_INDEX,
    Dtype,
    Family,
    Flag,
    Kernel,
    Region,
    k_padded,
)
from ....plans.records import CommandEntry, PlanTables, ProgramEntry, TensorEntry
from ...graph.ops import REGISTRY
from ...graph.ops.definition import Call, Matrix, Values
from ...graph.ops.rms_norm import normalise
from ...passes.layout import scale_name
from ..cpu.pack import panel_rows, unpack_rows

Reader = Callable[[str], memoryview]


def round_activation(x: torch.Tensor) -> torch.Tensor:
    """x (R, K) float32 rounded as the i8 linears do: int8 in groups of 32 along K (runtime/README.md)."""
    rows, width = x.shape
    padded = torch.zeros(rows, k_padded(width, Dtype.I8))
    padded[:, :width] = x
    groups = padded.reshape(rows, -1, I8_GROUP)
    most = groups.abs().amax(dim=2, keepdim=True)
    live = most >= 1e-30
    codes = torch.where(live, torch.round(groups * (127.0 / most)), 0.0)
    return (codes * torch.where(live, most / 127.0, 0.0)).reshape(rows, -1)[:, :width]


class PlanReference:
    """Runs one sequence through a plan's programs. `read(name)` gives a WEIGHTS or SCALES tensor's bytes."""

    def __init__(self, tables: PlanTables, read: Reader) -> None:
        self.tables, self._read = tables, read
        self._kv = Dtype(tables.integer("kv_dtype"))
        self._index = {tensor.name: i for i, tensor in enumerate(tables.tensors)}

    def forward(self, tokens: Sequence[int], kv: Dtype | None = None) -> NDArray[np.float32]:
        """Logits after every token, (T, V) float32. kv: another KV rounding than the plan's (F32: none)."""
        return np.concatenate(list(self._steps(tokens, self._kv if kv is None else kv)))

    def stop_after(self, tokens: Sequence[int], command: int) -> Values:
        """Outputs by operand of body command `command` of the smallest bucket that holds `tokens`."""
        program = self._program(Family.BODY, len(tokens))
        state = self._begin(len(tokens))
        entry = self.tables.commands[program.command_begin + command]
        self._run(program, self._row_tables(tokens, 0), len(tokens), state, self._kv, command + 1)
        return {
            operand.name: state[self.tables.tensors[index].name]
            for operand, index in zip(KERNELS[entry.kernel].operands, entry.tensors, strict=False)
            if operand.writes and index != NONE_INDEX and self.tables.tensors[index].name in state
        }

    def _steps(self, tokens: Sequence[int], kv: Dtype) -> list[NDArray[np.float32]]:
        rows_max = self.tables.integer("rows_max")
        head_rows_max = self.tables.integer("head_rows_max")
        state, logits = self._begin(len(tokens)), []
        for first in range(0, len(tokens), rows_max):
            part = tokens[first : first + rows_max]
            values = self._row_tables(part, first)
            self._run(self._program(Family.BODY, len(part)), values, len(part), state, kv)
            for row in range(0, len(part), head_rows_max):
                count = min(head_rows_max, len(part) - row)
                values["head_rows"] = torch.arange(row, row + count)
                self._run(self._program(Family.HEAD, count), values, count, state, kv)
                logits.append(state["logits"].numpy().copy())
        return logits

    def _program(self, family: Family, rows: int) -> ProgramEntry:
        return next(p for p in self.tables.programs if p.family == family and p.rows >= rows)

    def _begin(self, tokens: int) -> Values:
        """KV pools by tensor name: (granules, ...) float32 of the stored values."""
        granules = -(-tokens // GRANULE_TOKENS)
        return {
            tensor.name: torch.zeros(granules, *tensor.dims)
            for tensor in self.tables.tensors
            if tensor.region == Region.KV and tensor.dtype != Dtype.F16
        }

    @staticmethod
    def _row_tables(tokens: Sequence[int], first: int) -> Values:
        rows = len(tokens)
        return {
            "row_tokens": torch.tensor(tokens, dtype=torch.int64),
            "row_positions": torch.arange(first, first + rows),
            "row_leases": torch.zeros(rows, dtype=torch.int64),
        }

    @torch.no_grad()
    def _run(
        self,
        program: ProgramEntry,
        tables: Values,
        rows: int,
        state: Values,
        kv: Dtype,
        commands: int | None = None,
    ) -> None:
        begin = program.command_begin
        for command in self.tables.commands[begin : begin + (commands or program.command_count)]:
            if command.kernel != Kernel.SAMPLE:
                self._command(command, tables, rows, state, kv)

    def _command(self, command: CommandEntry, tables: Values, rows: int, state: Values, kv: Dtype) -> None:
        operands = {
            operand.name: self.tables.tensors[index]
            for operand, index in zip(KERNELS[command.kernel].operands, command.tensors, strict=False)
            if index != NONE_INDEX
        }

        def value(name: str) -> torch.Tensor:
            tensor = operands[name]
            if tensor.name in tables:
                return tables[tensor.name]
            if tensor.region == Region.SCALES:
                return self._vector(tensor)
            return state[tensor.name]

        outputs = self._outputs(command, operands, value, rows, state, kv)
        for role, result in outputs.items():
            if role in operands and operands[role].region != Region.KV:
                state[operands[role].name] = result

    def _outputs(
        self,
        command: CommandEntry,
        operands: Mapping[str, TensorEntry],
        value: Callable[[str], torch.Tensor],
        rows: int,
        state: Values,
        kv: Dtype,
    ) -> Values:
        name = command.kernel.name.split("_")[0]
        if command.kernel == Kernel.ROPE_TABLE:
            inputs = {role: value(role) for role in ("positions", "inverse_frequency")}
            return REGISTRY["rope_table"].reference(Call(rows, inputs, {"attention_factor": command.f[0]}))
        if name == "EMBED":
            call = Call(
                rows, {"tokens": value("tokens")}, matrices={"weight": self._matrix(operands["weight"])}
            )
            return REGISTRY["embed"].reference(call)
        if name == "LINEAR":
            return self._linear(command, operands, value, rows)
        caches = {role: state[operands[role[0]].name] for role in ("k_cache", "v_cache")}
        tensors = ("qkv", "positions", "leases", "rope", "q_norm", "k_norm")
        attributes: dict[str, float | int | bool] = {
            "softmax_scale": command.f[0], "eps": command.f[1], "window": command.u[0],
            **{key: self.tables.integer(key) for key in ("query_heads", "kv_heads", "head_size")},
        }  # fmt: skip
        granules = torch.arange(caches["k_cache"].shape[0])[None]
        inputs = {role: value(role) for role in tensors if role in operands}
        return REGISTRY["fused_attention"].reference(
            Call(rows, inputs, attributes, caches=caches, granules=granules, kv=kv)
        )

    def _linear(
        self,
        command: CommandEntry,
        operands: Mapping[str, TensorEntry],
        value: Callable[[str], torch.Tensor],
        rows: int,
    ) -> Values:
        x, weight = value("x"), operands["weight"]
        if command.flags & Flag.GATHER:
            x = x[value("row_index")]
        if command.flags & Flag.NORM:
            x = normalise(x, value("norm"), command.f[0])
        if weight.dtype == Dtype.I8:
            x = round_activation(x)
        inputs = {"x": x}
        if command.flags & Flag.BIAS:
            bias = panel_rows(value("bias").numpy(), weight.dims[0], weight.layout)
            inputs["bias"] = torch.from_numpy(bias)
        if command.flags & Flag.RESIDUAL:
            inputs["residual"] = value("residual")
        attributes = {"silu_mul": bool(command.flags & Flag.SILU_MUL)}
        matrices = {"weight": self._matrix(weight)}
        return REGISTRY["fused_linear"].reference(Call(rows, inputs, attributes, matrices))

    def _vector(self, tensor: TensorEntry) -> torch.Tensor:
        values = np.frombuffer(self._read(tensor.name), np.float32).reshape(tensor.dims)
        return torch.from_numpy(values.copy())

    def _matrix(self, tensor: TensorEntry) -> Matrix:
        """A weight that is unpacked by the rows that are asked for."""
        data, scales = self._read(tensor.name), None
        if tensor.dtype == Dtype.E4M3:
            scales = self._vector(self.tables.tensors[self._index[scale_name(tensor.name)]]).numpy()

        def read(begin: int, end: int) -> torch.Tensor:
            return torch.from_numpy(unpack_rows(data, tensor, scales, begin, end))

        return Matrix((tensor.dims[0], tensor.dims[1]), read)
