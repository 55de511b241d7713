"""Runs plans: `from ingot.runtime import Engine`. Importing this package loads nothing; a name is loaded
when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._ingot import IngotError
    from .engine import Chunk, Completion, Engine, Stream, Usage
    from .sampling import Sampling, SamplingOptions
    from .text import TextError

__all__ = [
    "Chunk",
    "Completion",
    "Engine",
    "IngotError",
    "Sampling",
    "SamplingOptions",
    "Stream",
    "TextError",
    "Usage",
]

_HOMES = {
    "Chunk": "engine",
    "Completion": "engine",
    "Engine": "engine",
    "IngotError": "_ingot",
    "Sampling": "sampling",
    "SamplingOptions": "sampling",
    "Stream": "engine",
    "TextError": "text",
    "Usage": "engine",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
