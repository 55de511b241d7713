"""The layout's generated files are fresh and complete, and its records are what `struct` makes of them."""

from __future__ import annotations

import struct

import pytest
from ingot.plans import generate, layout
from ingot.plans.codec import struct_format


def test_generated_files_are_fresh() -> None:
    """Goal: nobody edits a generated file, or the layout without regenerating."""
    assert generate.HEADER_PATH.read_text() == generate.header_text(), "run `python -m ingot.plans.generate`"
    assert generate.FORMAT_PATH.read_text() == generate.format_text(), "run `python -m ingot.plans.generate`"


def test_format_names_every_record_field_and_reason() -> None:
    """Goal: FORMAT.md is complete."""
    text = generate.FORMAT_PATH.read_text()
    for record in layout.RECORDS:
        assert f"## {record.name} ({record.bytes} bytes)" in text
        for field in record.fields:
            assert f"| {field.name} |" in text
    for reason in layout.Reason:
        assert f"| {reason.value} {reason.name} |" in text
    for kernel in layout.KERNELS:
        assert f"## Kernel {kernel.value}: {kernel.name.lower()} " in text


def test_verify_page_names_every_reason_and_header_field() -> None:
    """Goal: VERIFY.md says what each reason tests and what each header field may be."""
    text = (generate.FORMAT_PATH.parent / "VERIFY.md").read_text()
    for reason in layout.Reason:
        assert reason.name in text
    names = [field.name for field in layout.HEADER.fields]
    for name in names[names.index("target") :]:
        assert name in text


@pytest.mark.parametrize("record", layout.RECORDS, ids=lambda record: record.name)
def test_record_packs_and_unpacks(record: layout.Record) -> None:
    """Goal: pack, unpack, the declared size and `struct_format` agree."""
    raw = bytes(range(1, 65)) * 16
    values = record.unpack(raw[: record.bytes])
    assert record.pack(**values) == raw[: record.bytes]
    assert struct.calcsize(struct_format(record)) == record.bytes
    assert list(record.offsets()) == [field.name for field in record.fields]


def test_record_refuses_unknown_field() -> None:
    """Goal: a misspelt field is an error, not a zero."""
    with pytest.raises(KeyError, match="no field colour"):
        layout.REGION.pack(colour=1)
