"""Safetensors checkpoints: exact values by row ranges, every tensor accounted for, hostile files refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.compiler.checkpoint.open import open_checkpoint
from ingot.compiler.checkpoint.safetensors import INDEX, SINGLE, read_header, read_tensors
from ingot.compiler.checkpoint.spec import Checkpoint, CheckpointError, TensorSource
from safetensors.torch import load_file, save_file
from support.checkpoints import CASES, make_big_checkpoint, make_checkpoint
from support.models import source_of, transformers_model


def weights(checkpoint: Checkpoint) -> TensorSource:
    assert checkpoint.weights is not None
    return checkpoint.weights


def rewrite(path: Path, change: dict[str, Any]) -> Path:
    """Rewrite model.safetensors with tensors replaced, added, or (None) left out."""
    tensors = {**load_file(path / SINGLE), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path / SINGLE)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(path))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_models(case: str, tmp_path: Path) -> None:
    """Goal: every tensor has transformers' values under its canonical name, whole and by row ranges."""
    source = weights(open_checkpoint(str(make_checkpoint(tmp_path, case))))
    wanted = source_of(transformers_model(case))
    assert source.names() == wanted.names()
    for name in source.names():
        whole = source.read(name)
        assert source.shape(name) == whole.shape == wanted.shape(name)
        assert whole.dtype == np.float32
        assert np.array_equal(whole, wanted.read(name))
        rows = whole.shape[0]
        assert np.array_equal(source.read(name, rows // 3, rows - 1), whole[rows // 3 : rows - 1])
        assert source.read(name, rows, rows).shape == (0, *whole.shape[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_formats_are_exact(dtype: str, tmp_path: Path) -> None:
    """Goal: F32, F16 and BF16 widen without a bit lost."""
    path = make_checkpoint(tmp_path, "qwen2", dtype=dtype)
    found = weights(open_checkpoint(str(path))).read("layer.1.down.weight")
    stored = load_file(path / SINGLE)["model.layers.1.mlp.down_proj.weight"]
    assert stored.dtype == getattr(torch, dtype)
    assert np.array_equal(found, stored.float().numpy())


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    """Goal: a sharded checkpoint has the values of the single file."""
    one = weights(open_checkpoint(str(make_checkpoint(tmp_path, "llama3"))))
    many_path = make_checkpoint(tmp_path, "llama3", shards=4)
    many = weights(open_checkpoint(str(many_path)))
    assert len(list(many_path.glob("*.safetensors"))) >= 4
    assert all(np.array_equal(one.read(name), many.read(name)) for name in one.names())


def test_digest(tmp_path: Path) -> None:
    """Goal: the digest is of the weight files' bytes alone: it moves with one bit, and not with the folder's
    name.
    """
    path = make_checkpoint(tmp_path, "smollm2", shards=3)
    found = weights(open_checkpoint(str(path))).digest()
    files = sorted(path.glob("*.safetensors"))
    assert found == hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    path = path.rename(tmp_path / "elsewhere")
    assert weights(open_checkpoint(str(path))).digest() == found
    last = sorted(path.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\x01")
    assert weights(open_checkpoint(str(path))).digest() != found


def test_missing_leftover_and_misshapen(tmp_path: Path) -> None:
    """Goal: a tensor that is not there, not expected, or of another shape is named."""
    path = make_checkpoint(tmp_path, "llama2")
    original = load_file(path / SINGLE)
    name = "model.layers.1.self_attn.k_proj.weight"
    assert f"the tensor {name} is missing" in refused(rewrite(path, {name: None}))
    assert f"{name} has shape [32, 95]" in refused(rewrite(path, {name: torch.zeros(32, 95)}))
    left = {name: original[name], "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}
    assert "model.layers.0.self_attn.q_norm.weight" in refused(rewrite(path, left))
    layer = {
        "model.layers.0.self_attn.q_norm.weight": None,
        "model.layers.2.mlp.up_proj.weight": torch.ones(136, 96),
    }
    assert "model.layers.2.mlp.up_proj.weight" in refused(rewrite(path, layer))


def test_frequencies_of_old_releases_are_left_out(tmp_path: Path) -> None:
    """Goal: inv_freq buffers change nothing; a name that only looks like one is refused."""
    path = make_checkpoint(tmp_path, "llama2")
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
    before = weights(open_checkpoint(str(path))).names()
    rewrite(path, dict.fromkeys(names, torch.ones(8)) | {names[1]: torch.ones(4)})
    assert weights(open_checkpoint(str(path))).names() == before
    assert "inv_freq_scale" in refused(rewrite(path, {names[0] + "_scale": torch.ones(8)}))


def test_head_beside_a_tied_embedding(tmp_path: Path) -> None:
    """Goal: an equal head is the embedding; another one makes the model untied, as in transformers 5."""
    path = make_checkpoint(tmp_path, "smollm2")
    embed = load_file(path / SINGLE)["model.embed_tokens.weight"]
    equal = open_checkpoint(str(rewrite(path, {"lm_head.weight": embed.clone()})))
    assert equal.spec.tied_head
    assert "head.weight" not in weights(equal).names()
    other = embed.clone()
    other[1002, 71] += 1
    untied = open_checkpoint(str(rewrite(path, {"lm_head.weight": other})))
    assert not untied.spec.tied_head
    assert np.array_equal(weights(untied).read("head.weight"), other.float().numpy())
    assert "lm_head.weight has shape" in refused(rewrite(path, {"lm_head.weight": other[:1000].clone()}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    """Goal: reading a NaN or an infinity is an error that names tensor and row; other rows are read."""
    path = make_checkpoint(tmp_path, "llama2")
    name = "model.layers.1.mlp.up_proj.weight"
    tensor = load_file(path / SINGLE)[name]
    tensor[77, 5] = value
    source = weights(open_checkpoint(str(rewrite(path, {name: tensor}))))
    with pytest.raises(CheckpointError, match=rf"{name} has a NaN or an infinity in row 77"):
        source.read("layer.1.up.weight")
    assert source.read("layer.1.up.weight", 0, 77).shape == (77, 96)


@pytest.mark.parametrize(
    ("dtype", "said"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.float64, "F64")]
)
def test_other_formats_are_refused_by_name(dtype: torch.dtype, said: str, tmp_path: Path) -> None:
    """Goal: a quantised or wider checkpoint is refused, naming format and tensor."""
    path = make_checkpoint(tmp_path, "llama2")
    name = "model.layers.0.mlp.gate_proj.weight"
    text = refused(rewrite(path, {name: torch.zeros(136, 96).to(dtype)}))
    assert f"is {said}" in text
    assert name in text


def test_changed_while_reading(tmp_path: Path) -> None:
    """Goal: a file replaced after opening is an error, not a mixture."""
    path = make_checkpoint(tmp_path, "llama2")
    source = weights(open_checkpoint(str(path)))
    source.read("embed.weight", 0, 1)
    os.utime(path / SINGLE, ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while it was read"):
        source.read("embed.weight", 0, 1)


def write_header(path: Path, header: object, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(shape: Any, offsets: Any, kind: Any = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"a": entry([2], [0, 8])}, b"\0" * 7, "cut off"), ({"a": entry([2], [0, 8])}, b"\0" * 9,
        "describes"),
        ({"a": entry([2], [0, 4])}, b"\0" * 4, "need 8"), ({"a": entry([-2], [0, 8])}, b"\0" * 8, "shape"),
        ({"a": entry([2], [8, 0])}, b"\0" * 8, "takes -8 bytes"), ({"a": entry([True], [0, 4])}, b"\0" * 4,
        "shape"),
        ({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, b"\0" * 12, "overlaps"),
        ({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, b"\0" * 12, "hole"),
        ({"a": entry([1 << 62, 1 << 62], [0, 8])}, b"\0" * 8, "shape"), ({"a": entry([1] * 9, [0, 4])},
        b"\0" * 4, "shape"),
        ({"a": entry("2", [0, 8])}, b"\0" * 8, "shape"), ({"a": entry([2], [0, 8.0])}, b"\0" * 8, "lies at"),
        ({"a": entry([2], [0])}, b"\0" * 8, "lies at"), ({"a": entry([2], [0, 1 << 70])}, b"\0" * 8,
        "lies at"),
        ({"a": entry([2], [0, 8], "F99")}, b"\0" * 8, "unknown format"), ({"a": entry([2], [0, 8], [])},
        b"\0" * 8, "format"),
        ({"a": 3}, b"", "malformed"), ({"a": {"dtype": "F32"}}, b"", "malformed"), ([1], b"", "JSON object"),
        (b'{"a": 1, "a": 2}', b"", "twice"), (b"{", b"", "not valid JSON"), (b"\xff", b"", "not UTF-8"),
    ],
)  # fmt: skip
def test_hostile_headers(header: object, data: bytes, said: str, tmp_path: Path) -> None:
    """Goal: every way in which a header can lie is refused before a byte of data is used."""
    with pytest.raises(CheckpointError, match=r"m\.safetensors") as caught:
        read_header(write_header(tmp_path / "m.safetensors", header, data))
    assert said in str(caught.value)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001, 3, 0])
def test_hostile_header_length(length: int, tmp_path: Path) -> None:
    """Goal: a header length beyond the file, or that cuts the header, is refused without allocating it."""
    path = write_header(tmp_path / "m.safetensors", {"a": entry([1], [0, 4])}, b"\0" * 4, length)
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        read_header(path)


@settings(max_examples=150, deadline=None)
@given(
    cut=st.floats(0, 1), flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4)
)
def test_mutated_files(
    cut: float, flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Goal: a cut or flipped file opens or gives a CheckpointError: nothing else."""
    data = bytearray()
    header = {
        "a": entry([2, 3], [0, 24]),
        "__metadata__": {"format": "pt"},
        "b": entry([2], [24, 28], "BF16"),
    }
    text = json.dumps(header).encode()
    data += len(text).to_bytes(8, "little") + text + b"\0" * 28
    for position, value in flips:
        data[position % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(data[: int(len(data) * cut) if flips else len(data)])
    try:
        tensors = read_header(path)
    except CheckpointError:
        return
    assert all(tensor.offset + tensor.size <= len(data) for tensor in tensors.values())


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "", "x.bin", 3, None,
    ".safetensors",
             "a\\b.safetensors", "model\n.safetensors"],
)  # fmt: skip
def test_index_names_no_paths(name: object, tmp_path: Path) -> None:
    """Goal: an index can name files beside it, and nothing else."""
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="must name a file beside it"):
        read_tensors(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    """Goal: a tensor in two shards, in another one than said, unlisted, or in none is named."""
    one = write_header(tmp_path / "one.safetensors", {"a": entry([1], [0, 4])}, b"\0" * 4).name
    two = write_header(tmp_path / "two.safetensors", {"a": entry([1], [0, 4])}, b"\0" * 4).name
    for weight_map, said in (
        ({"a": one, "b": two}, "is in one.safetensors and in two.safetensors"),
        ({"b": one}, '"a" is in one.safetensors'),
        ({"a": one, "b": one}, '"b" is missing from one.safetensors'),
        ({"a": "three.safetensors"}, "three.safetensors is missing"),
        ({}, "no weight_map"),
        (["a"], "no weight_map"),
    ):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError) as caught:
            read_tensors(tmp_path)
        assert said in str(caught.value)


def test_no_weights(tmp_path: Path) -> None:
    """Goal: pickles are never read, and the error says what to do; an empty folder says what is missing."""
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        read_tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickles are never read"):
        read_tensors(tmp_path)


READ_ALL = """
import sys
from pathlib import Path
from ingot.compiler.checkpoint.open import open_checkpoint
def peak():  # KiB of this program alone: ru_maxrss would count what the parent held when it forked
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
source = open_checkpoint(sys.argv[1]).weights
base = peak()
for name in source.names():
    rows = source.shape(name)[0]
    for begin in range(0, rows, 512):
        source.read(name, begin, min(rows, begin + 512))
source.digest()
print(peak() - base)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Goal: reading a 400 MB checkpoint in slices, and hashing it, never holds more than a few slices."""
    path = make_big_checkpoint(tmp_path, 400 << 20)
    assert sum(file.stat().st_size for file in path.iterdir()) > 300 << 20
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(path)], check=True, capture_output=True, text=True, timeout=120
    )
    slice_bytes = 512 * 8192 * 4
    assert int(done.stdout) * 1024 <= 2 * slice_bytes + (32 << 20)
