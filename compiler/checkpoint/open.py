"""Opens a checkpoint, whatever form it has: a directory, a config.json alone, a GGUF file, or a hub name.

This is the only function that the rest of the compiler calls. A hub name is downloaded first (the only place
that can reach a network, and only for a name that is no path here) and then is a directory like any other.
"""

from __future__ import annotations

import re
from pathlib import Path

from .config import model_spec
from .files import read_json_object, show
from .spec import Checkpoint, CheckpointError, TextFiles

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}")
HUB_TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip
HUB_WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")


def _download(name: str, config_only: bool) -> Path:
    """The local snapshot of a hub repository. Raises CheckpointError when it cannot be had."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"there is no file {name}, and downloading it needs huggingface_hub: pip install huggingface_hub"
        ) from error
    patterns = [*HUB_TEXT_FILES, *(() if config_only else HUB_WEIGHT_FILES)]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the library raises its own and its transport's
        kind = type(error).__name__
        raise CheckpointError(
            f"{name} is neither a path here nor a repository that can be downloaded ({kind}); check the "
            "name, the network and the access token, or give a directory"
        ) from error


def _open_directory(directory: Path, name: str, config_only: bool) -> Checkpoint:
    from .safetensors import open_safetensors
    from .tokenizer import read_text

    path = directory / "config.json"
    if not path.exists():
        raise CheckpointError(
            f"{directory} has no config.json; give a transformers checkpoint directory or a .gguf file"
        )
    spec = model_spec(read_json_object(path))
    spec, text = read_text(directory, spec)
    if config_only:
        return Checkpoint(spec, text, None, name)
    spec, weights = open_safetensors(directory, spec)
    return Checkpoint(spec, text, weights, name)


def open_checkpoint(path_or_name: str, config_only: bool = False) -> Checkpoint:
    """Open a checkpoint directory, a GGUF file, a config.json (no weights, no text), or a hub name
    `owner/model`.

    With config_only no weight is read and `weights` is None. Raises CheckpointError, one line, for anything
    that cannot be compiled.
    """
    if not path_or_name or not path_or_name.isprintable():
        raise CheckpointError(
            f"there is no file or directory {show(path_or_name)}; give a checkpoint directory"
        )
    path = Path(path_or_name)
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{show(path_or_name)} cannot be a path; give a checkpoint directory"
        ) from error
    if is_directory:
        return _open_directory(path, path.resolve().name, config_only)
    if is_file:
        if path.suffix == ".gguf":
            from .gguf import open_gguf

            return open_gguf(path, config_only)
        if path.suffix == ".json":
            spec = model_spec(read_json_object(path))
            return Checkpoint(spec, TextFiles(None, None, {}, False, {}), None, path.resolve().parent.name)
        raise CheckpointError(f"{path} is not a checkpoint; give a directory, a .gguf file or a config.json")
    if HUB_NAME.fullmatch(path_or_name) and not path.is_absolute():
        return _open_directory(_download(path_or_name, config_only), path_or_name, config_only)
    raise CheckpointError(
        f"there is no file or directory {path_or_name}; give a checkpoint directory or a .gguf file"
    )
