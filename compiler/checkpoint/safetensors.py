"""Weights of a transformers checkpoint: one `model.safetensors`, or shards and their index.

The format (8 bytes of length, a JSON header, then data) is read here rather than by its library, so that
every offset is checked before use and reading maps nothing. Formats: F32, F16, BF16; others are refused by
name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plans.layout import Limit
from .files import parse_json_object, read_json_object, show
from .names import Shape, match_tensors, tensor_shapes, transformers_name
from .spec import CheckpointError, ModelSpec
from .streams import CHUNK_BYTES, StoredFile, digest_files, read_rows

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES_MAX = 100_000_000  # the format's own limit
INDEX_BYTES_MAX = 64 << 20
SHARDS_MAX = 4096
DIMENSIONS_MAX = 8
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
KNOWN_FORMATS = (
    "BOOL",
    "U8",
    "I8",
    "I16",
    "U16",
    "I32",
    "U32",
    "I64",
    "U64",
    "F64",
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
    "F4",
)
# Buffers that old releases saved: computed from the config, so they say nothing.
IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: its file, format, shape, and the byte of the file at which its data begins."""

    file: StoredFile
    format: str
    shape: Shape
    offset: int

    @property
    def row_elements(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """Bytes of the stored data."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.format]

    def read(self, name: str, begin: int, end: int) -> NDArray[np.float32]:
        """Rows [begin, end), (end - begin, elements of a row) float32, exact."""
        size = ELEMENT_BYTES[self.format]
        row = (self.row_elements * size, self.row_elements)
        return read_rows(self.file, name, self.offset, (begin, end), row, WIDEN[self.format])


def _widen_bf16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


WIDEN = {
    "F32": lambda data: data.view("<f4").astype(np.float32, copy=False),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": _widen_bf16,
}


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def _entry(name: str, entry: Any, file: StoredFile, data_begin: int) -> StoredTensor:
    """One header entry, checked on its own. Raises CheckpointError."""
    where = f"{file.path.name}: the tensor {show(name)}"
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} has a malformed header entry; it needs dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in ELEMENT_BYTES:
        allowed = ", ".join(ELEMENT_BYTES)
        what = f"is {kind}" if kind in KNOWN_FORMATS else f"has the unknown format {show(kind)}"
        raise CheckpointError(f"{where} {what}; weights must be {allowed}: convert the checkpoint first")
    limit = 1 << int(Limit.BYTES_LOG2)
    if (
        not isinstance(shape, list)
        or len(shape) > DIMENSIONS_MAX
        or not all(_is_count(n, limit) for n in shape)
    ):
        raise CheckpointError(
            f"{where} has the shape {show(shape)}; it must be up to {DIMENSIONS_MAX} counts"
        )
    data_bytes = file.size - data_begin
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_count(n, data_bytes) for n in offsets)
    ):
        raise CheckpointError(
            f"{where} lies at {show(offsets)}; the file has {data_bytes} bytes of data (cut off?)"
        )
    size = math.prod(shape) * ELEMENT_BYTES[kind]
    if offsets[1] - offsets[0] != size:
        raise CheckpointError(
            f"{where} takes {offsets[1] - offsets[0]} bytes; its shape and format need {size}"
        )
    return StoredTensor(file, kind, tuple(shape), data_begin + offsets[0])


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by stored name. Raises CheckpointError for any other file."""
    file = StoredFile.open(path)
    if file.size < 8:
        raise CheckpointError(
            f"{path.name} has {file.size} bytes; a safetensors file begins with an 8-byte length"
        )
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if length > HEADER_BYTES_MAX or length > file.size - 8:
        raise CheckpointError(
            f"{path.name} is no safetensors file, or cut off: its header length is {length} bytes"
        )
    header = parse_json_object(file.read(8, length).tobytes(), f"the header of {path.name}")
    header.pop("__metadata__", None)
    if len(header) > int(Limit.TENSORS):
        raise CheckpointError(f"{path.name} has {len(header)} tensors; at most {int(Limit.TENSORS)} are read")
    tensors = {name: _entry(name, entry, file, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[0])):
        if tensor.offset != end and tensor.size:
            raise CheckpointError(
                f"{path.name}: the tensor {show(name)} overlaps another, or leaves a hole before it"
            )
        end += tensor.size
    if end != file.size:
        raise CheckpointError(f"{path.name} has {file.size} bytes; its header describes {end}")
    return tensors


def _shard_names(index: Mapping[str, Any]) -> dict[str, str]:
    """weight_map of an index: stored name -> file. A file is a plain name beside the index, never a path."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map; it must map tensor names to files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\.safetensors", file):
            raise CheckpointError(
                f"{INDEX} says that {show(name)} lies in {show(file)}; it must name a file beside it"
            )
    if len(set(weight_map.values())) > SHARDS_MAX:
        raise CheckpointError(
            f"{INDEX} names {len(set(weight_map.values()))} files; at most {SHARDS_MAX} are read"
        )
    return weight_map


def read_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint directory, by stored name. Raises CheckpointError naming what is wrong."""
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    if not (directory / INDEX).exists():
        pickles = sorted(
            path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern)
        )
        if pickles:
            raise CheckpointError(
                f"{directory.name} has {pickles[0]} but no {SINGLE}; pickles are never read: save safetensors"
            )
        raise CheckpointError(
            f"{directory.name} has neither {SINGLE} nor {INDEX}; give a complete checkpoint"
        )
    weight_map = _shard_names(read_json_object(directory / INDEX, INDEX_BYTES_MAX))
    found: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        for name, tensor in read_header(directory / shard).items():
            if name in found:
                raise CheckpointError(
                    f"the tensor {show(name)} is in {found[name].file.path.name} and in {shard}"
                )
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"the tensor {show(name)} is in {shard}; {INDEX} says {show(weight_map.get(name))}"
                )
            found[name] = tensor
    for name, shard in weight_map.items():
        if name not in found:
            raise CheckpointError(
                f"the tensor {show(name)} is missing from {shard}, where {INDEX} says it is"
            )
    return found


