"""The text side of a checkpoint directory: what goes into the plan, and what is refused before it does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ingot.compiler.checkpoint.spec import CheckpointError, TextFiles
from ingot.compiler.checkpoint.tokenizer import read_text, sampling_defaults
from support.checkpoints import TEMPLATE, make_tokenizer, write_tokenizer
from support.models import spec_of
from tokenizers import processors
from transformers import AutoTokenizer

SPEC = spec_of("llama2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the text files of a Llama-2-like checkpoint."""
    write_tokenizer(tmp_path, "llama")
    return tmp_path


def edit(folder: Path, change: dict[str, Any], name: str = "tokenizer_config.json") -> Path:
    """Change keys of a JSON file (...: left out)."""
    path = folder / name
    found = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}))
    return folder


def text_of(folder: Path) -> TextFiles:
    return read_text(folder, SPEC)[1]


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_text(folder, SPEC)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_directory(folder: Path) -> None:
    """Goal: the tokenizer's bytes as they are, template, special tokens, sampling defaults, eos tokens."""
    spec, text = read_text(folder, SPEC)
    assert text.tokenizer == (folder / "tokenizer.json").read_bytes()
    assert text.template == TEMPLATE
    assert text.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert text.add_bos
    assert text.generation == {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40}
    assert (spec.bos_token, spec.eos_tokens) == (0, (1, 4))


@pytest.mark.parametrize("kind", ["gpt2", "llama-bpe", "qwen2", "smollm", "llama"])
@pytest.mark.parametrize("add_bos", [True, False, ...])
@pytest.mark.parametrize("processor", [True, False])
def test_bos_as_transformers_adds_it(kind: str, add_bos: Any, processor: bool, tmp_path: Path) -> None:
    """Goal: bos begins a prompt exactly when transformers' tokenizer puts it there."""
    write_tokenizer(tmp_path, kind)
    tokenizer = make_tokenizer(kind)
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.post_processor = template if processor else processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    edit(tmp_path, {"add_bos_token": add_bos})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    wanted = AutoTokenizer.from_pretrained(tmp_path)("ships")["input_ids"][0] == 0
    assert text_of(tmp_path).add_bos == wanted


def test_prefix_that_is_not_bos(folder: Path) -> None:
    """Goal: a post-processor that puts another token in front is refused, never dropped."""
    tokenizer = make_tokenizer("llama")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert "<|im_start|>" in refused(folder)


def test_templates(folder: Path) -> None:
    """Goal: a template is found as a string, in a list as default, or in its own file, which wins."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert text_of(edit(folder, {"chat_template": named})).template == "plain"
    assert 'must be named "default"' in refused(edit(folder, {"chat_template": named[:1]}))
    assert "chat_template is 5" in refused(edit(folder, {"chat_template": 5}))
    assert "default" in refused(edit(folder, {"chat_template": [1, [2]]}))
    assert "characters" in refused(edit(folder, {"chat_template": "x" * ((1 << 20) + 1)}))
    assert text_of(edit(folder, {"chat_template": ...})).template is None
    (folder / "chat_template.jinja").write_text("from {{ file }}")
    assert text_of(edit(folder, {"chat_template": "other"})).template == "from {{ file }}"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    assert "not UTF-8" in refused(folder)


def test_special_tokens(folder: Path) -> None:
    """Goal: text or AddedToken objects; one that the tokenizer lacks is an error that names it."""
    added = {"content": "</s>", "lstrip": False, "special": True, "__type": "AddedToken"}
    text = text_of(edit(folder, {"eos_token": added, "pad_token": None, "unk_token": ""}))
    assert text.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert "<|nowhere|>" in refused(edit(folder, {"pad_token": "<|nowhere|>"}))
    assert "pad_token in tokenizer_config.json is 7" in refused(edit(folder, {"pad_token": 7}))


def test_tokenizers_that_cannot_be_loaded(folder: Path) -> None:
    """Goal: a broken tokenizer.json, or only files of other tokenizers, is an error that says what to do."""
    whole = (folder / "tokenizer.json").read_text()
    for broken in ("", "{}", whole[: len(whole) // 2], whole.replace('"BPE"', '"Mystery"')):
        (folder / "tokenizer.json").write_text(broken)
        assert "cannot be loaded as a tokenizer" in refused(folder)
    (folder / "tokenizer.json").unlink()
    for other in ("tokenizer.model", "vocab.json", "merges.txt"):
        (folder / other).write_text("")
        assert f"has {other} but no tokenizer.json" in refused(folder)
        (folder / other).unlink()


def test_no_tokenizer_is_a_plan_for_ids(folder: Path) -> None:
    """Goal: a directory without any tokenizer file still has its sampling defaults and eos tokens."""
    (folder / "tokenizer.json").unlink()
    spec, text = read_text(folder, SPEC)
    assert text == TextFiles(
        None, None, {}, False, {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40}
    )
    assert spec.eos_tokens == (1, 4)
    for path in folder.iterdir():
        path.unlink()
    assert read_text(folder, SPEC) == (SPEC, TextFiles(None, None, {}, False, {}))


def test_vocabulary_too_large(folder: Path) -> None:
    """Goal: an id beyond the model's rows is refused, naming the token."""
    tokenizer = make_tokenizer("llama")
    while tokenizer.get_vocab_size() <= SPEC.vocabulary:
        tokenizer.add_tokens([f"more{tokenizer.get_vocab_size()}"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert '"more1003" with id 1003; the model has 1003 tokens' in refused(folder)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": "hot"}, {"temperature": -0.1}, {"temperature": 1e9}, {"top_p": 1.5}, {"top_p": True},
        {"top_k": 2.5}, {"top_k": -1}, {"min_p": 2}, {"repetition_penalty": 0}, {"do_sample": 1},
        {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": 1 << 40},
    ],
)  # fmt: skip
def test_bad_sampling_defaults(bad: dict[str, Any]) -> None:
    """Goal: a default that the runtime would refuse is refused at build, by name."""
    with pytest.raises(CheckpointError, match=next(iter(bad))):
        sampling_defaults(bad)


def test_sampling_defaults(folder: Path) -> None:
    """Goal: known keys are kept as they stand, null is absent, generate()'s other keys are left out."""
    given = {"temperature": 0, "top_p": 1, "top_k": 0, "repetition_penalty": 1.1, "do_sample": False}
    extra = {"max_length": 20, "num_beams": 4, "_from_model_config": True, "min_p": None}
    assert sampling_defaults({**given, **extra}) == given
    assert "eos_token_id" in refused(edit(folder, {"eos_token_id": 1003}, "generation_config.json"))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_broken_settings(name: str, folder: Path) -> None:
    """Goal: a settings file that is no JSON object is an error naming the file, never ignored."""
    for data in (b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}'):
        (folder / name).write_bytes(data)
        assert name in refused(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in refused(folder)
    shutil.rmtree(folder / name)
