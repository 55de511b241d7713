"""Calibration input: the user's text file or the built-in one, and its tokens. Its sha256 goes into the plan.

A text file is one document; a `.jsonl` file holds one object a line with a string under "text", "content" or
"prompt", or "messages" with string contents. The first CALIBRATION_TOKENS tokens are used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..checkpoint.spec import Checkpoint, CheckpointError
from .calibration_text import CALIBRATION_TEXT

CALIBRATION_TOKENS = 1536
FILE_BYTES_MAX = 64 << 20
KEYS = ("text", "content", "prompt")


@dataclass(frozen=True, slots=True)
class CalibrationInput:
    """A calibration text: what it is called in the plan, the text, and the hex sha256 of its UTF-8 bytes."""

    name: str
    text: str
    digest: str


def _line_text(path: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise CheckpointError(
            f"{path.name} line {number} is not JSON; a .jsonl file holds one object a line"
        ) from error
    if isinstance(value, dict):
        for key in KEYS:
            if isinstance(value.get(key), str):
                return str(value[key])
        messages = value.get("messages")
        if isinstance(messages, list):
            contents = [message.get("content") for message in messages if isinstance(message, dict)]
            if contents and all(isinstance(content, str) for content in contents):
                return "\n".join(str(content) for content in contents)
    raise CheckpointError(
        f"{path.name} line {number} has no text; use one of the keys {', '.join(KEYS)} or messages"
    )


def read_calibration(path: Path | None) -> CalibrationInput:
    """The calibration text of `path`, or the built-in one. Raises CheckpointError for a file that cannot be
    used.
    """
    if path is None:
        name, text = "built-in", CALIBRATION_TEXT
    else:
        try:
            size = path.stat().st_size
            if size > FILE_BYTES_MAX:
                raise CheckpointError(
                    f"calibration file {path.name} has {size} bytes; at most {FILE_BYTES_MAX} are read"
                )
            name, text = path.name, path.read_text(encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"cannot read calibration file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"calibration file {path.name} is not UTF-8 at byte {error.start}"
            ) from error
        if path.suffix == ".jsonl":
            lines = [line for line in text.split("\n") if line.strip()]
            text = "\n\n".join(_line_text(path, number, line) for number, line in enumerate(lines, 1))
        if not text.strip():
            raise CheckpointError(f"calibration file {path.name} has no text")
    return CalibrationInput(name, text, hashlib.sha256(text.encode()).hexdigest())


def calibration_tokens(checkpoint: Checkpoint, text: CalibrationInput) -> list[int]:
    """At most CALIBRATION_TOKENS token ids, fewer when the context is shorter.

    A checkpoint without a tokenizer is calibrated on uniformly random ids from a fixed seed: its users send
    ids that we know nothing about.
    """
    limit = min(CALIBRATION_TOKENS, checkpoint.spec.context)
    if checkpoint.text.tokenizer is None:
        return [
            int(token)
            for token in np.random.Generator(np.random.PCG64(0)).integers(
                0, checkpoint.spec.vocabulary, limit
            )
        ]
    from tokenizers import Tokenizer

    ids = list(
        Tokenizer.from_buffer(checkpoint.text.tokenizer).encode(text.text, add_special_tokens=False).ids
    )
    if checkpoint.text.add_bos and checkpoint.spec.bos_token is not None:
        ids.insert(0, checkpoint.spec.bos_token)
    if not ids:
        raise CheckpointError(f"the tokenizer gives no token for the calibration text {text.name}")
    return ids[:limit]
