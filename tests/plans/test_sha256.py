"""The runtime's own SHA-256 against published vectors and hashlib, by each of its functions."""

from __future__ import annotations

import ctypes
import hashlib
import random
from pathlib import Path

import pytest
from support.verifiers import Native

SCALAR, SHA_NI = 1, 2

# FIPS 180-4 examples, and NIST's long message of a million "a".
VECTORS = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    ),
    b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
    b"hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu": (
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"
    ),
    b"a" * 1_000_000: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
}


@pytest.fixture(scope="module")
def cpp() -> Native:
    return Native()


def paths(cpp: Native) -> list[int]:
    """The functions that this machine runs: 0 is the one that the runtime chooses."""
    return [0, SCALAR, SHA_NI] if cpp.has_sha_ni else [0, SCALAR]


def test_published_vectors(cpp: Native) -> None:
    """Goal: the digests that NIST publishes."""
    for message, digest in VECTORS.items():
        for path in paths(cpp):
            assert cpp.sha256(message, path).hex() == digest, f"path {path}, {len(message)} bytes"


def test_every_length_up_to_five_blocks(cpp: Native) -> None:
    """Goal: every place where the padding can begin, one block or two."""
    message = random.Random(1).randbytes(320)
    for size in range(len(message) + 1):
        for path in paths(cpp):
            assert cpp.sha256(message[:size], path) == hashlib.sha256(message[:size]).digest(), (
                f"{size} bytes"
            )


def test_random_lengths(cpp: Native) -> None:
    """Goal: hashlib's digest for random messages, and the functions among each other."""
    dice = random.Random(2)
    for _ in range(300):
        message = dice.randbytes(dice.randrange(1, 1 << dice.randrange(1, 18)))
        digests = {cpp.sha256(message, path) for path in paths(cpp)}
        assert digests == {hashlib.sha256(message).digest()}


def test_bytes_at_any_alignment(cpp: Native) -> None:
    """Goal: blocks may begin anywhere in memory. Method: messages within a larger one."""
    block = random.Random(3).randbytes(400)
    buffer = ctypes.create_string_buffer(block, len(block))
    for begin in range(17):
        for path in paths(cpp):
            digest = cpp.sha256_at(ctypes.addressof(buffer) + begin, 300, path)
            assert digest == hashlib.sha256(block[begin : begin + 300]).digest()


def test_the_fast_function_is_taken_where_it_exists(cpp: Native) -> None:
    """Goal: CPUID is read as the kernel reads it: a wrong bit would hide the fast function, or crash."""
    flags = next(
        (line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")),
        [],
    )
    assert cpp.has_sha_ni == ({"sha_ni", "ssse3", "sse4_1"} <= set(flags))
