"""Reads a checkpoint's small files: every byte has a limit and every fault is one CheckpointError.

A checkpoint comes from anywhere. Its JSON may be huge, nested without end, full of NaN, or name a key twice;
nothing here recurses on it, and a path inside it is never followed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .spec import CheckpointError

CONFIG_BYTES_MAX = 4 << 20  # config.json, generation_config.json: a few KiB in practice
TOKENIZER_CONFIG_BYTES_MAX = 16 << 20  # a table of added tokens and the chat template
SHOWN_CHARACTERS_MAX = 80


def show(value: object) -> str:
    """A value of a checkpoint as an error may print it: one short line, whatever it is."""
    text = (
        json.dumps(value, default=str) if isinstance(value, str | int | float | bool | None) else repr(value)
    )
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."


def read_bytes(path: Path, limit: int) -> bytes:
    """A regular file's bytes. Raises CheckpointError when it cannot be read or exceeds `limit` bytes."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path.name} is not a regular file; give a checkpoint directory or file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit:
        raise CheckpointError(f"{path.name} has more than {limit} bytes, the most that is read")
    return data


class _JsonFaultError(ValueError):
    """What our own hooks found wrong with JSON; other ValueErrors are the library's."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _JsonFaultError(f"the key {show(key)} appears twice")
        found[key] = value
    return found


def _constant(text: str) -> float:
    raise _JsonFaultError(f"{text} is not a JSON number")


def parse_json_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises CheckpointError for anything else, naming the file and the fault."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name} is not UTF-8 at byte {error.start}; write it as UTF-8 JSON") from error
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested too deeply; a checkpoint's JSON has a few levels") from error
    except json.JSONDecodeError as error:
        reason = f"{error.msg.lower()} at line {error.lineno}"
        raise CheckpointError(f"{name} is not valid JSON: {reason}; fix or download it again") from error
    except ValueError as error:
        reason = str(error) if isinstance(error, _JsonFaultError) else "a number has too many digits"
        raise CheckpointError(f"{name} is not valid JSON: {reason}; fix it") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} holds a {type(found).__name__}; it must be a JSON object")
    return found


def read_json_object(path: Path, limit: int = CONFIG_BYTES_MAX) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes, or CheckpointError."""
    return parse_json_object(read_bytes(path, limit), path.name)


def integer(values: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    """values[key] as a whole number in [low, high]; absent or null is `default`, or an error where that is
    None.
    """
    value = values.get(key)
    if value is None:
        if default is None:
            state = "null" if key in values else "missing"
            raise CheckpointError(f"{key} is {state}; a whole number from {low} to {high} is required")
        value = default
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise CheckpointError(f"{key} is {show(value)}; it must be a whole number from {low} to {high}")
    return value


def number(
    values: Mapping[str, Any], key: str, low: float, high: float, default: float | None = None
) -> float:
    """values[key] as a finite number in [low, high]; absent or null is `default`, or an error where that is
    None.
    """
    value = values.get(key)
    if value is None:
        if default is None:
            state = "null" if key in values else "missing"
            raise CheckpointError(f"{key} is {state}; a number from {low:g} to {high:g} is required")
        value = default
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits or not math.isfinite(value):
        raise CheckpointError(f"{key} is {show(value)}; it must be a number from {low:g} to {high:g}")
    return float(value)


def boolean(values: Mapping[str, Any], key: str, default: bool) -> bool:
    """values[key] as true or false; absent or null is `default`."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{key} is {show(value)}; it must be true or false")
    return value
