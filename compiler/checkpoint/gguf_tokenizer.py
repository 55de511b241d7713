"""A GGUF file's tokenizer -> the bytes of a tokenizer.json, special tokens, chat template, sampling defaults.

GGUF keeps a vocabulary, merges or scores, and the name of a pre-tokenizer. Each known name is rebuilt as the
family's released tokenizer.json has it (llama.cpp's own patterns approximate those); an unknown name is
refused, because a wrong split gives wrong ids without any error. Token types are those of llama.cpp: normal
1, unknown 2, control 3, user defined 4, unused 5, byte 6.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .files import boolean, show
from .gguf_file import Value
from .spec import CheckpointError, ModelSpec, TextFiles
from .tokenizer import TEMPLATE_CHARACTERS_MAX, check_tokenizer, sampling_defaults

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PREFIX = "tokenizer.ggml."

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before merging: patterns applied one after the other, each match one piece."""

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a piece that is a token is taken whole
    add_bos: bool = False  # when the file does not say


_LLAMA3 = PreTokenizer((_WORDS + r"\p{N}{1,3}" + _REST,), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_WORDS + r"\p{N}" + _REST,), nfc=True)
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
    "smollm": _DIGITS, "starcoder": _DIGITS, "refact": _DIGITS, "codeshell": _DIGITS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token table: texts and types by id; ids of unused tokens have no text that could be encoded."""

    tokens: Sequence[str]
    types: Sequence[int]

    def ids(self) -> dict[str, int]:
        """Text -> id of every token that is used."""
        return {
            token: i
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind != UNUSED
        }

    def added(self) -> list[dict[str, Any]]:
        """tokenizer.json's added_tokens: what is cut out of the text before anything else."""
        return [
            {
                "id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]  # fmt: skip


def _strings(metadata: Mapping[str, Value], key: str) -> list[str]:
    value = metadata.get(PREFIX + key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CheckpointError(f"{PREFIX}{key} is missing or not a list of strings")
    return [text for text in value if isinstance(text, str)]


def _vocabulary(metadata: Mapping[str, Value], vocabulary: int) -> Vocabulary:
    tokens = _strings(metadata, "tokens")
    if not 0 < len(tokens) <= vocabulary:
        raise CheckpointError(f"{PREFIX}tokens has {len(tokens)} entries; the model has {vocabulary} tokens")
    types = metadata.get(PREFIX + "token_type", [NORMAL] * len(tokens))
    if (
        not isinstance(types, list)
        or len(types) != len(tokens)
        or not all(kind in range(7) for kind in types)
    ):
        raise CheckpointError(f"{PREFIX}token_type must be a list of {len(tokens)} numbers from 0 to 6")
    found = Vocabulary(tokens, [int(kind) for kind in types])
    ids = found.ids()
    if len(ids) != sum(kind != UNUSED for kind in found.types):
        twice = next(token for i, token in enumerate(tokens) if found.types[i] != UNUSED and ids[token] != i)
        raise CheckpointError(f"{PREFIX}tokens has the token {show(twice)} twice")
    return found


def _tokenizer_json(vocabulary: Vocabulary, parts: Mapping[str, Any], model: Mapping[str, Any]) -> bytes:
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": vocabulary.added(),
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, **parts,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            **model,
        },
    }  # fmt: skip
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _byte_level(metadata: Mapping[str, Value], vocabulary: Vocabulary) -> tuple[bytes, bool]:
    """A byte-level BPE (`gpt2`): (tokenizer.json, whether prompts begin with bos by default)."""
    name = metadata.get(PREFIX + "pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"{PREFIX}pre is {show(name)}; known pre-tokenizers are {', '.join(PRE_TOKENIZERS)}: "
            "give the transformers checkpoint instead"
        )
    pre = PRE_TOKENIZERS[name]
    merges = []
    for merge in _strings(metadata, "merges"):
        cut = merge.find(" ", 1)
        if cut < 0 or cut == len(merge) - 1:
            raise CheckpointError(
                f"{PREFIX}merges has {show(merge)}; a merge is two tokens and a space between them"
            )
        merges.append((merge[:cut], merge[cut + 1 :]))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    parts = {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": {**level, "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }
    model = {"vocab": vocabulary.ids(), "merges": merges, "ignore_merges": pre.ignore_merges}
    return _tokenizer_json(vocabulary, parts, model), pre.add_bos


def score_merges(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE: every split of a piece into two pieces, best piece first.

    The order is that of transformers' converter (`generate_merges`): by score, then by the lengths of left
    and right, all descending; splits of one piece by the ids of their parts.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(left, right) for left, right in splits if left in scores and right in scores]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in known]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for _, _, _, left, right in found]


