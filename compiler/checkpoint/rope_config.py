"""The rope part of `config.json` -> RopeSpec, in every spelling that transformers has written.

Release 5 has one `rope_parameters`, flat or per layer type; before it, `rope_theta` stood beside an optional
`rope_scaling` whose kind was `type` and later `rope_type`. Kinds that recompute frequencies while running
(dynamic, longrope) are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plans.layout import Limit
from .files import integer, number, show
from .spec import CheckpointError, RopeKind, RopeSpec

ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")
KINDS = (RopeKind.DEFAULT, RopeKind.LINEAR, RopeKind.LLAMA3, RopeKind.YARN)
SHARED = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"})
OF_KIND: Mapping[RopeKind, frozenset[str]] = {
    RopeKind.DEFAULT: frozenset({"factor", "original_max_position_embeddings"}),  # transformers ignores both
    RopeKind.LINEAR: frozenset({"factor", "original_max_position_embeddings"}),
    RopeKind.LLAMA3: frozenset({"factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings"}),
    RopeKind.YARN: frozenset({
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    }),
}  # fmt: skip
THETA_MAX = 1e12
FACTOR_MAX = 65536.0


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one set of rope parameters, flat. Per layer type is accepted when all types say the same."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    for key, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, Mapping):
            raise CheckpointError(f"{key} is {show(value)}; it must be an object or null")
    if old and new and dict(old) != dict(new):
        raise CheckpointError("rope_scaling and rope_parameters are both given and differ; keep one of them")
    found: Mapping[str, Any] = old or new or {}
    nested = {key: value for key, value in found.items() if isinstance(value, Mapping)}
    if not nested:
        return found
    types = config.get("layer_types")
    used = [nested.get(kind) for kind in dict.fromkeys(map(str, types))] if isinstance(types, list) else []
    if len(nested) != len(found) or not used or used[0] is None or any(value != used[0] for value in used):
        raise CheckpointError(
            f"rope parameters are {show(dict(found))}; they must be the same for every layer type"
        )
    return used[0]


def _kind(parameters: Mapping[str, Any]) -> RopeKind:
    names = [parameters[key] for key in ("rope_type", "type") if parameters.get(key) is not None]
    name = names[0] if names else RopeKind.DEFAULT
    if len(names) == 2 and names[0] != names[1]:
        raise CheckpointError(
            f"rope_type {show(names[0])} and type {show(names[1])} differ; keep one of them"
        )
    if not isinstance(name, str) or name not in KINDS:
        raise CheckpointError(f"the rope kind {show(name)} is not supported; these are: {', '.join(KINDS)}")
    return RopeKind(name)


def read_rope(config: Mapping[str, Any], head_size: int, context: int) -> RopeSpec:
    """The RopeSpec of a config whose rope_theta holds at least the family's default.

    Raises CheckpointError for an unknown kind, an unknown or missing parameter, or a number out of range.
    """
    given = _parameters(config)
    kind = _kind(given)
    for key, value in given.items():
        if key not in SHARED and key not in OF_KIND[kind] and value is not None:
            raise CheckpointError(
                f"the rope parameter {show(key)} (value {show(value)}) is unknown for kind {kind}"
            )
    for values in (config, given):
        if values.get("partial_rotary_factor") not in (None, 1):
            raise CheckpointError(
                f"partial_rotary_factor is {show(values['partial_rotary_factor'])}; it must be 1"
            )
    theta = number(
        given if given.get("rope_theta") is not None else config, "rope_theta", 1.0 + 1e-6, THETA_MAX
    )
    found: dict[str, float] = {}
    if kind != RopeKind.DEFAULT:
        found["factor"] = number(given, "factor", 1.0, FACTOR_MAX)
    if kind in (RopeKind.LLAMA3, RopeKind.YARN):
        # transformers 5: the config's own key wins, then the parameter, then the context
        # (standardize_rope_params)
        source = config if config.get("original_max_position_embeddings") is not None else given
        found["original_max_position_embeddings"] = float(
            integer(source, "original_max_position_embeddings", 1, int(Limit.CONTEXT), context)
        )
    if kind == RopeKind.LLAMA3:
        found["low_freq_factor"] = number(given, "low_freq_factor", 1e-3, FACTOR_MAX)
        found["high_freq_factor"] = number(given, "high_freq_factor", 1e-3, FACTOR_MAX)
        if found["low_freq_factor"] >= found["high_freq_factor"]:
            raise CheckpointError("low_freq_factor must be less than high_freq_factor")
    if kind == RopeKind.YARN:
        for key, low in (("attention_factor", 1e-6), ("mscale", 0.0), ("mscale_all_dim", 0.0)):
            if given.get(key) is not None:
                found[key] = number(given, key, low, FACTOR_MAX)
        for key in ("beta_fast", "beta_slow"):
            if given.get(key):  # 0 is transformers' default too
                found[key] = number(given, key, 1e-3, FACTOR_MAX)
        truncate = given.get("truncate")
        if truncate is not None:
            if not isinstance(truncate, bool):
                raise CheckpointError(f"truncate is {show(truncate)}; it must be true or false")
            found["truncate"] = float(truncate)
    return RopeSpec(kind, theta, head_size, found)
