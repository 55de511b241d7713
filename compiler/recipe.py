"""Recipes: a TOML file that says how to build, key for option. What the command line says wins over it.

Keys are `build-engine`'s options with underscores; `plans/recipes/cpu.toml` lists and explains them all. The
recipes that come with Ingot are found by their bare name. An unknown key, a wrong type or a value out of
range is an error: a misspelt option must not silently leave a default in place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

from .. import plans

RECIPE_BYTES_MAX = 1 << 20
TARGETS = ("cpu",)
TARGETS_LATER = ("sm90a", "tensorrt")
WEIGHTS = ("i8", "e4m3", "bf16")
KV = ("i8", "e4m3", "e5m2", "bf16")
Value = int | str | Path
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


class RecipeError(Exception):
    """A recipe that cannot be used. The text says what was found, what is allowed, what to do."""


def parse_size(text: str) -> int:
    """Bytes of `512M`, `2GiB`, `1.5g` or `1000000`; units are powers of 1024, as in `run-engine`.

    Raises ValueError with what is allowed.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with K, M, G or T such as 2G")
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1 if match[2] else 0))


def _one_of(names: tuple[str, ...]) -> Callable[[object, Path], Value]:
    def read(value: object, folder: Path) -> Value:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"it must be one of {', '.join(names)}")
        return value

    return read


def _count(value: object, folder: Path) -> Value:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("it must be a whole number of at least 1")
    return value


def _size(value: object, folder: Path) -> Value:
    if isinstance(value, str):
        return parse_size(value)
    return _count(value, folder)


def _path(value: object, folder: Path) -> Value:
    """A file, relative to the recipe's folder."""
    if not isinstance(value, str) or not value:
        raise ValueError("it must be a path")
    return folder / Path(value).expanduser()


KEYS: Mapping[str, Callable[[object, Path], Value]] = {
    "target": _one_of((*TARGETS, *TARGETS_LATER)),
    "weights": _one_of(WEIGHTS),
    "kv": _one_of(KV),
    "context": _count,
    "max_rows": _count,
    "max_head_rows": _count,
    "max_requests": _count,
    "requests": _count,
    "kv_tokens": _count,
    "default_max_tokens": _count,
    "memory": _size,
    "calibration": _path,
}


def _folder() -> Path:
    assert plans.__file__ is not None
    return Path(plans.__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The recipes that come with Ingot."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe given by path, or by the bare name of one that comes with Ingot."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name in recipe_names():
        return _folder() / f"{name}.toml"
    raise RecipeError(f"no recipe {name}: give a TOML file or one of {', '.join(recipe_names())}")


def _nearest(key: str) -> str:
    near = get_close_matches(key.replace("-", "_").lower(), KEYS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"


def read_recipe(path: Path) -> dict[str, Value]:
    """The values of a recipe by key. Raises RecipeError naming the file, the key, and what is allowed."""
    try:
        if path.stat().st_size > RECIPE_BYTES_MAX:
            raise RecipeError(f"recipe {path}: larger than {RECIPE_BYTES_MAX} bytes")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe {path}: {(error.strerror or 'cannot be read').lower()}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"recipe {path}: not TOML: {str(error).lower()}") from error
    values = {}
    for key, value in content.items():
        if key not in KEYS:
            raise RecipeError(f"recipe {path}: unknown key {key!r}; {_nearest(key)}")
        try:
            values[key] = KEYS[key](value, path.parent)
        except ValueError as error:
            raise RecipeError(f"recipe {path}: {key} is {value!r}; {error}") from None
    return values
