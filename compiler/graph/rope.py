"""Rotary frequencies of every rope kind, as transformers computes them (modeling_rope_utils.py, release 5).

The power is taken in float64 and rounded to float32, then the formulas run in float32 in transformers' order:
the plan's bytes must not depend on a machine's vector maths, and the result is what torch gives but for a
rare last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.spec import RopeKind, RopeSpec

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """inverse_frequency (rotary_dims / 2,) float32 in radians a token; attention_factor multiplies cosines
    and sines.
    """

    inverse_frequency: F32
    attention_factor: float


def _powers(rope: RopeSpec) -> F32:
    """theta ** (2 i / rotary_dims) for each pair i, float32."""
    exponent = np.arange(0, rope.rotary_dims, 2, dtype=np.float32) / np.float32(rope.rotary_dims)
    return np.power(np.float64(rope.theta), exponent.astype(np.float64)).astype(np.float32)


def _llama3(rope: RopeSpec, inverse: F32) -> F32:
    """`_compute_llama3_parameters`: long wavelengths are divided by the factor, middle ones blended."""
    parameters = rope.parameters
    factor, original = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    wavelength = np.float32(2 * math.pi) / inverse
    scaled = np.where(wavelength > np.float32(original / low), inverse / np.float32(factor), inverse)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - smooth) * scaled / np.float32(factor) + smooth * scaled
    middle = (wavelength >= np.float32(original / high)) & (wavelength <= np.float32(original / low))
    return np.where(middle, blended, scaled).astype(np.float32)


def _yarn_mscale(scale: float, mscale: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _yarn_attention_factor(rope: RopeSpec, factor: float) -> float:
    parameters = rope.parameters
    if "attention_factor" in parameters:
        return float(parameters["attention_factor"])
    mscale, mscale_all_dim = parameters.get("mscale", 0), parameters.get("mscale_all_dim", 0)
    if mscale and mscale_all_dim:
        return _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all_dim)
    return _yarn_mscale(factor)


def _yarn(rope: RopeSpec, context: int, powers: F32) -> RopeFrequencies:
    """`_compute_yarn_parameters` (arXiv 2309.00071): a ramp from extrapolated to interpolated pairs."""
    parameters, dims = rope.parameters, rope.rotary_dims
    original = float(parameters["original_max_position_embeddings"])
    factor = float(parameters.get("factor", context / original))

    def correction(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = correction(float(parameters.get("beta_fast") or 32))
    high = correction(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    pairs = np.arange(dims // 2, dtype=np.float32)
    ramp = np.clip((pairs - np.float32(low)) / np.float32(high - low), np.float32(0), np.float32(1))
    extrapolated = np.float32(1) - ramp
    blended = (np.float32(1) / (np.float32(factor) * powers)) * (np.float32(1) - extrapolated)
    blended = blended + (np.float32(1) / powers) * extrapolated
    return RopeFrequencies(blended.astype(np.float32), _yarn_attention_factor(rope, factor))


def rope_frequencies(rope: RopeSpec, context: int) -> RopeFrequencies:
    """Frequencies of `rope` for a model made for `context` tokens. Raises KeyError for a parameter its kind
    needs.

    A rope of kind NONE has no pairs.
    """
    if rope.kind == RopeKind.NONE:
        return RopeFrequencies(np.zeros(0, np.float32), 1.0)
    powers = _powers(rope)
    inverse: F32 = (np.float32(1) / powers).astype(np.float32)
    if rope.kind == RopeKind.YARN:
        return _yarn(rope, context, powers)
    if rope.kind == RopeKind.LINEAR:
        inverse = np.divide(inverse, np.float32(rope.parameters["factor"]), dtype=np.float32)
    elif rope.kind == RopeKind.LLAMA3:
        inverse = _llama3(rope, inverse)
    else:
        assert rope.kind == RopeKind.DEFAULT, rope.kind
        if rope.factors:
            inverse = np.divide(inverse, np.asarray(rope.factors, np.float32), dtype=np.float32)
    return RopeFrequencies(inverse.astype(np.float32), 1.0)
