"""GGUF files: the same model as the transformers checkpoint, every tensor type by row ranges, hostile files
refused.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.compiler.checkpoint.gguf import TYPES, ggml_sizes, gguf_spec
from ingot.compiler.checkpoint.gguf_file import GgufFile, read_gguf
from ingot.compiler.checkpoint.open import open_checkpoint
from ingot.compiler.checkpoint.spec import Checkpoint, CheckpointError, RopeKind, TensorSource
from ingot.compiler.graph.rope import rope_frequencies
from support.gguf_checkpoints import GGUF_CASES, gguf_tensor_name, make_gguf, smollm2_gguf


def weights(checkpoint: Checkpoint) -> TensorSource:
    assert checkpoint.weights is not None
    return checkpoint.weights


@pytest.fixture(scope="module")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf"), "llama2")


@pytest.mark.parametrize("case", GGUF_CASES)
def test_same_model_as_the_checkpoint(case: str, tmp_path: Path) -> None:
    """Goal: spec, tensors, special tokens and template are those of the directory the file was made from."""
    made = open_checkpoint(str(make_gguf(tmp_path, case, weights="F32")))
    source = open_checkpoint(str(tmp_path / f"{case}-float32-seed0-shards1"))
    eps = float(np.float32(source.spec.norm_eps))
    assert replace(made.spec, rope=source.spec.rope) == replace(source.spec, norm_eps=eps)
    found, wanted = (rope_frequencies(one.spec.rope, one.spec.context) for one in (made, source))
    assert np.allclose(found.inverse_frequency, wanted.inverse_frequency, rtol=3e-6, atol=0)
    assert found.attention_factor == pytest.approx(wanted.attention_factor, rel=1e-6)
    assert made.text.special == source.text.special
    assert (made.text.template, made.text.add_bos) == (source.text.template, source.text.add_bos)
    assert weights(made).names() == weights(source).names()
    for name in weights(source).names():
        whole = weights(source).read(name)
        assert weights(made).shape(name) == whole.shape
        assert np.array_equal(weights(made).read(name), whole), name
        rows = whole.shape[0]
        for begin, end in ((0, 1), (rows // 3, rows // 2 + 1), (rows - 1, rows), (rows // 2, rows // 2)):
            assert np.array_equal(weights(made).read(name, begin, end), whole[begin:end]), (name, begin, end)


def test_llama3_scaling_is_kept() -> None:
    """Goal: the factors of rope_freqs.weight divide the inverse frequencies, and ones are no factors."""
    from ingot.compiler.checkpoint.spec import RopeSpec

    plain = RopeSpec(RopeKind.DEFAULT, 10000.0, 8)
    scaled = replace(plain, factors=(1.0, 2.0, 4.0, 8.0))
    divided = rope_frequencies(plain, 128).inverse_frequency / np.array([1, 2, 4, 8], np.float32)
    assert np.array_equal(rope_frequencies(scaled, 128).inverse_frequency, divided)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_values(kind: str, tmp_path: Path) -> None:
    """Goal: a quantised tensor reads as what its blocks say, in transformers' row order."""
    made = open_checkpoint(str(make_gguf(tmp_path, "smollm3_interval", weights=kind)))
    source = weights(open_checkpoint(str(tmp_path / "smollm3_interval-float32-seed0-shards1")))
    for name in ("layer.1.q.weight", "layer.2.k.weight", "layer.0.v.weight", "embed.weight"):
        wanted = source.read(name)
        error = np.abs(weights(made).read(name) - wanted).max() / np.abs(wanted).max()
        assert 0 < error < {"F16": 1e-3, "BF16": 1e-2, "Q8_0": 1e-2}.get(kind, 0.15)
        # each row is quantised by itself, so quantising in transformers' order gives the same bytes
        quantised = gguf.quants.quantize(wanted, gguf.GGMLQuantizationType[kind])
        exact = gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType[kind])
        assert np.array_equal(weights(made).read(name), exact)


def random_blocks(kind: str, rows: int, elements: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random rows of a type whose values are finite: bytes below 0x3C make small float16 scales."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return np.random.default_rng(seed).integers(0, 0x3C, (rows, elements // block * size), dtype=np.uint8)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_by_rows(kind: str, tmp_path: Path) -> None:
    """Goal: every supported type reads by any row range as gguf-py dequantises the whole."""
    from ingot.compiler.checkpoint.gguf import GgufWeights

    rows, elements = 37, 512
    data = random_blocks(kind, rows, elements, 5)
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path, ggml_sizes())
    tensor = file.tensors["blk.0.ffn_up.weight"]
    assert (tensor.type, tensor.shape) == (kind, (rows, elements))
    source = GgufWeights(file.file, {"layer.0.up.weight": tensor}, 64, 64, permuted=True)
    wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.isfinite(wanted).all()
    assert np.array_equal(source.read("layer.0.up.weight"), wanted)
    assert np.array_equal(source.read("layer.0.up.weight", 11, 30), wanted[11:30])


