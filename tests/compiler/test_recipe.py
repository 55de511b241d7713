"""Recipes: what comes with Ingot is sound and complete, and nothing wrong in a recipe passes silently."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingot.compiler import recipe
from ingot.compiler.cli import command
from ingot.compiler.recipe import KEYS, RecipeError, find_recipe, parse_size, read_recipe, recipe_names
from ingot.runtime.options import size as runtime_size


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "recipe.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_come_along_are_sound(name: str) -> None:
    """Goal: each is found by its bare name and read without an error."""
    values = read_recipe(find_recipe(name))
    assert values["target"] == "cpu"
    assert values.keys() <= KEYS.keys()


def test_the_names_are_known() -> None:
    """Goal: the help names exactly the recipes that exist."""
    (option,) = (parameter for parameter in command.params if parameter.name == "recipe")
    assert isinstance(option, click.Option)
    assert ", ".join(recipe_names()) in str(option.help)


def test_every_option_is_explained_in_cpu_toml() -> None:
    """Goal: cpu.toml has every key, set or commented out, and each is an option of the same name."""
    text = find_recipe("cpu").read_text()
    keys = re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)
    assert sorted(keys) == sorted(KEYS)
    assert {parameter.name for parameter in command.params} >= set(KEYS)


def test_commented_values_are_valid(tmp_path: Path) -> None:
    """Goal: a user who takes away the `#` before a key has a recipe that is read."""
    text = re.sub(r"^# (\w+ = )", r"\1", find_recipe("cpu").read_text(), flags=re.MULTILINE)
    values = read_recipe(written(tmp_path, text))
    assert values.keys() == KEYS.keys()
    assert values["memory"] == 2 << 30
    assert values["calibration"] == tmp_path / "calibration.txt"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("wieghts = 'i8'", ["wieghts", "did you mean weights?"]),
        ("max-rows = 4", ["max-rows", "did you mean max_rows?"]),
        ("Context = 4", ["Context", "did you mean context?"]),
        ("zzzzz = 1", ["zzzzz", "known are target, weights"]),
        ("[numerics]\nweights = 'i8'", ["numerics"]),
        ("weights = 'i4'", ["weights is 'i4'", "i8, e4m3, bf16"]),
        ("kv = 8", ["kv is 8", "e5m2"]),
        ("context = '2048'", ["context is '2048'", "whole number"]),
        ("context = 2048.0", ["context", "whole number"]),
        ("context = true", ["context is True", "whole number"]),
        ("requests = 0", ["requests is 0", "at least 1"]),
        ("max_rows = -1", ["max_rows is -1"]),
        ("memory = '2 apples'", ["memory", "2 apples", "2G"]),
        ("memory = []", ["memory"]),
        ("calibration = 3", ["calibration", "path"]),
        ("calibration = ''", ["calibration", "path"]),
        ("context = ", ["not toml"]),
        ("context = 1\ncontext = 2", ["not toml"]),
        (b"\xff\xfe", ["not utf-8 at byte 0"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str | bytes, words: list[str]) -> None:
    """Goal: the file, the key, what was found and what is allowed; never a default in silence."""
    path = written(tmp_path, content)
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    text = str(caught.value)
    assert str(path) in text
    for word in words:
        assert word in text or word in text.lower()


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a missing file, a folder, and a file over the limit are errors that say so."""
    with pytest.raises(RecipeError, match="give a TOML file or one of cpu, cpu-bf16, cpu-e4m3"):
        find_recipe(str(tmp_path / "none.toml"))
    with pytest.raises(RecipeError, match="directory"):
        read_recipe(tmp_path)
    monkeypatch.setattr(recipe, "RECIPE_BYTES_MAX", 4)
    with pytest.raises(RecipeError, match="larger than 4 bytes"):
        read_recipe(written(tmp_path, "context = 1"))


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what the user's folder holds is what the user meant."""
    monkeypatch.chdir(tmp_path)
    Path("cpu").write_text("context = 7")
    assert read_recipe(find_recipe("cpu")) == {"context": 7}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1000000),
        ("2G", 2 << 30),
        ("2GiB", 2 << 30),
        ("2gb", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("0.5k", 512),
        (" 1T ", 1 << 40),
        ("12B", 12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Goal: the usual ways to write a size, in powers of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "2X", "1e9", "1,000", "0x10", "2GG", "nan", "½G", "2 G B"])
def test_what_is_no_size(text: str) -> None:
    """Goal: what is not clearly a size is refused with an example."""
    with pytest.raises(ValueError, match="2G"):
        parse_size(text)


@given(st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,3})? ?[KMGTkmgt]?(i?[bB])?", fullmatch=True))
def test_both_commands_read_sizes_alike(text: str) -> None:
    """Goal: `--memory 2GB` means the same to build-engine and to run-engine."""
    context = click.Context(click.Command("run-engine"))
    parameter = click.Option(["--memory"])
    assert parse_size(text) == runtime_size(context, parameter, text)
