"""Runs CPU kernels on numpy arrays by ctypes: one command, a chosen ISA, a chosen split of its items.

Operands are given by name; their dimensions are what the plan's tensor record would say. Arrays lie in
aligned memory between canaries, so that a write beyond an operand is seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from ingot.plans.layout import COMMAND_TENSORS, KERNELS, Kernel
from numpy.typing import NDArray
from support.native import native

Array = NDArray[Any]
CANARY_BYTES = 64
CANARY = 0xA5


class Isa(IntEnum):
    SCALAR = 1
    AVX2 = 2


class _Call(ctypes.Structure):
    """KernelCall of tests/runtime/cpu/kernel_test.cc."""

    _fields_ = (
        ("data", ctypes.c_void_p * COMMAND_TENSORS),
        ("stride", ctypes.c_uint64 * COMMAND_TENSORS),
        ("dims", (ctypes.c_uint32 * 4) * COMMAND_TENSORS),
        ("f", ctypes.c_float * 4),
        ("u", ctypes.c_uint32 * 6),
        ("flags", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("requests", ctypes.c_uint32),
    )


@cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(native("libkernel_test.so")))
    found.kernel_piece.argtypes = [
        ctypes.c_uint32, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32,
    ]  # fmt: skip
    return found


def supported(isa: Isa) -> bool:
    return bool(library().kernel_isa_supported(int(isa)))


@dataclass(slots=True)
class Tensor:
    """An array in memory aligned to 64 bytes with a canary on both sides. `dims` are the tensor record's when
    they are not the array's shape (weights in panels, granules); `stride` is bytes between units."""

    array: Array
    dims: tuple[int, ...]
    stride: int = 0
    _raw: NDArray[np.uint8] = field(repr=False, default_factory=lambda: np.empty(0, np.uint8))

    @classmethod
    def of(cls, value: Array | bytes, dims: Sequence[int] | None = None, *, units: bool = False) -> Tensor:
        """A copy of `value`; with `units` its first axis counts granules or requests."""
        source = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.ascontiguousarray(value)
        raw = np.full(source.nbytes + 2 * CANARY_BYTES + 64, CANARY, np.uint8)
        start = -raw.ctypes.data % 64 + CANARY_BYTES
        array = raw[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        array[...] = source
        shape = source.shape[1:] if units else source.shape
        return cls(array, tuple(dims or shape), source[0].nbytes if units else 0, raw)

    def intact(self) -> bool:
        """Nothing was written beside the array."""
        start = self.array.ctypes.data - self._raw.ctypes.data
        return bool(
            (self._raw[:start] == CANARY).all() and (self._raw[start + self.array.nbytes :] == CANARY).all()
        )


def run(
    isa: Isa, kernel: Kernel, tensors: Mapping[str, Tensor], *, rows: int, flags: int = 0,
    f: Sequence[float] = (), u: Sequence[int] = (), requests: int = 1, chunk: int = 0,
    backwards: bool = False,
) -> int:  # fmt: skip
    """Runs one command in place; the number of items of its last phase."""
    call = _Call(flags=flags, rows=rows, requests=requests)
    names = [operand.name for operand in KERNELS[kernel].operands]
    assert set(tensors) <= set(names), f"{kernel.name} has no operand {set(tensors) - set(names)}"
    for name, tensor in tensors.items():
        at = names.index(name)
        call.data[at] = tensor.array.ctypes.data
        call.stride[at] = tensor.stride
        for i, dim in enumerate(tensor.dims):
            call.dims[at][i] = dim
    for i, value in enumerate(f):
        call.f[i] = value
    for i, number in enumerate(u):
        call.u[i] = number
    items = int(library().kernel_run(int(isa), int(kernel), ctypes.byref(call), chunk, int(backwards)))
    assert items > 0, f"{kernel.name} has no {isa.name} kernel or no items"
    for name, tensor in tensors.items():
        assert tensor.intact(), f"{kernel.name} ({isa.name}) wrote beside {name}"
    return items


def piece(isa: Isa, name: str, source: Array, out: Array, size: int = 0, n: int | None = None) -> Array:
    """Runs one piece of the kernels' arithmetic (kernel_test_scalar.cc) over `n` elements; `out`."""
    given = np.ascontiguousarray(source)
    count = given.size if n is None else n
    found = library().kernel_piece(int(isa), name.encode(), given.ctypes.data, out.ctypes.data, count, size)
    assert found, f"there is no piece {name} for {isa.name}"
    return out
