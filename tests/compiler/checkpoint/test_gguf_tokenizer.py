"""Tokenizers rebuilt from GGUF: the same ids as the tokenizer.json they came from, on any text."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ingot.compiler.checkpoint.gguf import ggml_sizes, gguf_spec
from ingot.compiler.checkpoint.gguf_file import read_gguf
from ingot.compiler.checkpoint.gguf_tokenizer import PRE_TOKENIZERS, gguf_text, score_merges
from ingot.compiler.checkpoint.open import open_checkpoint
from ingot.compiler.checkpoint.spec import CheckpointError, TextFiles
from support.checkpoints import PARAGRAPH, make_tokenizer
from support.gguf_checkpoints import make_gguf, smollm2_gguf
from tokenizers import Tokenizer, pre_tokenizers
from transformers.tokenization_utils_base import generate_merges

CASE_OF = {
    "gpt2": "llama_yarn",
    "llama-bpe": "llama3",
    "qwen2": "qwen3",
    "smollm": "smollm2",
    "llama": "llama2",
}
TEXTS = (
    "", " ", "Nothing entered the basin.", "  two  spaces\t\ttabs\r\n\r\n lines ",
    "I'll we'VE don't DON'T 'tis",
    "def f(x):\n\treturn x ** 2  # 12345 67\n", "1234567890 ½ ٣٤ x²", "😀🚢⚓ 👩‍👩‍👧 🇫🇷",
    "港口每天都很忙碌。 日本語 한국어",
    "e\u0301 é ﬁ ＡＢ",
    "<|im_start|>user\nhello<|im_end|>\n<s></s>", "a<s>b", "\u200b\ufeff\u00a0\u3000x", "\x00\x01\x7f",
    "▁ already ▁▁",
    "<0x0A> [PAD700]",
)  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=40), st.text(alphabet="aeht ' \n\t1234.,<|>_▁éß港😀", max_size=60),
    st.lists(st.sampled_from(PARAGRAPH.split(" ")), max_size=12).map(" ".join),
)  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Tokenizer]]:
    """By kind: the trained tokenizer, and the one rebuilt from its GGUF file."""
    folder, found = tmp_path_factory.mktemp("tokenizers"), {}
    for kind, case in CASE_OF.items():
        data = open_checkpoint(str(make_gguf(folder, case)), config_only=True).text.tokenizer
        assert data is not None
        found[kind] = (make_tokenizer(kind), Tokenizer.from_buffer(data))
    return found


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("kind", CASE_OF)
def test_same_ids(kind: str, pairs: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    """Goal: encoding and decoding agree on code, spaces, digits, scripts, emoji and special tokens."""
    trained, rebuilt = pairs[kind]
    for text in (*TEXTS, PARAGRAPH):
        ids = encode(trained, text)
        assert encode(rebuilt, text) == ids, text
        for skip in (True, False):
            assert rebuilt.decode(ids, skip_special_tokens=skip) == trained.decode(
                ids, skip_special_tokens=skip
            )
    assert rebuilt.get_vocab() == trained.get_vocab(), "unused ids stay without a token"


@settings(max_examples=250, deadline=None)
@given(text=TEXT)
@example(text="it's<|im_end|> 12345\n\n  x")
def test_same_ids_on_any_text(text: str, pairs: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    """Goal: no text tells a rebuilt tokenizer from the original."""
    for kind, (trained, rebuilt) in pairs.items():
        assert encode(rebuilt, text) == encode(trained, text), kind


@functools.cache
def smollm2() -> tuple[TextFiles, Tokenizer]:
    text = open_checkpoint(str(smollm2_gguf()), config_only=True).text
    assert text.tokenizer is not None
    return text, Tokenizer.from_buffer(text.tokenizer)


def test_released_tokenizer() -> None:
    """Goal: SmolLM2's own ids on known text, and its special tokens and template."""
    text, tokenizer = smollm2()
    assert encode(tokenizer, "Hello, world!") == [19556, 28, 905, 17]
    assert encode(tokenizer, "<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert encode(tokenizer, "2024") == [34, 32, 34, 36], "digits stand alone"
    assert (text.special["bos_token"], text.special["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert not text.add_bos
    assert text.template is not None
    assert "You are a helpful AI assistant named SmolLM" in text.template


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
@example(text=PARAGRAPH)
def test_released_tokenizer_round_trip(text: str) -> None:
    """Goal: a byte-level tokenizer gives any text back whose bytes it has: SmolLM2's lacks a few, as 0xF1."""
    _, tokenizer = smollm2()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assume(
        all(
            tokenizer.token_to_id(byte) is not None
            for piece, _ in level.pre_tokenize_str(text)
            for byte in piece
        )
    )
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_merges_of_scores() -> None:
    """Goal: merges from scores are in the order of transformers' converter, ties included."""
    texts = ["a", "b", "c", "ab", "bc", "abc", "abab", "cab", "▁", "▁a", "▁ab"]
    ids = {text: i for i, text in enumerate(texts)}
    scores = {text: -float(i // 2) for i, text in enumerate(texts)}
    assert score_merges(ids, scores) == generate_merges(ids, scores)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("llama"), "llama2")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("bpe"), "llama3")


def text_of(path: Path, change: dict[str, Any]) -> TextFiles:
    """The text side of a file with some of its tokenizer metadata changed (...: left out)."""
    file = read_gguf(path, ggml_sizes())
    changed = {**file.metadata, **{f"tokenizer.{key}": value for key, value in change.items()}}
    return gguf_text({k: v for k, v in changed.items() if v is not ...}, gguf_spec(file))[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ggml.pre": "tekken"}, "tekken"), ({"ggml.pre": ...}, "pre is null"), ({"ggml.pre": ["qwen2"]},
        "pre-tokenizers"),
        ({"ggml.model": "t5"}, "t5"), ({"ggml.model": "bert"}, "bert"), ({"ggml.tokens": ...},
        "tokens is missing"),
        ({"ggml.tokens": [1, 2]}, "list of strings"), ({"ggml.tokens": []}, "0 entries"),
        ({"ggml.tokens": ["a"] * 1004}, "1004 entries"), ({"ggml.tokens": ["a", "b"]}, "token_type"),
        ({"ggml.tokens": ["a"] * 1003, "ggml.token_type": [1] * 1003}, '"a" twice'),
        ({"ggml.token_type": [9] * 1003}, "token_type"), ({"ggml.token_type": ["x"] * 1003}, "token_type"),
        ({"ggml.merges": ...}, "merges is missing"), ({"ggml.merges": ["ab"]}, "two tokens"),
        ({"ggml.merges": ["a "]}, "two tokens"), ({"ggml.merges": ["a zzzz"]}, "cannot be loaded"),
        ({"ggml.bos_token_id": 5000}, "bos_token_id"), ({"ggml.eos_token_id": -1}, "eos_token_id"),
        ({"ggml.add_bos_token": 1}, "add_bos_token"), ({"chat_template": ["x"]}, "chat_template"),
        ({"chat_template": "x" * (1 << 21)}, "chat_template"),
    ],
)  # fmt: skip
def test_bad_tokenizers(change: dict[str, Any], said: str, bpe: Path) -> None:
    """Goal: lists that do not fit, unknown models and pre-tokenizers are refused by name, in one line."""
    with pytest.raises(CheckpointError) as caught:
        text_of(bpe, change)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_scores(llama: Path) -> None:
    """Goal: a SentencePiece vocabulary needs one finite score a token."""
    for scores in (..., [0.0], [float("nan")] * 1003, [1] * 1003, "x"):
        with pytest.raises(CheckpointError, match="scores must be a list of 1003 numbers"):
            text_of(llama, {"ggml.scores": scores})


def test_settings(llama: Path, bpe: Path) -> None:
    """Goal: add_bos and the space in front follow the file, else the model's custom; no tokenizer is None."""
    assert text_of(llama, {"ggml.add_bos_token": ...}).add_bos
    assert not text_of(llama, {"ggml.add_bos_token": False}).add_bos
    assert text_of(bpe, {"ggml.add_bos_token": ...}).add_bos, "llama.cpp adds bos for llama-bpe"
    assert not text_of(bpe, {"ggml.add_bos_token": ..., "ggml.pre": "qwen2"}).add_bos
    assert not text_of(bpe, {"ggml.add_bos_token": True, "ggml.bos_token_id": ...}).add_bos
    plain = text_of(llama, {"ggml.add_space_prefix": False}).tokenizer
    assert plain is not None
    spaced = text_of(llama, {}).tokenizer
    assert spaced is not None
    assert encode(Tokenizer.from_buffer(plain), " ship") == encode(Tokenizer.from_buffer(spaced), "ship")
    for model in (..., "none", "no_vocab"):
        assert text_of(bpe, {"ggml.model": model}).tokenizer is None


def test_every_pre_tokenizer_loads(bpe: Path) -> None:
    """Goal: each known pre-tokenizer's patterns compile and lose no text."""
    for name in PRE_TOKENIZERS:
        data = text_of(bpe, {"ggml.pre": name}).tokenizer
        assert data is not None
        tokenizer = Tokenizer.from_buffer(data)
        for text in (PARAGRAPH, *TEXTS):
            wanted = text.replace("e\u0301", "é") if PRE_TOKENIZERS[name].nfc else text
            assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == wanted
        assert json.loads(data)["model"]["ignore_merges"] == PRE_TOKENIZERS[name].ignore_merges
