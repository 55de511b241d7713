"""Writes a plan file: tables first, weights in any order, hashes and header last, then one rename.

The file grows under a temporary name (`.NAME.PID.tmp`, locked while its writer lives) in the output's
directory and takes the output's name only when it is complete, synced and verified. So the output path holds
the old file or the whole new one at every moment, whatever kills the build. RAM use is one chunk. The bytes
depend on the inputs alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from numpy.typing import NDArray

from . import layout
from .codec import SectionEntry, encode, encode_selftest, file_layout
from .layout import CHUNK_BYTES, PAGE_BYTES, Reason, Region, Section
from .records import PlanTables, Selftest, TensorEntry
from .verify import verify

Data = bytes | bytearray | memoryview | NDArray[Any]
SECTION_OF = {Region.WEIGHTS: Section.WEIGHTS, Region.SCALES: Section.SCALES}


class PlanWriteError(Exception):
    """A plan that cannot be written. The text says what was found, what is allowed, what to do."""


class _Coverage:
    """Which byte ranges of one tensor were written: sorted, disjoint, merged."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> bool:
        """Adds [begin, end); False when part of it was there before."""
        if any(begin < other_end and other_begin < end for other_begin, other_end in self.ranges):
            return False
        merged: list[tuple[int, int]] = []
        for piece in sorted([*self.ranges, (begin, end)]):
            if merged and merged[-1][1] == piece[0]:
                merged[-1] = (merged[-1][0], piece[1])
            else:
                merged.append(piece)
        self.ranges = merged
        return True


