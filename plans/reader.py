"""Opens a plan file: maps it, verifies it, and gives its tables, texts and tensor bytes.

Nothing is read before `verify` accepted the file, unless the caller says `check=False` for a file that it
verified itself. Tensor bytes are views of the map: no copy. A plan file is never modified while it is open
(it is replaced by rename).
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from . import codec, layout
from .codec import SectionEntry
from .layout import Reason, Region, Section, Unit
from .records import PlanTables, Selftest, TensorEntry
from .verify import section_table, verify

_SECTION_OF = {Region.WEIGHTS: Section.WEIGHTS, Region.SCALES: Section.SCALES}
_REBUILD = frozenset({Reason.BAD_VERSION})
_NOT_A_PLAN = frozenset({Reason.TOO_SHORT, Reason.BAD_MAGIC})
_DAMAGED = frozenset(
    {Reason.BAD_HEADER_HASH, Reason.BAD_FILE_SIZE, Reason.BAD_ROOT_HASH, Reason.BAD_CHUNK_HASH}
)


class PlanError(Exception):
    """A plan that cannot be opened: what was found, and what to do. `reason` and `index` are verify's, OK for
    a bad path.
    """

    def __init__(self, text: str, reason: Reason = Reason.OK, index: int = 0) -> None:
        super().__init__(text)
        self.reason = reason
        self.index = index


def refusal(path: Path, reason: Reason, index: int) -> PlanError:
    """The error for a file that `verify` refused."""
    if reason in _REBUILD:
        advice = f"this release reads version {layout.FORMAT_VERSION}, the file has {index}"
    elif reason in _NOT_A_PLAN:
        advice = "give a file that build-engine wrote"
    elif reason in _DAMAGED:
        advice = "copy it again from where it was built, or rebuild it"
    else:
        advice = "rebuild it with build-engine; if that does not help, report it"
    text = f"{path}: {layout.REASON_TEXT[reason]} ({reason.name.lower()}, index {index}); {advice}"
    return PlanError(text, reason, index)


class PlanFile:
    """An open plan. A context manager; views from `data` keep the map alive until they are dropped."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self._view = view
        self.sections: tuple[SectionEntry, ...] = section_table(view)
        self._by_kind = {
            entry.kind: view[entry.offset : entry.offset + entry.bytes] for entry in self.sections
        }
        fields = layout.HEADER.unpack(view)
        self.header: Mapping[str, Any] = MappingProxyType(fields)
        self.tables: PlanTables = codec.decode(self._by_kind, fields)
        self._tensors: dict[str, TensorEntry] = {}
        for tensor in self.tables.tensors:
            self._tensors.setdefault(tensor.name, tensor)

    def __enter__(self) -> PlanFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drops the map; the tables stay usable. Views that the caller still holds stay valid."""
        self._by_kind = {}
        self._view = memoryview(b"")

    @property
    def hash(self) -> str:
        """The plan's identity: hex sha256 of its header page."""
        return bytes(self.header["header_hash"]).hex()

    @property
    def file_bytes(self) -> int:
        return int(self.header["file_bytes"])

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.tables.meta

    @property
    def drift(self) -> Mapping[str, Any] | None:
        return self.tables.drift

    @property
    def tokenizer(self) -> bytes | None:
        """tokenizer.json, or None for a plan of token ids only."""
        return self.tables.tokenizer

    @property
    def template(self) -> str | None:
        """The chat template (jinja)."""
        return None if self.tables.template is None else self.tables.template.decode()

    def section(self, kind: Section) -> memoryview:
        """A section's bytes; empty when the plan has none of that kind."""
        return self._by_kind.get(kind, memoryview(b""))

    def selftest(self) -> Selftest | None:
        raw = self._by_kind.get(Section.SELFTEST)
        return None if raw is None else codec.decode_selftest(raw)

    def tensor(self, name: str) -> TensorEntry:
        """The first tensor of that name. Raises KeyError when there is none."""
        if name not in self._tensors:
            raise KeyError(f"the plan has no tensor called {name}")
        return self._tensors[name]

    def data(self, name: str) -> memoryview:
        """Bytes of a tensor of WEIGHTS or SCALES. Raises KeyError for a name that has none in the file."""
        tensor = self.tensor(name)
        if tensor.region not in _SECTION_OF or tensor.unit != Unit.FIXED:
            raise KeyError(
                f"{name} is in region {tensor.region.name}: only WEIGHTS and SCALES have bytes in the file"
            )
        whole = self.section(_SECTION_OF[tensor.region])
        return whole[tensor.offset : tensor.offset + tensor.bytes]


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """A read-only map of a file. Raises PlanError for what is missing, not a file, empty or unreadable."""
    path = Path(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise PlanError(f"{path}: no such file; build a plan with build-engine first") from None
    except PermissionError:
        raise PlanError(f"{path}: not readable by this user") from None
    except OSError as error:
        raise PlanError(f"{path}: cannot be opened (errno {error.errno})") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PlanError(f"{path}: not a regular file; give the path of a plan")
        if os.fstat(fd).st_size == 0:
            raise PlanError(
                f"{path}: the file is empty; give a file that build-engine wrote", Reason.TOO_SHORT
            )
        try:
            return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        except OSError as error:
            raise PlanError(f"{path}: cannot be mapped into memory (errno {error.errno})") from None
    finally:
        os.close(fd)


def open_plan(path: str | os.PathLike[str], check: bool = True) -> PlanFile:
    """Opens a plan. Raises PlanError with verify's reason and index when it is not sound.

    `check=False` skips verify: only for a file that this process verified already and nobody could have
    changed since.
    """
    view = map_file(path)
    if check:
        reason, index = verify(view)
        if reason != Reason.OK:
            raise refusal(Path(path), reason, index)
    try:
        plan = PlanFile(Path(path), view)
        objects = isinstance(plan.meta, dict) and isinstance(plan.drift, dict | None)
    except (ValueError, RecursionError):  # JSONDecodeError, or a number of too many digits
        objects = False
    if not objects:
        text = "its META or DRIFT section is not a JSON object; rebuild it with build-engine"
        raise PlanError(f"{path}: {text}", Reason.BAD_TEXT, int(Section.META))
    return plan
