"""The writer's promise: at every moment the output path holds the old file, nothing, or the whole new one."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ingot.plans import PlanWriteError, PlanWriter, Selftest, open_plan, writer
from support.tiny_plan import TinyPlan, tiny_plan, write_tiny_plan


@pytest.fixture
def plan() -> TinyPlan:
    return tiny_plan()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """An output path; nothing but it may be left in its directory."""
    yield tmp_path / "m.plan"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"m.plan"}


def fill(output: PlanWriter, plan: TinyPlan) -> None:
    for name, raw in plan.weights.items():
        output.write(name, 0, raw)
    output.selftest(plan.selftest)


def test_exception_leaves_nothing(path: Path, plan: TinyPlan) -> None:
    """Goal: an error while building leaves no file of any name."""

    def build() -> None:
        with PlanWriter(path, plan.tables) as output:
            output.write("embed.weight", 0, plan.weights["embed.weight"])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        build()
    assert not path.exists()


def test_old_file_stays_until_the_rename(path: Path, plan: TinyPlan) -> None:
    """Goal: an unfinished build does not touch the file that is there."""
    path.write_bytes(b"old")
    with PlanWriter(path, plan.tables) as output:
        fill(output, plan)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"old"
    write_tiny_plan(path)
    open_plan(path).close()


@pytest.mark.parametrize(
    ("name", "offset", "size", "text"),
    [
        ("nothing", 0, 1, "no weight called nothing"),
        ("logits", 0, 1, "no weight called logits"),
        ("embed.weight", -1, 1, "outside its"),
        ("embed.weight", 0, 1 << 20, "outside its"),
        ("embed.weight", 3264, 1, "outside its"),
        ("embed.weight", 1 << 70, 1, "outside its"),
    ],
)
def test_writes_are_bounds_checked(
    path: Path, plan: TinyPlan, name: str, offset: int, size: int, text: str
) -> None:
    """Goal: a write that does not lie inside its tensor is refused."""
    assert len(plan.weights["embed.weight"]) == 3264
    with PlanWriter(path, plan.tables) as output, pytest.raises(PlanWriteError, match=text):
        output.write(name, offset, bytes(size))


def test_every_byte_is_written_exactly_once(path: Path, plan: TinyPlan) -> None:
    """Goal: a hole and a second write are both refused."""
    raw = plan.weights["embed.weight"]
    with PlanWriter(path, plan.tables) as output:
        output.write("embed.weight", 100, raw[100:200])
        with pytest.raises(PlanWriteError, match="written before"):
            output.write("embed.weight", 199, raw[199:300])
        with pytest.raises(PlanWriteError, match=r"embed.weight: 100 of its 3264 bytes"):
            output.finish()


def test_missing_selftest_is_refused(path: Path, plan: TinyPlan) -> None:
    """Goal: a reserved self-test must be written, with the size that was reserved."""
    with PlanWriter(path, plan.tables) as output:
        for name, raw in plan.weights.items():
            output.write(name, 0, raw)
        with pytest.raises(PlanWriteError, match="none was written"):
            output.finish()
        with pytest.raises(PlanWriteError, match="the tables reserve"):
            output.selftest(Selftest((1,), (1,), (0.0,), 0, 0.0, 0.0))


def test_arrays_are_written_as_their_bytes(path: Path, plan: TinyPlan) -> None:
    """Goal: numpy arrays are taken without a copy; a strided one is refused, not flattened."""
    raw = plan.weights["embed.weight"]
    with PlanWriter(path, plan.tables) as output:
        output.write("embed.weight", 0, np.frombuffer(raw, np.uint16).reshape(2, -1))
        for name, other in plan.weights.items():
            if name != "embed.weight":
                output.write(name, 0, bytearray(other))
        output.write("embed.weight", len(raw), b"")
        with pytest.raises(PlanWriteError, match="not contiguous"):
            output.write("embed.weight", 0, np.zeros((4, 4), np.uint8)[:, ::2])
        output.selftest(plan.selftest)
        output.finish()
    with open_plan(path) as file:
        assert file.data("embed.weight") == raw


def test_unsound_tables_are_not_renamed(path: Path, plan: TinyPlan) -> None:
    """Goal: a plan that verify refuses never reaches the output path."""
    tables = replace(plan.tables, header={**plan.tables.header, "kv_heads": 3})
    with PlanWriter(path, tables) as output:
        fill(output, plan)
        with pytest.raises(PlanWriteError, match="bad_header_field"):
            output.finish()
    assert not path.exists()


def test_bad_meta_is_refused(path: Path, plan: TinyPlan) -> None:
    """Goal: NaN in META is an error before a file is made."""
    with pytest.raises(PlanWriteError, match="cannot be written"):
        PlanWriter(path, replace(plan.tables, meta={"x": float("nan")}))


def test_odd_output_paths(tmp_path: Path, plan: TinyPlan) -> None:
    """Goal: a directory, a device and a missing directory are refused by name; a device is not replaced."""
    with pytest.raises(PlanWriteError, match="not a regular file"):
        PlanWriter(tmp_path, plan.tables)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(PlanWriteError, match="not a regular file"):
        PlanWriter(fifo, plan.tables)
    with pytest.raises(PlanWriteError, match="there is no directory"):
        PlanWriter(tmp_path / "no" / "m.plan", plan.tables)


def test_symbolic_link_keeps_pointing(tmp_path: Path) -> None:
    """Goal: writing through a link replaces the file it names."""
    target, link = tmp_path / "real.plan", tmp_path / "link.plan"
    link.symlink_to(target)
    write_tiny_plan(link)
    assert link.is_symlink()
    open_plan(target).close()


def test_two_writers_in_one_process(path: Path, plan: TinyPlan) -> None:
    """Goal: the second build to the same path is refused, and the first goes on."""
    with PlanWriter(path, plan.tables) as first:
        with pytest.raises(PlanWriteError, match="already writing"):
            PlanWriter(path, plan.tables)
        fill(first, plan)
        first.finish()
    open_plan(path).close()


def test_stale_temporary_files_are_removed(path: Path) -> None:
    """Goal: what killed builds left goes at the next build; a living build's file and other names stay."""
    stale = path.parent / f".{path.name}.1.tmp"
    living = path.parent / f".{path.name}.2.tmp"
    other = path.parent / f".other{path.name}.1.tmp"
    for leftover in (stale, living, other):
        leftover.write_bytes(b"x")
    with living.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_tiny_plan(path)
        assert not stale.exists()
        assert living.exists()
    write_tiny_plan(path)
    assert not living.exists()
    assert other.exists()
    other.unlink()


