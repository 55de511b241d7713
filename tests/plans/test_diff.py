"""`diff` names what differs between two plans and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ingot.plans import PlanFile, diff, open_plan
from ingot.plans.layout import Dtype, Section
from support.mutate import Parts, assemble, take_apart
from support.tiny_plan import TinySpec, write_tiny_plan

Make = Callable[[Callable[[Parts], None]], PlanFile]


@pytest.fixture
def base(tmp_path: Path) -> PlanFile:
    write_tiny_plan(tmp_path / "base.plan")
    return open_plan(tmp_path / "base.plan")


@pytest.fixture
def edited(tmp_path: Path, base: PlanFile) -> Make:
    """Makes a plan that differs from the base by one edit."""

    def make(edit: Callable[[Parts], None]) -> PlanFile:
        parts = take_apart(base.path.read_bytes())
        edit(parts)
        path = tmp_path / "edited.plan"
        path.write_bytes(assemble(parts))
        return open_plan(path)

    return make


def test_identical(tmp_path: Path, base: PlanFile) -> None:
    """Goal: two builds of the same inputs are identical."""
    write_tiny_plan(tmp_path / "again.plan")
    result = diff(base, open_plan(tmp_path / "again.plan"))
    assert result.identical
    assert result.lines() == ["identical"]


def test_header_and_meta(base: PlanFile, edited: Make) -> None:
    """Goal: a header field and a nested META key are named with both values."""
    one = diff(base, edited(lambda parts: parts.edit_header(default_max_tokens=32)))
    assert one.lines() == ["header default_max_tokens: 64 -> 32"]

    def rename(parts: Parts) -> None:
        meta = json.loads(parts.sections[Section.META])
        meta["numerics"]["kv"] = "u8"
        meta["extra"] = 1
        parts.sections[Section.META] = bytearray(json.dumps(meta).encode())

    lines = diff(base, edited(rename)).lines()
    assert "meta numerics.kv: i8 -> u8" in lines
    assert "meta extra: added (1)" in lines


def test_weight_bytes_are_counted(base: PlanFile, edited: Make) -> None:
    """Goal: how many bytes of which tensor differ."""
    tensor = base.tensor("layer.0.o.weight")

    def damage(parts: Parts) -> None:
        for at in (0, 5, 700):
            parts.sections[Section.WEIGHTS][tensor.offset + at] ^= 1

    lines = diff(base, edited(damage)).lines()
    assert lines == [
        "bytes section WEIGHTS: 3 of 18496 bytes differ",
        f"bytes layer.0.o.weight: 3 of {tensor.bytes} bytes differ",
    ]


def test_command_parameter(base: PlanFile, edited: Make) -> None:
    """Goal: a changed parameter shows the command on both sides."""
    at = next(c for c, command in enumerate(base.tables.commands) if command.kernel.name == "ATTENTION_I8")
    lines = diff(base, edited(lambda parts: parts.edit(Section.COMMANDS, at, u=(77,)))).lines()
    assert any(line.startswith(f"command body[1].{at}: ") and "window=77" in line for line in lines)


def test_other_buckets_and_formats(tmp_path: Path, base: PlanFile) -> None:
    """Goal: added and removed programs, tensors and sections; both directions mirror each other."""
    path = tmp_path / "other.plan"
    write_tiny_plan(path, TinySpec(weights=Dtype.E4M3, rows=(1, 4), head_rows=(1, 2)))
    other = open_plan(path)
    there, back = diff(base, other), diff(other, base)
    assert any(line.startswith("program body[2]: removed (7 commands)") for line in there.lines())
    assert any(line.startswith("program body[2]: added (7 commands)") for line in back.lines())
    assert any(line.startswith("tensor embed.weight_scale: added") for line in there.lines())
    mirrored = [(c.where, c.what) for c in back.changes]
    assert sorted(mirrored) == sorted((c.where, c.what) for c in there.changes)
    json.dumps(there.as_dict())


def test_difference_without_a_visible_change_is_still_named(base: PlanFile, edited: Make) -> None:
    """Goal: costs, which no other part compares, still make the section differ: never `identical`, never
    empty.
    """
    result = diff(base, edited(lambda parts: parts.edit(Section.COMMANDS, 0, cost_flops=12345)))
    assert not result.identical
    assert [line.split(":")[0] for line in result.lines()] == ["bytes section COMMANDS"]
