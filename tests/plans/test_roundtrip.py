"""What the writer writes, the reader gives back: all formats, many chunks, a large WEIGHTS section, no
optional sections.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ingot.plans import PlanError, PlanWriter, open_plan, verify
from ingot.plans.layout import CHUNK_BYTES, HUGE_PAGE_BYTES, Dtype, Reason, Section
from support.mutate import assemble, take_apart
from support.tiny_plan import TinySpec, tiny_plan, write_tiny_plan

WEIGHTS = (Dtype.I8, Dtype.E4M3, Dtype.BF16)
KV = (Dtype.I8, Dtype.E4M3, Dtype.E5M2, Dtype.BF16)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_format_round_trips(tmp_path: Path, weights: Dtype, kv: Dtype) -> None:
    """Goal: tables, texts, self-test and weight bytes come back equal, for every pair of formats."""
    spec = TinySpec(weights=weights, kv=kv, layers=2, qk_norm=True, bias=True)
    plan, path = tiny_plan(spec), tmp_path / "tiny.plan"
    identity = write_tiny_plan(path, spec)
    with open_plan(path) as file:
        got, want = file.tables, plan.tables
        assert got.header == {**want.header, "eos_tokens": (2, 0, 0, 0, 0, 0, 0, 0)}
        assert got.regions == want.regions
        assert got.tensors == want.tensors
        assert got.programs == want.programs
        assert [replace(c, f=()) for c in got.commands] == [replace(c, f=()) for c in want.commands]
        for a, b in zip(got.commands, want.commands, strict=True):
            assert a.f == pytest.approx(b.f)
        assert (got.meta, got.drift) == (want.meta, want.drift)
        assert (file.tokenizer, got.template) == (want.tokenizer, want.template)
        assert file.selftest() == replace(plan.selftest, tolerance=pytest.approx(plan.selftest.tolerance))
        assert file.hash == identity.hex()
        assert file.file_bytes == path.stat().st_size
        for name, raw in plan.weights.items():
            assert file.data(name) == raw


def test_large_plan_has_huge_page_offset_and_many_chunks(tmp_path: Path) -> None:
    """Goal: WEIGHTS of 2 MiB or more begin at a 2 MiB boundary, and chunks beyond the first are hashed and
    checked.
    """
    spec = TinySpec(weights=Dtype.BF16, vocabulary=5000, hidden=512, rows=(1,), head_rows=(1,))
    path = tmp_path / "large.plan"
    write_tiny_plan(path, spec)
    with open_plan(path) as file:
        section = {entry.kind: entry for entry in file.sections}
        assert section[Section.WEIGHTS].offset % HUGE_PAGE_BYTES == 0
        assert section[Section.HASHES].bytes > 32
        assert file.data("embed.weight") == tiny_plan(spec).weights["embed.weight"]
    raw = bytearray(path.read_bytes())
    raw[4096 + CHUNK_BYTES + 5] ^= 1
    assert verify(raw) == (Reason.BAD_CHUNK_HASH, 1)
    assert assemble(take_apart(path.read_bytes())) == path.read_bytes()


def test_plan_without_optional_sections(tmp_path: Path) -> None:
    """Goal: every optional section can be absent, and the reader says None."""
    plan, path = tiny_plan(), tmp_path / "bare.plan"
    tables = replace(plan.tables, drift=None, tokenizer=None, template=None, selftest_bytes=0)
    with PlanWriter(path, tables) as writer:
        for name, raw in plan.weights.items():
            writer.write(name, 0, raw)
        writer.finish()
    with open_plan(path) as file:
        assert (file.drift, file.tokenizer, file.template, file.selftest()) == (None, None, None, None)
        assert file.tables == replace(tables, header=file.tables.header, commands=file.tables.commands)


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    """Goal: P7. Two directories, pieces written in another order and size: the same file."""
    plan = tiny_plan()
    paths = [tmp_path / "a" / "one.plan", tmp_path / "b" / "other.plan"]
    for path in paths:
        path.parent.mkdir()
    write_tiny_plan(paths[0])
    with PlanWriter(paths[1], plan.tables) as writer:
        writer.selftest(plan.selftest)
        for name, raw in reversed(plan.weights.items()):
            for begin in range((len(raw) - 1) // 100 * 100, -1, -100):
                writer.write(name, begin, raw[begin : begin + 100])
        writer.finish()
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_views_outlive_the_plan(tmp_path: Path) -> None:
    """Goal: bytes that a caller still holds stay valid after close."""
    path = tmp_path / "tiny.plan"
    write_tiny_plan(path)
    with open_plan(path) as file:
        view = file.data("embed.weight")
    assert view == tiny_plan().weights["embed.weight"]


def test_unknown_names_are_errors(tmp_path: Path) -> None:
    """Goal: no empty bytes for a tensor that is not in the file."""
    path = tmp_path / "tiny.plan"
    write_tiny_plan(path)
    with open_plan(path) as file:
        with pytest.raises(KeyError, match="no tensor called nothing"):
            file.tensor("nothing")
        with pytest.raises(KeyError, match="region IO"):
            file.data("logits")


def test_bad_paths_are_one_clear_error(tmp_path: Path) -> None:
    """Goal: a missing file, a directory, an empty file, a short file and another file each say what to do."""
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"hello")
    (tmp_path / "other").write_bytes(b"x" * 5000)
    for name, text in (
        ("missing", "no such file; build"), (".", "not a regular file"), ("empty", "is empty"), ("short",
            "shorter"),
        ("other", "not a plan"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=text):
            open_plan(tmp_path / name)


def test_refusal_carries_reason_index_and_advice(tmp_path: Path) -> None:
    """Goal: the error of a damaged file names the reason, its index and advice, and has them as fields."""
    path = tmp_path / "tiny.plan"
    write_tiny_plan(path)
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    with pytest.raises(PlanError, match=r"bad_\w+, index 0\); copy it again") as caught:
        open_plan(path)
    assert (caught.value.reason, caught.value.index) == verify(bytes(raw))


@pytest.mark.parametrize("meta", [b"{", b"[1]", b"9" * 5000, b"[" * 100_000])
def test_meta_that_is_no_object_is_refused(tmp_path: Path, meta: bytes) -> None:
    """Goal: META that verify cannot judge (valid text, no JSON object) is a PlanError, not a crash."""
    path = tmp_path / "tiny.plan"
    write_tiny_plan(path)
    parts = take_apart(path.read_bytes())
    parts.sections[Section.META] = bytearray(meta)
    path.write_bytes(assemble(parts))
    with pytest.raises(PlanError, match="not a JSON object"):
        open_plan(path)