def _sentencepiece(metadata: Mapping[str, Value], vocabulary: Vocabulary) -> bytes:
    """A SentencePiece BPE with byte fallback (`llama`), as transformers converts it."""
    scores = metadata.get(PREFIX + "scores")
    count = len(vocabulary.tokens)
    if (
        not isinstance(scores, list)
        or len(scores) != count
        or not all(isinstance(x, float) and math.isfinite(x) for x in scores)
    ):
        raise CheckpointError(f"{PREFIX}scores must be a list of {count} numbers")
    ids = vocabulary.ids()
    pieces = {
        token: float(scores[i])
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == NORMAL
    }
    unknown = [
        token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == UNKNOWN
    ]
    space = boolean(metadata, PREFIX + "add_space_prefix", True)
    replace_space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space else []
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace_space]},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, *strip,
            ],
        },
    }  # fmt: skip
    model = {
        "vocab": ids, "merges": score_merges(ids, pieces), "unk_token": unknown[0] if unknown else None,
        "fuse_unk": True, "byte_fallback": True,
    }  # fmt: skip
    return _tokenizer_json(vocabulary, parts, model)


def _token(metadata: Mapping[str, Value], key: str, vocabulary: int) -> int | None:
    """A token id of the metadata, or None when absent."""
    value = metadata.get(f"{PREFIX}{key}_token_id")
    if value is None or value == 0xFFFFFFFF:
        return None
    if type(value) is not int or not 0 <= value < vocabulary:
        raise CheckpointError(f"{PREFIX}{key}_token_id is {show(value)}; the model has {vocabulary} tokens")
    return value


def _template(metadata: Mapping[str, Value]) -> str | None:
    found = metadata.get("tokenizer.chat_template")
    if found is not None and (not isinstance(found, str) or len(found) > TEMPLATE_CHARACTERS_MAX):
        raise CheckpointError(
            f"tokenizer.chat_template must be a string of at most {TEMPLATE_CHARACTERS_MAX} characters"
        )
    return found or None


def _sampling(metadata: Mapping[str, Value]) -> dict[str, float | int | bool]:
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in names.items()}
    kept = sampling_defaults(found)
    return {"do_sample": True, **kept} if kept else {}


def gguf_text(metadata: Mapping[str, Value], spec: ModelSpec) -> tuple[ModelSpec, TextFiles]:
    """The text side of a GGUF file, and the spec with its bos and eos tokens.

    Raises CheckpointError for a tokenizer that cannot be rebuilt exactly: an unknown model or pre-tokenizer,
    or lists that do not fit together.
    """
    size = spec.vocabulary
    bos = _token(metadata, "bos", size)
    ends = [_token(metadata, key, size) for key in ("eos", "eot", "eom")]
    spec = replace(
        spec, bos_token=bos, eos_tokens=tuple(dict.fromkeys(end for end in ends if end is not None))
    )
    kind = metadata.get(PREFIX + "model")
    sampling = _sampling(metadata)
    if kind in (None, "none", "no_vocab"):
        return spec, TextFiles(None, None, {}, False, sampling)
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(
            f"{PREFIX}model is {show(kind)}; gpt2 and llama can be rebuilt: give the original checkpoint"
        )
    vocabulary = _vocabulary(metadata, size)
    if kind == "gpt2":
        data, add_bos = _byte_level(metadata, vocabulary)
    else:
        data, add_bos = _sentencepiece(metadata, vocabulary), True
    check_tokenizer(data, size, "the rebuilt tokenizer")
    roles = {"bos_token": bos, "eos_token": ends[0]}
    roles |= {"unk_token": _token(metadata, "unknown", size), "pad_token": _token(metadata, "padding", size)}
    special = {
        role: vocabulary.tokens[token]
        for role, token in roles.items()
        if token is not None and token < len(vocabulary.tokens)
    }
    add_bos = boolean(metadata, PREFIX + "add_bos_token", add_bos) and bos is not None
    return spec, TextFiles(data, _template(metadata), special, add_bos, sampling)