def failure(build: Callable[[], object]) -> PlanWriteError | None:
    """The error of a build, None when it finished."""
    try:
        build()
    except PlanWriteError as error:
        return error
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_every_failing_call_is_one_clean_error(
    path: Path, plan: TinyPlan, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Goal: whichever call of the file system fails, one PlanWriteError comes and nothing is left. Method:
    fail call N.
    """
    names = ("open", "pwrite", "posix_fallocate", "fsync", "replace", "pread")
    real = {name: getattr(os, name) for name in names}
    calls, fail_at = 0, 1

    def failing(name: str) -> object:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(code, "injected")
            return real[name](*arguments, **options)

        return call

    for name in names:
        monkeypatch.setattr(writer.os, name, failing(name))
    finished = False
    while not finished:
        calls = 0
        error = failure(lambda: write_tiny_plan(path))
        finished = error is None
        assert finished == (calls < fail_at), "a failed call was ignored"
        assert "injected" not in str(error)
        assert [entry for entry in path.parent.iterdir() if entry != path] == []
        fail_at += 1
    assert calls > 20, "the sweep did not reach the end of a build"


def test_file_size_limit_is_one_clean_error(path: Path) -> None:
    """Goal: a real refusal of the system (RLIMIT_FSIZE) before anything is computed."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, old[1]))
    try:
        with pytest.raises(PlanWriteError, match="more than a file may have"):
            write_tiny_plan(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not path.exists()


def test_kill_never_leaves_a_partial_plan(tmp_path: Path, plan: TinyPlan) -> None:
    """Goal: kill -9 at 20 random moments: at the output path is nothing or a whole plan. Method: fork, build
    in a loop.
    """
    dice = random.Random(7)
    path = tmp_path / "m.plan"
    complete = 0
    for _ in range(20):
        path.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            try:
                while True:
                    with PlanWriter(path, plan.tables) as output:
                        fill(output, plan)
                        output.finish()
            finally:
                os._exit(1)
        time.sleep(dice.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if path.exists():
            open_plan(path).close()
            complete += 1
    assert complete > 0, "no build finished before it was killed: the test shows nothing"
    write_tiny_plan(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"m.plan"}
