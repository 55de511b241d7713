"""The sampler against an independent numpy implementation, its random numbers against published vectors."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from ingot.plans.layout import SAMPLING, TOP_LOGPROBS_MAX
from support.native import native

VOCABULARY = 257
PROMPT_BIT = 0x8000


@cache
def probe() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native("libcore_probe.so")))
    library.probe_uniform.restype = ctypes.c_double
    library.probe_uniform.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
    library.probe_exp.restype = ctypes.c_float
    library.probe_exp.argtypes = [ctypes.c_float]
    library.probe_log.restype = ctypes.c_double
    library.probe_log.argtypes = [ctypes.c_double]
    library.probe_sample.restype = ctypes.c_uint32
    return library


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Case:
    """One row: logits, token counts, position, and the fields of a SamplingRecord that are not off."""

    logits: np.ndarray
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))
    position: int = 10
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logits = np.ascontiguousarray(self.logits, dtype=np.float32)
        if not self.counts.size:
            self.counts = np.zeros(self.logits.size, np.uint16)
        off = {
            "top_p": 1.0,
            "repetition_penalty": 1.0,
            "max_tokens": 100,
            "prompt_count": 4,
            "temperature": 1.0,
        }
        self.fields = {**off, **self.fields}

    def sample(self) -> Sampled:
        """What the runtime samples."""
        size, tops = self.logits.size, 1 + TOP_LOGPROBS_MAX
        scratch = np.full(2 * size, np.nan, np.float32)
        tokens, logprobs = np.zeros(tops, np.uint32), np.zeros(tops, np.float32)
        token = probe().probe_sample(
            self.logits.ctypes.data_as(ctypes.c_void_p), size, self.counts.ctypes.data_as(ctypes.c_void_p),
            SAMPLING.pack(**self.fields), self.position, scratch.ctypes.data_as(ctypes.c_void_p),
            tokens.ctypes.data_as(ctypes.c_void_p), logprobs.ctypes.data_as(ctypes.c_void_p),
        )  # fmt: skip
        count = min(int(self.fields.get("top_logprobs", 0)), size)
        top = [(int(tokens[i]), float(logprobs[i])) for i in range(1, 1 + count)]
        return Sampled(token, float(logprobs[0]), top)

    def kept(self) -> np.ndarray:
        """The reference: probability of every token, float64, by sorting."""
        get = self.fields.get
        x = self.logits.astype(np.float64)
        x[np.isnan(x)] = -np.inf
        for token, value in zip(get("bias_tokens", ()), get("bias_values", ()), strict=True):
            x[token] += value
        seen, made = self.counts != 0, (self.counts & 0x7FFF).astype(np.float64)
        penalty = float(get("repetition_penalty"))
        x[seen] = np.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty)
        x -= made * float(get("frequency_penalty", 0.0))
        x -= (made > 0) * float(get("presence_penalty", 0.0))
        if self.position - int(get("prompt_count")) < int(get("min_tokens", 0)):
            x[[*get("stop_tokens", ()), *get("eos_tokens", ())]] = -np.inf
        order = sorted(range(x.size), key=lambda i: (-x[i], i))
        temperature = float(get("temperature"))
        if temperature == 0:
            return np.eye(x.size)[order[0]]
        weights = np.exp((x - x.max()) / temperature)
        if top_k := int(get("top_k", 0)):
            order = order[:top_k]
        total, running, chosen = weights[order].sum(), 0.0, []
        for token in order:
            chosen.append(token)
            running += weights[token]
            if running >= float(np.float32(get("top_p"))) * total:
                break
        result = np.zeros(x.size)
        for token in chosen:
            if weights[token] >= float(get("min_p", 0.0)):
                result[token] = weights[token]
        return result / result.sum()

    def expected(self) -> int:
        """The token that the reference's inverse CDF gives for this seed and position."""
        running = np.cumsum(self.kept())
        u = probe().probe_uniform(int(self.fields.get("seed", 0)), self.position)
        return int(np.argmax(running > u * running[-1]))