def test_non_finite_scale(tmp_path: Path) -> None:
    """Goal: a block whose scale is infinite is an error that names the tensor."""
    path = make_gguf(tmp_path, "smollm3_interval", weights="Q8_0")
    file = read_gguf(path, ggml_sizes())
    tensor = file.tensors["blk.0.attn_v.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.offset + 5 * tensor.row_bytes : tensor.offset + 5 * tensor.row_bytes + 2] = b"\x00\x7c"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_v\.weight has a NaN or an infinity in row 5"):
        weights(open_checkpoint(str(path))).read("layer.0.v.weight")


def test_partial_rotary_order() -> None:
    """Goal: with fewer rotated elements than the head has, only those change places."""
    from ingot.compiler.checkpoint.gguf import GgufWeights

    source = GgufWeights(None, {}, head_size=8, rotary=4, permuted=True)  # type: ignore[arg-type]
    rows = np.arange(16, dtype=np.float32).reshape(16, 1)
    assert source._half_split(rows)[:, 0].tolist() == [0, 2, 1, 3, 4, 5, 6, 7, 8, 10, 9, 11, 12, 13, 14, 15]


def test_released_file() -> None:
    """Goal: the SmolLM2-135M file gives the known model, with q in the order of transformers."""
    checkpoint = open_checkpoint(str(smollm2_gguf()))
    spec = checkpoint.spec
    assert (spec.layers, spec.hidden, spec.vocabulary) == (30, 576, 49152)
    assert (spec.query_heads, spec.kv_heads) == (9, 3)
    assert (spec.tied_head, spec.eos_tokens, spec.bos_token, spec.context) == (True, (2,), 1, 8192)
    q = read_gguf(smollm2_gguf(), ggml_sizes()).tensors["blk.3.attn_q.weight"]
    data = np.fromfile(smollm2_gguf(), np.uint8, q.size, offset=q.offset).reshape(576, q.row_bytes)
    whole = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[q.type]).reshape(9, 32, 2, 576)
    wanted = whole.transpose(0, 2, 1, 3).reshape(576, 576)  # as transformers' LlamaTensorProcessor undoes it
    assert np.array_equal(weights(checkpoint).read("layer.3.q.weight"), wanted)


def test_config_only_reads_no_weight(llama_gguf: Path) -> None:
    """Goal: sizing a plan needs the head of the file alone."""
    checkpoint = open_checkpoint(str(llama_gguf), config_only=True)
    assert checkpoint.weights is None
    assert checkpoint.spec.layers == 2


