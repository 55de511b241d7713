"""A plan's tables as Python values: what the writer takes and the reader gives. One dataclass per record of
`layout.py`.

The tables say everything about a plan but the bytes of WEIGHTS and SCALES, so a plan can be sized, shown and
compared without them. META's keys are listed at `PlanTables.meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .layout import NONE_INDEX, Dtype, Family, Kernel, Layout, Region, Unit


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """A contiguous reservation; sizes in bytes. See `layout.REGION`."""

    kind: Region
    section: int  # Section that fills it, or 0
    bytes_fixed: int
    bytes_per_granule: int
    bytes_per_request: int
    alignment: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A named range of a region: dims outermost first, offset and bytes within the part for `unit`."""

    name: str
    region: Region
    unit: Unit
    dtype: Dtype
    layout: Layout
    dims: tuple[int, ...]
    offset: int
    bytes: int
    first_command: int = NONE_INDEX
    last_command: int = NONE_INDEX


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """A command list for one fixed number of rows. See `layout.PROGRAM`."""

    family: Family
    rows: int
    command_begin: int
    command_count: int
    tensor_begin: int
    tensor_count: int
    arena_bytes: int
    arena_lower_bound: int


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One kernel over its tensors: 14 tensor indices (NONE_INDEX when absent), 4 floats, 6 integers."""

    kernel: Kernel
    flags: int
    layer: int  # NONE_INDEX when outside the decoder layers
    tensors: tuple[int, ...]
    f: tuple[float, ...]
    u: tuple[int, ...]
    cost_bytes: int
    cost_flops: int


@dataclass(frozen=True, slots=True)
class Selftest:
    """Golden prompt and probe logits: ids below the vocabulary, logits float32. See `layout.SELFTEST`."""

    prompt: tuple[int, ...]
    probe_ids: tuple[int, ...]
    probe_logits: tuple[float, ...]
    next_token: int
    margin: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class PlanTables:
    """Everything about a plan but its weight bytes.

    `header` holds the fields of `layout.HEADER` from `target` and `vocabulary` to `eos_tokens` (the file's
    own fields are the writer's). `meta` is JSON-able: name, architecture, checkpoint_sha256, model (the
    ModelSpec's fields), numerics {weights, activations, kv}, text {special {bos_token, ...: str}, add_bos,
    generation {...}}, calibration, ingot.
    """

    header: Mapping[str, object]
    regions: tuple[RegionEntry, ...]
    tensors: tuple[TensorEntry, ...]
    programs: tuple[ProgramEntry, ...]
    commands: tuple[CommandEntry, ...]
    meta: Mapping[str, object]
    tokenizer: bytes | None = None
    template: bytes | None = None
    selftest_bytes: int = 0  # size of the SELFTEST section, written after the weights; 0: none
    drift: Mapping[str, object] | None = None  # JSON-able: the measured distance from the unquantised model

    def integer(self, field: str) -> int:
        """A scalar header field."""
        value = self.header[field]
        assert isinstance(value, int), f"{field} is not a scalar"
        return value
