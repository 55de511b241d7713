"""The text side of a transformers checkpoint: tokenizer.json, special tokens, chat template, sampling
defaults.

The tokenizer's bytes go into the plan as they are, once the `tokenizers` library has loaded them and every id
fits the model's vocabulary. A directory without any tokenizer gives a plan for token ids; one with a
tokenizer that we cannot load is an error, never a plan without text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plans.layout import Limit
from .config import add_eos_tokens
from .files import TOKENIZER_CONFIG_BYTES_MAX, boolean, read_bytes, read_json_object, show
from .spec import CheckpointError, ModelSpec, TextFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
OTHER_TOKENIZERS = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
TEMPLATE_CHARACTERS_MAX = 1 << 20
SAMPLING_RANGE: Mapping[str, tuple[float, float]] = {  # the sampling defaults that the runtime knows
    "temperature": (0.0, 100.0), "top_p": (0.0, 1.0), "top_k": (0, 1 << 31), "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1000.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TokenizerFacts:
    """What loading a tokenizer.json told: the object, and the tokens its post-processor puts in front."""

    tokenizer: Tokenizer
    prefix: tuple[int, ...]


def check_tokenizer(data: bytes, vocabulary: int, name: str) -> Tokenizer:
    """Load a tokenizer.json. Raises CheckpointError when it does not load or has an id outside the
    vocabulary.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception, with a text of its own
        raise CheckpointError(
            f"{name} cannot be loaded as a tokenizer; save it again with a current release of `tokenizers`"
        ) from error
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise CheckpointError(f"{name} has no tokens")
    token, last = max(ids.items(), key=lambda item: (item[1], item[0]))
    if last >= vocabulary:
        raise CheckpointError(
            f"{name} has the token {show(token)} with id {last}; the model has {vocabulary} tokens"
        )
    return tokenizer


def _facts(data: bytes, vocabulary: int) -> _TokenizerFacts:
    tokenizer = check_tokenizer(data, vocabulary, "tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    starts = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
    return _TokenizerFacts(tokenizer, tuple(whole[: starts[0]]) if starts else ())


def _special_tokens(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens' text by role. Each must be in the tokenizer: a template that writes it would lose
    it.
    """
    special = {}
    for role in ROLES:
        value = config.get(role)
        text = value.get("content") if isinstance(value, Mapping) else value
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise CheckpointError(
                f"{role} in tokenizer_config.json is {show(value)}; it must be a string or an object"
            )
        if tokenizer.token_to_id(text) is None:
            raise CheckpointError(
                f"{role} {show(text)} of tokenizer_config.json is not a token of tokenizer.json"
            )
        special[role] = text
    return special


def _template(config: Mapping[str, Any], directory: Path) -> str | None:
    """The chat template: chat_template.jinja, else tokenizer_config's own or the one named `default`."""
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            found: Any = read_bytes(path, 4 * TEMPLATE_CHARACTERS_MAX).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"chat_template.jinja is not UTF-8 at byte {error.start}") from error
    else:
        found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, Mapping)}
        if "default" not in named:
            raise CheckpointError(
                f'chat_template names {show(sorted(map(str, named)))}; one must be named "default"'
            )
        found = named["default"]
    if found is not None and not isinstance(found, str):
        raise CheckpointError(
            f"chat_template is {show(found)}; it must be a string or a list of named templates"
        )
    if found is not None and len(found) > TEMPLATE_CHARACTERS_MAX:
        raise CheckpointError(
            f"the chat template has {len(found)} characters; at most {TEMPLATE_CHARACTERS_MAX}"
        )
    return found or None


def _add_bos(facts: _TokenizerFacts, bos: int | None) -> bool:
    """Whether plain prompts begin with bos: what tokenizer.json's post-processor does.

    transformers 5 ignores tokenizer_config's add_bos_token beside a tokenizer.json (its _from_pretrained).
    """
    if not facts.prefix:
        return False
    if bos is None or facts.prefix != (bos,):
        text = [facts.tokenizer.id_to_token(token) for token in facts.prefix]
        raise CheckpointError(f"the tokenizer begins prompts with {show(text)}; only bos is supported")
    return True


def sampling_defaults(found: Mapping[str, Any]) -> dict[str, float | int | bool]:
    """The sampling defaults of a generation config that the runtime knows, checked. Other keys are
    generate()'s own.
    """
    kept: dict[str, float | int | bool] = {}
    if found.get("do_sample") is not None:
        kept["do_sample"] = boolean(found, "do_sample", False)
    for key, (low, high) in SAMPLING_RANGE.items():
        value = found.get(key)
        if value is None:
            continue
        whole = key == "top_k"
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or not low <= value <= high:
            raise CheckpointError(
                f"{key} in generation_config.json is {show(value)}; it must be {low:g} to {high:g}"
            )
        kept[key] = value
    return kept


def _optional(path: Path, limit: int) -> dict[str, Any]:
    return read_json_object(path, limit) if path.exists() else {}


def read_text(directory: Path, spec: ModelSpec) -> tuple[ModelSpec, TextFiles]:
    """A directory's text files, and the spec with the eos tokens and the bos token that they add.

    Raises CheckpointError when a file is malformed, or when there is a tokenizer but no tokenizer.json.
    """
    generation = _optional(directory / "generation_config.json", TOKENIZER_CONFIG_BYTES_MAX)
    spec = add_eos_tokens(spec, generation)
    sampling = sampling_defaults(generation)
    path = directory / "tokenizer.json"
    if not path.exists():
        others = [name for name in OTHER_TOKENIZERS if (directory / name).exists()]
        if others:
            raise CheckpointError(
                f"{directory.name} has {others[0]} but no tokenizer.json; load it with AutoTokenizer of "
                "transformers and save_pretrained it into the directory"
            )
        return spec, TextFiles(None, None, {}, False, sampling)
    data = read_bytes(path, int(Limit.TOKENIZER_BYTES))
    facts = _facts(data, spec.vocabulary)
    config = _optional(directory / "tokenizer_config.json", TOKENIZER_CONFIG_BYTES_MAX)
    special = _special_tokens(config, facts.tokenizer)
    bos = facts.tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else spec.bos_token
    add_bos = _add_bos(facts, bos)
    if add_bos:
        spec = replace(spec, bos_token=bos)
    return spec, TextFiles(data, _template(config, directory), special, add_bos, sampling)