def changed(path: Path, change: dict[str, Any], drop: tuple[str, ...] = ()) -> GgufFile:
    """A parsed file with some metadata changed, and tensors left out."""
    file = read_gguf(path, ggml_sizes())
    metadata = {key: value for key, value in {**file.metadata, **change}.items() if value is not ...}
    return GgufFile(file.file, metadata, {k: v for k, v in file.tensors.items() if k not in drop})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "gemma2"}, "gemma2"), ({"general.architecture": ["llama"]}, "architecture"),
        ({"general.type": "adapter"}, "adapter"), ({"split.count": 3}, "one of several parts"),
        ({"llama.expert_count": 8}, "expert_count is 8"), ({"llama.attn_logit_softcapping": 50.0},
        "softcapping"),
        ({"llama.embedding_length": ...}, "embedding_length is missing"), ({"llama.block_count": 0},
        "block_count"),
        ({"llama.attention.head_count": [6, 6]}, "head_count"), ({"llama.attention.head_count": 7},
        "7 query heads"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
        ({"llama.attention.value_length": 24}, "one size"), ({"llama.rope.dimension_count": 15}, "even"),
        ({"llama.rope.dimension_count": 32}, "dimension_count"), ({"llama.rope.freq_base": 0.0}, "freq_base"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"), ({"llama.rope.scaling.type": 3}, "scaling"),
        ({"llama.rope.scaling.type": "linear"}, "factor is missing"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}, "original_context_length"),
    ],
)  # fmt: skip
def test_bad_metadata(change: dict[str, Any], said: str, llama_gguf: Path) -> None:
    """Goal: unknown or impossible metadata is refused by name."""
    with pytest.raises(CheckpointError) as caught:
        gguf_spec(changed(llama_gguf, change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_old_linear_key_and_window(llama_gguf: Path) -> None:
    """Goal: rope.scale_linear is linear scaling; a llama file's sliding window is Mistral's."""
    spec = gguf_spec(changed(llama_gguf, {"llama.rope.scale_linear": 2.0}))
    assert (spec.rope.kind, dict(spec.rope.parameters)) == (RopeKind.LINEAR, {"factor": 2.0})
    spec = gguf_spec(changed(llama_gguf, {"llama.attention.sliding_window": 24}))
    assert (spec.architecture, spec.layer_window) == ("MistralForCausalLM", (24, 24))
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        gguf_spec(changed(llama_gguf, {}, ("token_embd.weight",)))


def test_missing_and_leftover_tensors(tmp_path: Path) -> None:
    """Goal: a file without a tensor, or with one more, is refused naming it."""
    path = make_gguf(tmp_path, "llama2")
    data = path.read_bytes()
    for old, new in (
        (b"blk.1.attn_k.weight", b"blk.1.attn_j.weight"),
        (b"blk.0.ffn_up.weight", b"blk.9.ffn_up.weight"),
    ):
        assert data.count(old) == 1
        path.write_bytes(data.replace(old, new))
        with pytest.raises(CheckpointError, match=rf"the tensor {old.decode()} is missing"):
            open_checkpoint(str(path))
    assert gguf_tensor_name("model.layers.1.self_attn.k_proj.weight") == "blk.1.attn_k.weight"


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def head(version: int = 3, tensors: int = 0, keys: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def tensor_record(name: bytes = b"a", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cut off"), (b"GGU", "cut off"), (head(magic=b"GGML"), "does not begin with GGUF"),
        (head(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"), (head(keys=1 << 40), "at most"),
        (head(tensors=1 << 40), "at most"), (head(keys=1), "cut off"), (head(keys=1) + string(b"k"),
        "cut off"),
        (head(keys=1) + struct.pack("<Q", 1 << 62), "at most"), (head(keys=1) + string(b"\xff"), "not UTF-8"),
        (head(keys=1) + string(b"k") + struct.pack("<I", 13), "unknown type 13"),
        (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1), "unsupported type 9"),
        (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 40), "at most"),
        (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 20), "cut off"),
        (head(keys=2) + (string(b"k") + struct.pack("<IB", 0, 1)) * 2, "twice"),
        (head(keys=1) + string(b"general.alignment") + struct.pack("<II", 4, 24), "power of two"),
        (head(keys=1) + string(b"general.alignment") + struct.pack("<II", 4, 0), "power of two"),
        (head(tensors=1) + tensor_record(dims=(1,) * 5), "at most 4"),
        (head(tensors=1) + tensor_record(dims=()), "at least 1"),
        (head(tensors=1) + tensor_record(dims=(0,)), "at least 1"),
        (head(tensors=1) + tensor_record(dims=(1 << 60,)), "at most"),
        (head(tensors=1) + tensor_record(kind=99), "unsupported ggml type 99"),
        (head(tensors=1) + tensor_record(kind=26), "unsupported ggml type 26"),
        (head(tensors=1) + tensor_record(dims=(33,), kind=8), "multiple of 32"),
        (head(tensors=1) + tensor_record(), "ends after the file"),
        (head(tensors=1) + tensor_record(offset=1 << 40), "ends after the file"),
        (head(tensors=1) + tensor_record(offset=4) + b"\0" * 512, "not aligned"),
        (head(tensors=2) + tensor_record() + tensor_record(b"b", offset=96) + b"\0" * 512, "overlaps"),
        (head(tensors=2) + tensor_record() + tensor_record(offset=128) + b"\0" * 512, "twice"),
    ],
)  # fmt: skip
def test_hostile_files(data: bytes, said: str, tmp_path: Path) -> None:
    """Goal: each way in which a head can lie is refused before anything is allocated for it."""
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path, ggml_sizes())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(
    cut=st.integers(0, 1 << 16),
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
)
def test_mutated_files(
    cut: int, flips: list[tuple[int, int]], llama_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Goal: a real file cut or flipped in its head opens or gives one CheckpointError."""
    data = bytearray(llama_gguf.read_bytes())
    for position, value in flips:
        data[position] = value
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(data[: len(data) - cut])
    try:
        open_checkpoint(str(path), config_only=True)
    except CheckpointError as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal
