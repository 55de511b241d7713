"""Small files of a checkpoint: hostile JSON gives one clear error, never a crash, a hang or a wrong value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.compiler.checkpoint.files import (
    boolean,
    integer,
    number,
    parse_json_object,
    read_bytes,
    read_json_object,
    show,
)
from ingot.compiler.checkpoint.spec import CheckpointError


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "must be a JSON object"), (b"3",
        "JSON object"),
        (b'{"a": NaN}', "NaN"), (b'{"a": -Infinity}', "Infinity"), (b'{"a": 1, "a": 2}', "appears twice"),
        (b'{"b": {"a": 1, "a": 2}}', "appears twice"), (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": ' + b"9" * 10000 + b"}", "too many digits"), (b'{"a":' * 100000 + b"1" + b"}" * 100000,
        "nested"),
        (b'{"a":' + b"[" * 100000, "nested"), (b'{"' + b"k" * 50000 + b'": 1, "' + b"k" * 50000 + b'": 1}',
        "twice"),
        (b'{"a": 1} trailing', "not valid JSON"), (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
    ],
)  # fmt: skip
def test_hostile_json(data: bytes, said: str) -> None:
    """Goal: each kind of malformed JSON is named, in one line, with the file's name."""
    with pytest.raises(CheckpointError, match=r"x\.json") as caught:
        parse_json_object(data, "x.json")
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert len(text) < 300


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Goal: any bytes are an object or a CheckpointError."""
    try:
        found = parse_json_object(data, "x.json")
    except CheckpointError:
        return
    assert isinstance(found, dict)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Goal: a file over the limit, a folder, a pipe and a missing file are errors; none is waited for."""
    path = tmp_path / "config.json"
    path.write_bytes(b"{}" + b" " * 100)
    assert read_json_object(path, 102) == {}
    with pytest.raises(CheckpointError, match="more than 101 bytes"):
        read_json_object(path, 101)
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=bad.name):
            read_bytes(bad, 10)


def test_values() -> None:
    """Goal: numbers are what they say: no truth values, text or fractions for counts; whole floats are."""
    assert integer({"n": 4.0}, "n", 0, 5) == 4
    assert integer({"n": None}, "n", 0, 5, 3) == 3
    assert number({"x": 2}, "x", 0.0, 5.0) == 2.0
    assert boolean({"b": None}, "b", True)
    for bad in (True, "4", 4.5, [4], 6, -1, float("nan"), float("inf"), 10**400):
        with pytest.raises(CheckpointError, match="n is"):
            integer({"n": bad}, "n", 0, 5)
    for bad in (True, "4", [4], 6, -1, float("nan"), float("inf"), 10**400):
        with pytest.raises(CheckpointError, match="x is"):
            number({"x": bad}, "x", 0.0, 5.0)
    for bad in (1, "true", []):
        with pytest.raises(CheckpointError, match="b is"):
            boolean({"b": bad}, "b", False)


def test_show_is_short() -> None:
    """Goal: whatever a checkpoint holds, an error prints one short line of it."""
    for value in ("x" * 10**6, {"a": ["y" * 1000]}, 10**1000, "a\nb\r\x1b[0m", None, [1] * 1000):
        shown = show(value)
        assert len(shown) <= 80
        assert shown.isprintable()
