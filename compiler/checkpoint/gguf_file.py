"""Reads the GGUF container (version 2 and 3, little-endian): its metadata and where each tensor lies.

The file is hostile until proven otherwise: every length is compared with a limit and with what is left of the
file before anything is allocated for it, and nothing is mapped. What the metadata means is `gguf.py`'s
concern. The format is that of ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...plans.layout import Limit
from .files import show
from .names import Shape
from .spec import CheckpointError
from .streams import StoredFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAX = 1 << 16
METADATA_BYTES_MAX = 512 << 20  # a vocabulary of a million tokens and its merges
METADATA_KEYS_MAX = 1 << 16
STRING_BYTES_MAX = 16 << 20
ARRAY_ELEMENTS_MAX = 1 << 23
DIMENSIONS_MAX = 4
WINDOW_BYTES = 1 << 20  # read ahead of the cursor

Value = bool | int | float | str | list[int] | list[float] | list[str] | list[bool]
SCALARS: Mapping[int, tuple[str, str]] = {  # value type -> (name, struct code)
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"), 7: ("bool", "?"), 10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies: shape with rows first, ggml's name of its type, the bytes of a stored row."""

    name: str
    type: str
    shape: Shape
    offset: int  # bytes from the start of the file
    row_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the stored data."""
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked GGUF file: its metadata as Python values and its tensors by name."""

    file: StoredFile
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


@dataclass(slots=True)
class _Cursor:
    """Reads forward through a file, a window at a time."""

    file: StoredFile
    position: int = 0
    window: bytes = b""
    window_begin: int = field(default=0)

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes. Raises CheckpointError when the file or the metadata limit ends before."""
        if count > self.file.size - self.position:
            raise CheckpointError(
                f"{self.file.path.name} is cut off: {what} at byte {self.position} is incomplete"
            )
        if self.position + count > METADATA_BYTES_MAX:
            raise CheckpointError(
                f"{self.file.path.name} has more than {METADATA_BYTES_MAX} bytes of metadata"
            )
        begin = self.position - self.window_begin
        if begin + count > len(self.window):
            size = min(max(count, WINDOW_BYTES), self.file.size - self.position)
            self.window = self.file.read(self.position, size).tobytes()
            self.window_begin, begin = self.position, 0
        self.position += count
        return self.window[begin : begin + count]

    def scalar(self, code: str, what: str) -> int | float | bool:
        layout = struct.Struct(f"<{code}")
        value: int | float | bool = layout.unpack(self.take(layout.size, what))[0]
        return value

    def count(self, code: str, limit: int, what: str) -> int:
        """An unsigned integer of at most `limit`."""
        value = int(self.scalar(code, what))
        if value > limit:
            raise CheckpointError(f"{self.file.path.name}: {what} is {value}; at most {limit} is read")
        return value

    def string(self, what: str) -> str:
        raw = self.take(self.count("Q", STRING_BYTES_MAX, f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.file.path.name}: {what} is not UTF-8") from error

    def value(self, kind: int, what: str) -> Value:
        """A metadata value: a scalar, a string, or a flat array of either."""
        if kind == STRING:
            return self.string(what)
        if kind in SCALARS:
            return self.scalar(SCALARS[kind][1], what)
        if kind != ARRAY:
            raise CheckpointError(f"{self.file.path.name}: {what} has the unknown type {kind}")
        element = self.count("I", 1 << 31, f"the element type of {what}")
        count = self.count("Q", ARRAY_ELEMENTS_MAX, f"the length of {what}")
        if element == STRING:
            return [self.string(what) for _ in range(count)]
        if element not in SCALARS:
            raise CheckpointError(
                f"{self.file.path.name}: {what} is an array of the unsupported type {element}"
            )
        layout = struct.Struct(f"<{count}{SCALARS[element][1]}")
        return list(layout.unpack(self.take(layout.size, what)))


def _metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for i in range(count):
        key = cursor.string(f"metadata key {i}")
        if key in found:
            raise CheckpointError(f"{cursor.file.path.name} has the metadata key {show(key)} twice")
        found[key] = cursor.value(cursor.count("I", 1 << 31, f"the type of {show(key)}"), show(key))
    return found


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
    if type(value) is not int or not 8 <= value <= ALIGNMENT_MAX or value & (value - 1):
        raise CheckpointError(
            f"general.alignment is {show(value)}; it must be a power of two, at most {ALIGNMENT_MAX}"
        )
    return value


def _tensor(cursor: _Cursor, sizes: Mapping[int, tuple[str, int, int]]) -> GgufTensor:
    """One tensor record; its offset is still relative to the data. sizes: as for read_gguf."""
    name = cursor.string("a tensor name")
    what = f"the tensor {show(name)}"
    dims = [
        cursor.count("Q", 1 << int(Limit.BYTES_LOG2), f"a dimension of {what}")
        for _ in range(cursor.count("I", DIMENSIONS_MAX, f"the dimensions of {what}"))
    ]
    kind = int(cursor.scalar("I", what))
    offset = cursor.count("Q", 1 << int(Limit.BYTES_LOG2), f"the offset of {what}")
    if kind not in sizes:
        known = ", ".join(label for label, _, _ in sizes.values())
        raise CheckpointError(f"{what} has the unsupported ggml type {kind}; supported are {known}")
    label, block, block_bytes = sizes[kind]
    if not dims or 0 in dims:
        raise CheckpointError(f"{what} has the shape {show(dims[::-1])}; every dimension must be at least 1")
    if dims[0] % block:
        raise CheckpointError(f"{what} has rows of {dims[0]} elements; {label} needs a multiple of {block}")
    return GgufTensor(name, label, tuple(dims[::-1]), offset, dims[0] // block * block_bytes)


def read_gguf(path: Path, sizes: Mapping[int, tuple[str, int, int]]) -> GgufFile:
    """Parse a GGUF file's head. sizes maps a ggml type to (its name, elements of a block, bytes of a block).

    Raises CheckpointError for anything that is not a whole, consistent file of known tensor types.
    """
    cursor = _Cursor(StoredFile.open(path))
    name = path.name
    if cursor.take(4, "the magic") != MAGIC:
        raise CheckpointError(f"{name} is not a GGUF file; it does not begin with {MAGIC.decode()}")
    version = int(cursor.scalar("I", "the version"))
    if version not in VERSIONS:
        hint = "a big-endian file" if version & 0xFFFF == 0 and version else f"version {version}"
        raise CheckpointError(f"{name} is {hint}; little-endian versions 2 and 3 are read")
    tensor_count = cursor.count("Q", int(Limit.TENSORS), "the number of tensors")
    key_count = cursor.count("Q", METADATA_KEYS_MAX, "the number of metadata keys")
    metadata = _metadata(cursor, key_count)
    alignment = _alignment(metadata)
    records = [_tensor(cursor, sizes) for _ in range(tensor_count)]
    data_begin = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    end = 0
    for record in sorted(records, key=lambda record: record.offset):
        if record.name in tensors:
            raise CheckpointError(f"{name} has the tensor {show(record.name)} twice")
        if record.offset % alignment or record.offset < end:
            raise CheckpointError(
                f"{name}: the tensor {show(record.name)} overlaps another or is not aligned"
            )
        end = record.offset + record.size
        if end > cursor.file.size - data_begin:
            raise CheckpointError(f"{name} is cut off: the tensor {show(record.name)} ends after the file")
        tensors[record.name] = GgufTensor(
            record.name, record.type, record.shape, data_begin + record.offset, record.row_bytes
        )
    return GgufFile(cursor.file, metadata, tensors)
