"""Both verifiers side by side: the Python one, and the C++ one of `libplan_test.so` through ctypes.

`Native` also reaches the C++ SHA-256 and the walk that the fuzzer runs over accepted plans. `base_plans` are
the small sound plans, one or more for each kernel, that tests and fuzzers damage.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from ingot.plans.layout import Dtype, Reason, Section
from ingot.plans.verify import verify

from .native import native
from .tiny_plan import TinySpec, write_tiny_plan

Answer = tuple[Reason, int]
_ALIGNMENT = 8  # of plan bytes in memory, as runtime/core/plan.h asks

SPECS = {
    "i8_i8": TinySpec(rows=(1, 2), head_rows=(1,), hidden=24, ffn=24, vocabulary=16),
    "i8_bf16": TinySpec(kv=Dtype.BF16, rows=(1, 3), head_rows=(1, 2), layers=2, bias=True, qk_norm=True),
    "e4m3_e5m2": TinySpec(weights=Dtype.E4M3, kv=Dtype.E5M2, rows=(2,), head_rows=(1, 2), bias=True),
    "bf16_e4m3": TinySpec(weights=Dtype.BF16, kv=Dtype.E4M3, rows=(1,), head_rows=(1,), qk_norm=True),
}


@cache
def base_plans() -> dict[str, bytes]:
    """Small sound plans by name; together they use every kernel and every optional section."""
    plans = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in SPECS.items():
            path = Path(folder) / "base.plan"
            write_tiny_plan(path, spec)
            plans[name] = path.read_bytes()
    return plans


class Native:
    """The C++ functions of `libplan_test.so`."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(native("libplan_test.so")))
        pointer, u64, u32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
        self._verify = library.plan_test_verify
        self._verify.argtypes = [pointer, u64, ctypes.POINTER(u64)]
        self._verify.restype = u32
        self._walk = library.plan_test_walk
        self._walk.argtypes = [pointer, pointer, u64]
        self._walk.restype = ctypes.c_char_p
        self._find = library.plan_test_find
        self._find.argtypes = [pointer, u64, ctypes.c_char_p]
        self._find.restype = u32
        self._bytes = library.plan_test_bytes
        self._bytes.argtypes = [pointer, u64, u32, u32, u64, u64]
        self._bytes.restype = u64
        self._text = library.plan_test_reason_text
        self._text.argtypes = [u32]
        self._text.restype = ctypes.c_char_p
        self._sha256 = library.plan_test_sha256
        self._sha256.argtypes = [pointer, u64, u32, pointer]
        self._sha256.restype = None
        self.has_sha_ni = bool(library.plan_test_has_sha_ni())

    def verify(self, data: bytes | bytearray) -> Answer:
        raw = bytes(data)
        assert (ctypes.cast(raw, ctypes.c_void_p).value or 0) % _ALIGNMENT == 0
        index = ctypes.c_uint64(1 << 63)
        reason = self._verify(raw, len(raw), ctypes.byref(index))
        return Reason(reason), index.value

    def walk(self, sound: bytes, edited: bytes) -> str | None:
        """What the fuzzer's walk says about the tables of `edited`, laid out as the sound plan is."""
        assert len(sound) == len(edited)
        said = self._walk(sound, edited, len(sound))
        return None if said is None else str(said.decode())

    def find(self, plan: bytes, name: str) -> int:
        return int(self._find(plan, len(plan), name.encode()))

    def section_bytes(self, plan: bytes, kind: Section) -> int:
        return int(self._bytes(plan, len(plan), kind, 0, 0, 0))

    def region_bytes(self, plan: bytes, region: int, granules: int, requests: int) -> int:
        """Bytes of the region of this position (0: WEIGHTS) when opened with these counts."""
        return int(self._bytes(plan, len(plan), 0, region, granules, requests))

    def reason_text(self, reason: int) -> str:
        return str(self._text(reason).decode())

    def sha256(self, data: bytes, path: int = 0) -> bytes:
        """The digest; path 0: as the runtime chooses, 1: scalar, 2: the SHA extensions."""
        return self.sha256_at(ctypes.cast(data, ctypes.c_void_p).value or 0, len(data), path)

    def sha256_at(self, address: int, size: int, path: int) -> bytes:
        """The digest of `size` bytes at an address."""
        digest = ctypes.create_string_buffer(32)
        self._sha256(address, size, path, digest)
        return digest.raw


class DisagreementError(AssertionError):
    """The two verifiers gave different answers; `plan` is what they were given."""

    def __init__(self, plan: bytes, python: Answer, cpp: Answer) -> None:
        super().__init__(
            f"Python says {python[0].name.lower()} at {python[1]}, C++ {cpp[0].name.lower()} at {cpp[1]}"
        )
        self.plan = plan


def agreed(native_verifier: Native, data: bytes | bytearray | memoryview) -> Answer:
    """The answer of both verifiers. Raises DisagreementError when they differ."""
    raw = bytes(data)
    python, cpp = verify(raw), native_verifier.verify(raw)
    if python != cpp:
        raise DisagreementError(raw, python, cpp)
    return python


def script(path: Path) -> ModuleType:
    """A test module or script of the repository, loaded by its file."""
    name = f"{path.stem}_loaded"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def round_robin(streams: list[Iterator[bytes]], count: int) -> Iterator[bytes]:
    """`count` items, one of each stream in turn."""
    for i in range(count):
        yield next(streams[i % len(streams)])