def logits(seed: int, scale: float = 2.0, size: int = VOCABULARY) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def counts(seed: int, size: int = VOCABULARY) -> np.ndarray:
    random = np.random.default_rng(seed)
    made = random.integers(0, 4, size) * (random.random(size) < 0.3)
    return (made | np.where(random.random(size) < 0.2, PROMPT_BIT, 0)).astype(np.uint16)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Goal: Philox4x32-10 gives the vectors of Random123's kat_vectors."""
    out = (ctypes.c_uint32 * 4)()
    probe().probe_philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), out)
    assert tuple(out) == expected


def test_uniform_depends_on_the_whole_seed_and_the_position() -> None:
    """Goal: u is in [0, 1), and every bit of the seed and of the position changes it."""
    base = probe().probe_uniform(0, 0)
    others = [probe().probe_uniform(1 << bit, 0) for bit in range(64)]
    others += [probe().probe_uniform(0, 1 << bit) for bit in range(32)]
    assert len({base, *others}) == 97
    assert all(0 <= u < 1 for u in others)


def test_exp_and_log_are_accurate() -> None:
    """Goal: exp within 2e-7 relative over [-87, 0], 0 below; log within 1e-15 relative."""
    for x in np.linspace(-86.9, 0, 5001).astype(np.float32):
        assert probe().probe_exp(x) == pytest.approx(math.exp(float(x)), rel=2e-7)
    assert [probe().probe_exp(x) for x in (0.0, -0.0, -87.5, -1e30, -math.inf)] == [1, 1, 0, 0, 0]
    for x in np.geomspace(1e-3, 2e6, 4001):
        assert probe().probe_log(x) == pytest.approx(math.log(x), rel=1e-15, abs=2e-16)


FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 7},
    "top_k_1": {"top_k": 1},
    "top_k_half": {"top_k": VOCABULARY // 2, "top_p": 0.97},
    "top_k_over_half": {"top_k": VOCABULARY // 2 + 1},
    "top_k_all": {"top_k": VOCABULARY + 5},
    "top_p": {"top_p": 0.6},
    "top_p_tiny": {"top_p": 1e-6},
    "min_p": {"min_p": 0.2},
    "min_p_1": {"min_p": 1.0},
    "all": {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.75},
    "penalties": {
        "repetition_penalty": 0.8,
        "presence_penalty": -2.0,
        "frequency_penalty": 2.0,
        "top_p": 0.7,
    },
    "bias": {"bias_count": 3, "bias_tokens": (3, 5, 256), "bias_values": (4.0, -100.0, 100.0)},
    "min_tokens": {
        "min_tokens": 7,
        "stop_count": 2,
        "stop_tokens": (8, 9),
        "eos_count": 1,
        "eos_tokens": (10,),
    },
    "greedy_penalised": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_token_is_the_references(name: str) -> None:
    """Goal: for many logits, seeds and positions the sampled token is exactly the reference's."""
    for seed in range(150):
        case = Case(
            logits(seed), counts(seed + 1000), 5 + seed % 20, {**FIELDS[name], "seed": seed * 77777777777}
        )
        assert case.sample().token == case.expected()


@pytest.mark.parametrize("name", ["plain", "top_k", "top_p", "min_p", "all", "penalties"])
def test_the_distribution_is_the_references(name: str) -> None:
    """Goal: over 20,000 positions the frequencies pass a chi-square test on the reference (z < 5)."""
    case = Case(
        logits(1, 1.0, 24), counts(2, 24), 0, {**FIELDS[name], "top_k": 7 if "top_k" in FIELDS[name] else 0}
    )
    case.fields["prompt_count"] = 0
    probabilities = case.kept()
    seen = np.zeros(24)
    for position in range(20000):
        case.position = position
        seen[case.sample().token] += 1
    assert seen[probabilities == 0].sum() == 0
    wanted = probabilities[probabilities > 0] * 20000
    statistic = ((seen[probabilities > 0] - wanted) ** 2 / wanted).sum()
    freedom = wanted.size - 1
    assert (statistic - freedom) / math.sqrt(2 * max(freedom, 1)) < 5


def test_top_p_boundary_is_inclusive() -> None:
    """Goal: of four equal tokens top_p 0.5 keeps exactly two, the lowest ids; just above, three."""
    for top_p, allowed in ((0.5, {0, 1}), (0.51, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        seen = {Case(np.zeros(4), position=i, fields={"top_p": top_p}).sample().token for i in range(4, 300)}
        assert seen == allowed


def test_ties_go_to_the_lowest_id() -> None:
    """Goal: greedy and top_k prefer the lowest of equal logits; -0 equals +0."""
    row = np.array([0.0, 2.0, -0.0, 2.0, 2.0], np.float32)
    assert Case(row, fields={"temperature": 0.0}).sample().token == 1
    assert {Case(row, position=i, fields={"top_k": 2}).sample().token for i in range(4, 200)} == {1, 3}
    zeros = np.array([-0.0, 0.0, -0.0], np.float32)
    assert Case(zeros, fields={"temperature": 0.0}).sample().token == 0
    assert {Case(zeros, position=i, fields={"top_k": 2}).sample().token for i in range(4, 200)} == {0, 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_of_the_unmodified_logits(temperature: float) -> None:
    """Goal: logprob and 20 alternatives match log-softmax of the raw logits to 1e-6, in order."""
    fields: dict[str, Any] = {"temperature": temperature, "top_logprobs": 20, "want_logprob": 1}
    for seed in range(30):
        row = np.round(logits(seed) * 4) / 4  # many ties
        case = Case(row, counts(seed), fields={**fields, "repetition_penalty": 2.0, "seed": seed})
        sampled = case.sample()
        wide = row.astype(np.float64)
        exact = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
        order = sorted(range(row.size), key=lambda i: (-row[i], i))[:20]
        assert [token for token, _ in sampled.top] == order
        assert np.allclose([value for _, value in sampled.top], exact[order], rtol=0, atol=1e-6)
        assert sampled.logprob == pytest.approx(exact[sampled.token], abs=1e-6)


def test_fewer_tokens_than_alternatives() -> None:
    """Goal: with a vocabulary below top_logprobs every token is listed once."""
    sampled = Case(np.arange(3), fields={"top_logprobs": 20, "temperature": 0.0}).sample()
    assert [token for token, _ in sampled.top] == [2, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_hostile_logits_have_a_defined_result(temperature: float) -> None:
    """Goal: NaN counts as -inf, +inf as the largest; nothing finite gives token 0; ids in range."""
    nan, inf = math.nan, math.inf
    cases = {
        0: [nan] * 5,
        3: [nan, -inf, nan, -8.0, nan],
        2: [nan, 1.0, inf, 3.0, -inf],
        1: [-3e38, 3e38, nan, 0, 1],
    }
    for token, row in cases.items():
        fields: dict[str, Any] = {"temperature": temperature, "top_logprobs": 5, "want_logprob": 1}
        for more in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1e30}):
            sampled = Case(np.array(row), np.full(5, 3, np.uint16), fields={**fields, **more}).sample()
            assert sampled.token == token or "repetition_penalty" in more
            assert sampled.token < 5
            assert not any(math.isnan(value) for _, value in sampled.top)
    assert Case(np.array([-inf] * 4), fields={"temperature": temperature}).sample().token == 0


def test_extreme_temperatures() -> None:
    """Goal: the smallest positive temperature is greedy, the largest uniform; neither overflows into NaN."""
    row = logits(5, size=8)
    for position in range(4, 60):
        cold = Case(row, position=position, fields={"temperature": 1e-45})
        assert cold.sample().token == int(row.argmax())
    hot = {Case(row, position=i, fields={"temperature": 3e38}).sample().token for i in range(4, 300)}
    assert hot == set(range(8))


def test_large_vocabulary_and_every_length_of_tail() -> None:
    """Goal: sizes around the vector width and a real vocabulary agree with the reference."""
    for size in (1, 2, 7, 8, 9, 15, 16, 17, 49152):
        for fields in ({}, {"top_k": 50, "top_p": 0.95}):
            case = Case(logits(size, size=size), fields={**fields, "seed": size})
            assert case.sample().token == case.expected()