def remove_stale(path: Path) -> list[Path]:
    """Removes temporary files of `path` that no living writer holds; returns them."""
    removed = []
    for candidate in sorted(path.parent.glob(f".{_glob_literal(path.name)}.*.tmp")):
        try:
            fd = os.open(candidate, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # gone, or not ours to open
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            candidate.unlink(missing_ok=True)
            removed.append(candidate)
        except BlockingIOError:
            pass  # its writer lives
        finally:
            os.close(fd)
    return removed


def _glob_literal(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


class PlanWriter:
    """Writes one plan. A context manager: leaving it without `finish` removes the temporary file.

    Raises PlanWriteError for everything that the file system or the caller's bytes do wrong.
    """

    def __init__(self, path: str | os.PathLike[str], tables: PlanTables) -> None:
        self._path = Path(os.path.realpath(path))
        self._selftest_bytes = tables.selftest_bytes
        self._selftest_done = tables.selftest_bytes == 0
        try:
            encoded = encode(tables)
        except (ValueError, TypeError) as error:
            raise PlanWriteError(f"the plan's tables cannot be written: {error}") from error
        self._sections = file_layout(tables, encoded)
        self._section = {entry.kind: entry for entry in self._sections}
        self.file_bytes = self._sections[-1].offset + self._sections[-1].bytes
        self._header = dict(tables.header)
        self._tensors: dict[str, TensorEntry] = {}
        for tensor in tables.tensors:
            if tensor.region not in SECTION_OF:
                continue
            if tensor.name in self._tensors:
                raise PlanWriteError(f"two weights are called {tensor.name}; names must differ")
            self._tensors[tensor.name] = tensor
        self._coverage = {name: _Coverage() for name in self._tensors}
        self._temporary, self._fd = self._create()
        try:
            self._preallocate()
            for kind, raw in encoded.items():
                self._put(self._section[kind].offset, raw)
        except BaseException:
            self._abandon()
            raise

    def __enter__(self) -> PlanWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    def write(self, tensor_name: str, offset: int, data: Data) -> None:
        """Puts `data` (C-contiguous) at byte `offset` of a tensor in WEIGHTS or SCALES; every byte exactly
        once.
        """
        tensor = self._tensors.get(tensor_name)
        if tensor is None:
            raise PlanWriteError(f"the plan has no weight called {tensor_name}")
        try:
            raw = memoryview(cast(bytes, data))  # ndarray is a buffer; its stubs do not say so
            raw = raw.cast("B") if raw.nbytes else memoryview(b"")
        except TypeError as error:
            raise PlanWriteError(f"{tensor_name}: the data is not contiguous") from error
        if offset < 0 or len(raw) > tensor.bytes or offset > tensor.bytes - len(raw):
            raise PlanWriteError(
                f"{tensor_name}: bytes {offset} to {offset + len(raw)} are outside its {tensor.bytes} bytes"
            )
        if len(raw) == 0:
            return
        if not self._coverage[tensor_name].add(offset, offset + len(raw)):
            raise PlanWriteError(f"{tensor_name}: bytes {offset} to {offset + len(raw)} were written before")
        self._put(self._section[SECTION_OF[tensor.region]].offset + tensor.offset + offset, raw)

    def read(self, tensor_name: str) -> memoryview:
        """The bytes of a tensor that was written, for whoever checks them before `finish`."""
        tensor = self._tensors[tensor_name]
        return memoryview(
            self._get(self._section[SECTION_OF[tensor.region]].offset + tensor.offset, tensor.bytes)
        )

    def selftest(self, selftest: Selftest) -> None:
        """Writes the SELFTEST section; its size must be the tables' selftest_bytes."""
        raw = encode_selftest(selftest)
        if len(raw) != self._selftest_bytes:
            raise PlanWriteError(
                f"the self-test takes {len(raw)} bytes, the tables reserve {self._selftest_bytes}"
            )
        self._put(self._section[Section.SELFTEST].offset, raw)
        self._selftest_done = True

    def finish(self) -> bytes:
        """Hashes, verifies, syncs and renames. Returns the plan's identity (header_hash, 32 bytes)."""
        for name, coverage in self._coverage.items():
            written = sum(end - begin for begin, end in coverage.ranges)
            if written != self._tensors[name].bytes:
                raise PlanWriteError(
                    f"{name}: {written} of its {self._tensors[name].bytes} bytes were written"
                )
        if not self._selftest_done:
            raise PlanWriteError("the tables reserve a self-test, but none was written")
        try:
            identity = self._seal()
            with mmap.mmap(self._fd, self.file_bytes, prot=mmap.PROT_READ) as view:
                reason, index = verify(view, partial(view.madvise, mmap.MADV_DONTNEED))
            if reason != Reason.OK:
                raise PlanWriteError(
                    f"the built plan is not sound: {layout.REASON_TEXT[reason]} "
                    f"({reason.name.lower()}, index {index}); "
                    "this is a bug in the compiler: please report it"
                )
            os.fsync(self._fd)
            self._temporary.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._failure(error) from error
        os.close(self._fd)
        self._fd = -1
        return identity

    def _seal(self) -> bytes:
        """Writes HASHES and the header page; returns the header's hash."""
        hashes = self._section[Section.HASHES]
        digests = []
        for begin in range(PAGE_BYTES, hashes.offset, CHUNK_BYTES):
            size = min(CHUNK_BYTES, hashes.offset - begin)
            digests.append(hashlib.sha256(self._get(begin, size)).digest())
        table = b"".join(digests)
        self._put(hashes.offset, table)
        self._header |= {
            "magic": layout.MAGIC, "format_version": layout.FORMAT_VERSION, "header_bytes": PAGE_BYTES,
            "file_bytes": self.file_bytes, "section_count": len(self._sections),
            "root_hash": hashlib.sha256(table).digest(),
        }  # fmt: skip
        page = header_page(self._header, self._sections)
        self._put(0, page)
        return page[32:64]

    def _create(self) -> tuple[Path, int]:
        """A locked, new temporary file beside the output."""
        if self._path.exists() and not self._path.is_file():
            raise PlanWriteError(f"{self._path} is not a regular file; choose another output path")
        if not self._path.parent.is_dir():
            raise PlanWriteError(f"there is no directory {self._path.parent}; create it first")
        temporary = self._path.parent / f".{self._path.name}.{os.getpid()}.tmp"
        try:
            remove_stale(self._path)
            while True:
                fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:
                    return temporary, fd
                os.close(fd)  # another build took it for a stale one before it was locked
        except FileExistsError:
            raise PlanWriteError(f"this process is already writing a plan to {self._path}") from None
        except OSError as error:
            raise self._failure(error) from error

    def _preallocate(self) -> None:
        """Reserves the file's blocks, so that a full disk is found now; the bytes read as zero."""
        try:
            os.posix_fallocate(self._fd, 0, self.file_bytes)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise self._failure(error) from error
            os.ftruncate(self._fd, self.file_bytes)

    def _put(self, offset: int, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._fd, rest, offset)
                offset += written
                rest = rest[written:]
        except OSError as error:
            raise self._failure(error) from error

    def _get(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                raise PlanWriteError(f"the temporary file {self._temporary} was truncated by someone else")
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _failure(self, error: OSError) -> PlanWriteError:
        """Our sentence for what the file system refused."""
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            free = shutil.disk_usage(self._path.parent).free
            return PlanWriteError(
                f"no space for the plan: it takes {self.file_bytes} bytes, {free} are free "
                f"in {self._path.parent}; "
                "free some space or choose another output path"
            )
        if error.errno == errno.EFBIG:
            return PlanWriteError(
                f"the plan takes {self.file_bytes} bytes, more than a file may have in {self._path.parent}; "
                "raise the file size limit or choose another output path"
            )
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return PlanWriteError(f"{self._path.parent} is not writable; choose another output path")
        name = errno.errorcode.get(error.errno or 0, "unknown")
        return PlanWriteError(f"writing to {self._path.parent} failed ({name}); choose another output path")

    def _abandon(self) -> None:
        if self._fd >= 0:
            self._temporary.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def header_page(fields: dict[str, object], sections: tuple[SectionEntry, ...]) -> bytes:
    """The header page with its hash filled in; `fields` lacks only header_hash."""
    page = bytearray(PAGE_BYTES)
    page[: layout.HEADER.bytes] = layout.HEADER.pack(**fields)
    table = b"".join(
        layout.SECTION.pack(
            kind=entry.kind,
            record_bytes=entry.record_bytes,
            offset=entry.offset,
            bytes=entry.bytes,
            count=entry.count,
        )
        for entry in sections
    )
    page[layout.SECTION_TABLE_OFFSET : layout.SECTION_TABLE_OFFSET + len(table)] = table
    at = layout.HEADER.offsets()["header_hash"]
    page[at : at + layout.HASH_BYTES] = hashlib.sha256(page).digest()
    return bytes(page)
