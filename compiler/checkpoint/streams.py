"""Reads ranges of a large file and widens them to float32 without ever holding more than was asked for.

Files are read with `pread`, never mapped: mapped pages count as resident memory, and a build promises a bound
on it. A file that changes between two reads is an error, not a plan made of two checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .spec import CheckpointError

CHUNK_BYTES = 4 << 20  # of stored data in flight while a range is widened


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of fixed content: its size and modification time are those it had when it was opened first."""

    path: Path
    size: int  # bytes
    modified_ns: int

    @staticmethod
    def open(path: Path) -> StoredFile:
        """Raises CheckpointError when the path is no regular file or cannot be read."""
        try:
            if not path.is_file():
                raise CheckpointError(f"{path.name} is missing or not a regular file")
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        return StoredFile(path, status.st_size, status.st_mtime_ns)

    def read(self, offset: int, count: int) -> NDArray[np.uint8]:
        """`count` bytes from `offset`. Raises CheckpointError when the file is cut, fails or changed."""
        assert 0 <= offset <= self.size, offset
        assert 0 <= count <= self.size - offset, count
        data = np.empty(count, np.uint8)
        view, done = data.data, 0
        try:
            with self.path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (self.size, self.modified_ns):
                    raise CheckpointError(f"{self.path.name} changed while it was read; build again")
                while done < count:
                    got = os.preadv(file.fileno(), [view[done:]], offset + done)
                    if got == 0:
                        raise CheckpointError(f"{self.path.name} ended early at byte {offset + done}")
                    done += got
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror or error}") from error
        return data


def read_rows(
    file: StoredFile,
    name: str,
    offset: int,
    rows: tuple[int, int],
    row: tuple[int, int],
    widen: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Rows [begin, end) of a stored matrix, (end - begin, elements) float32.

    row is (bytes, elements) of one row; widen turns whole rows of bytes (n, bytes) into (n, elements). Raises
    CheckpointError naming the tensor when a weight is NaN or infinite.
    """
    begin, end = rows
    row_bytes, elements = row
    out = np.empty((end - begin, elements), np.float32)
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for first in range(begin, end, step):
        count = min(step, end - first)
        data = file.read(offset + first * row_bytes, count * row_bytes).reshape(count, row_bytes)
        part = out[first - begin : first - begin + count]
        with np.errstate(all="ignore"):  # a hostile scale overflows: the next line says so
            part[...] = widen(data)
        if not np.isfinite(part).all():
            bad = int(np.argmin(np.isfinite(part).all(axis=1)))
            raise CheckpointError(
                f"the tensor {name} has a NaN or an infinity in row {first + bad}; it cannot be compiled"
            )
    return out


def digest_files(files: Iterable[StoredFile]) -> str:
    """Hex sha256 over the contents of the files, in the order given."""
    state = hashlib.sha256()
    for file in files:
        for offset in range(0, file.size, CHUNK_BYTES):
            state.update(file.read(offset, min(CHUNK_BYTES, file.size - offset)).data)
    return state.hexdigest()