def _equal(left: StoredTensor, right: StoredTensor) -> bool:
    """Whether two tensors hold the same bytes in the same format and shape."""
    if (left.format, left.shape) != (right.format, right.shape):
        return False
    size = left.size
    for begin in range(0, size, CHUNK_BYTES):
        count = min(CHUNK_BYTES, size - begin)
        a = left.file.read(left.offset + begin, count)
        if not np.array_equal(a, right.file.read(right.offset + begin, count)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class SafetensorsWeights:
    """A TensorSource over safetensors files: canonical name -> stored tensor. Thread-safe."""

    tensors: Mapping[str, StoredTensor]
    stored: Mapping[str, str]  # canonical -> stored name, for errors
    files: tuple[StoredFile, ...]

    def names(self) -> list[str]:
        """Canonical names, sorted."""
        return sorted(self.tensors)

    def shape(self, name: str) -> Shape:
        """The tensor's shape, without reading it."""
        return self.tensors[name].shape

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        """Rows [begin, end) along the first axis, float32. Raises CheckpointError for NaN or infinity."""
        tensor = self.tensors[name]
        end = tensor.shape[0] if end is None else end
        assert 0 <= begin <= end <= tensor.shape[0], (name, begin, end, tensor.shape)
        return tensor.read(self.stored[name], begin, end).reshape(end - begin, *tensor.shape[1:])

    def digest(self) -> str:
        """Hex sha256 over the weight files, in the order of their names."""
        return digest_files(self.files)


def open_safetensors(directory: Path, spec: ModelSpec) -> tuple[ModelSpec, SafetensorsWeights]:
    """The weights of a checkpoint directory, matched with its spec.

    A head beside a tied embedding is left out when it equals the embedding; otherwise the model is not tied,
    whatever its config says, and the spec returned says so. Raises CheckpointError naming a tensor that does
    not fit.
    """
    found = read_tensors(directory)
    head, embed = transformers_name("head.weight"), transformers_name("embed.weight")
    ignored = {name for name in found if IGNORED.fullmatch(name)}
    if spec.tied_head and head in found and embed in found:
        if _equal(found[head], found[embed]):
            ignored.add(head)
        else:
            spec = replace(spec, tied_head=False)
    shapes = tensor_shapes(spec)
    stored = {name: transformers_name(name) for name in shapes}
    match_tensors(shapes, stored, {name: tensor.shape for name, tensor in found.items()}, ignored)
    files = {tensor.file.path: tensor.file for tensor in found.values()}
    tensors = {name: found[stored[name]] for name in shapes}
    return spec, SafetensorsWeights(tensors, stored, tuple(files[path] for path in sorted(files)))
