"""open_checkpoint: a directory, a config alone, GGUF, a hub name, and a clear error for anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from ingot.compiler.checkpoint.open import open_checkpoint
from ingot.compiler.checkpoint.spec import Checkpoint, CheckpointError
from support.checkpoints import make_checkpoint
from support.gguf_checkpoints import make_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("open"), "smollm2")


def refused(path: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a directory gives all of a checkpoint and its own name, also when it is the current one."""
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.name == folder.name
    assert checkpoint.weights is not None
    assert checkpoint.text.tokenizer is not None
    monkeypatch.chdir(folder)
    here = open_checkpoint(".")
    assert (here.name, here.spec) == (folder.name, checkpoint.spec)


def test_config_only(folder: Path, tmp_path: Path) -> None:
    """Goal: sizing needs no weights: from a directory without them, or from config.json alone."""
    wanted = open_checkpoint(str(folder))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    checkpoint = open_checkpoint(str(tmp_path), config_only=True)
    assert (checkpoint.spec, checkpoint.text, checkpoint.weights) == (wanted.spec, wanted.text, None)
    alone = open_checkpoint(str(folder / "config.json"))
    assert (alone.spec.layers, alone.text.tokenizer, alone.weights) == (wanted.spec.layers, None, None)
    assert "neither model.safetensors nor" in refused(str(tmp_path))


def test_gguf_file(tmp_path: Path) -> None:
    """Goal: a GGUF file is opened by its suffix and named by its stem."""
    path = make_gguf(tmp_path, "smollm2")
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.name == path.stem
    assert checkpoint.weights is not None


def test_what_is_no_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Goal: each wrong path is named, with what to give instead."""
    assert "has no config.json" in refused(str(tmp_path))
    assert "there is no file or directory" in refused(str(tmp_path / "missing" / "model"))
    assert "there is no file or directory" in refused("")
    assert "is not a checkpoint" in refused(str(folder / "model.safetensors"))
    for odd in ("", "a\0b", "a\nb", "\x1b[0m"):
        assert "there is no file or directory" in refused(odd)
    assert "there is no file" in refused("x" * 5000) or "cannot be a path" in refused("x" * 5000)
    assert "hidden_size" in refused_config(folder, tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "there is no file" in refused(str(tmp_path / "pipe.gguf"))


def refused_config(folder: Path, tmp_path: Path) -> str:
    """The error for a config.json of the directory's with a hidden size of nothing."""
    config = (folder / "config.json").read_text().replace('"hidden_size": 72', '"hidden_size": null')
    path = tmp_path / "other.json"
    path.write_text(config)
    return refused(str(path))


def test_hub_name(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: a hub name is downloaded, only the files that are read, and opened as a directory."""
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    checkpoint = open_checkpoint("some-owner/some.model")
    assert (checkpoint.name, checkpoint.weights is None) == ("some-owner/some.model", False)
    assert open_checkpoint("some-owner/some.model", config_only=True).weights is None
    (_, whole), (_, config) = asked
    assert "model.safetensors.index.json" in whole
    assert not any("safetensors" in pattern for pattern in config)
    assert not any(pattern.startswith("*") or pattern.endswith((".bin", ".py")) for pattern in whole)
    for text in (
        "some-owner/a/b",
        "../model",
        "owner/..",
        "/owner/model",
        "owner/mo del",
        "owner/",
        "~/model",
    ):
        assert "there is no file" in refused(text)
    assert len(asked) == 2, "only a hub name reaches the network"


def test_hub_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: no network, no such repository, or no library is one line of ours, whatever was raised."""

    def fail(name: str, allow_patterns: list[str]) -> str:
        raise OSError("a library's\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.chdir(tmp_path)
    text = refused("owner/model")
    assert "owner/model is neither a path here nor a repository" in text
    assert "long story" not in text
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in refused("owner/model")


def test_a_path_wins_over_a_hub_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a directory `owner/model` here is opened, and the network left alone."""

    def fail(*_: Any, **__: Any) -> str:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.chdir(folder.parent.parent)
    found: Checkpoint = open_checkpoint(f"{folder.parent.name}/{folder.name}")
    assert found.name == folder.name


def test_nothing_heavy_is_imported(folder: Path) -> None:
    """Goal: opening a directory needs neither torch nor transformers, gguf or a hub."""
    code = (
        "import sys; from ingot.compiler.checkpoint.open import open_checkpoint\n"
        "open_checkpoint(sys.argv[1])\n"
        "heavy = {'torch', 'transformers', 'gguf', 'huggingface_hub', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
