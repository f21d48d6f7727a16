"""The settings of rotary positions in config.json: `rope_parameters`, since Transformers 5, and the
older `rope_scaling` beside `rope_theta`.

A setting that has two places must have one value. Names are those of Transformers'
modeling_rope_utils.py.
"""

import math
from typing import Any

from transformer_jax.nn.position_schemes import RopeScaling
from transformer_jax.pretrained.files import Settings

PLACES = ("rope_scaling", "rope_parameters")
LENGTH = "original_max_position_embeddings"
# The options of each type of scaling.
OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", LENGTH),
    "llama3": ("factor", LENGTH, "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor", LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate",
    ),
}  # fmt: skip
# What every type may have; `finetuned` is a note in published files.
COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")


def read_rope(settings: Settings, max_length: int) -> tuple[float, RopeScaling | None]:
    """Return the base and the scaling of rotary positions. `max_length` is that in the file.

    Raises PretrainedError for a scaling or an option that is not implemented, and for two values of
    a setting.
    """
    _check_whole_head(settings)
    parts = [part for name in PLACES if (part := settings.part(name)) and part.values]
    found = [_read(settings, part, max_length) for part in parts]
    if not found:
        return settings.number("rope_theta", 10_000.0), None
    base, scaling = found[0]
    if found[-1] not in ((base, scaling), (base, None)):
        what = "the scaling"
        if found[-1][0] != base:  # Transformers takes the default where rope_scaling has none
            what = f"rope_theta, which is {base} and {found[-1][0]}"
        raise settings.error(
            f"rope_scaling and rope_parameters disagree on {what}; write all of it into "
            "rope_parameters and remove rope_scaling"
        )
    return base, scaling


def read_base(settings: Settings, part: Settings, name: str, default: float) -> float:
    """Return the rope_theta of a part, or the setting `name` outside it, or the default.

    Raises PretrainedError if there are two values, or anything but the default type of rotary
    positions.
    """
    _check_whole_head(part)
    kind = _kind(part)
    if kind != "default":
        raise part.error(f"rope_type={kind!r} is not supported, 'default' is")
    _check_options(part, kind)
    return _base(settings, part, name, default)


def write_rope(base: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """Return the `rope_parameters` of a base and a scaling, the inverse of `read_rope`."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if scaling is None:
        return rope
    rope |= {"rope_type": scaling.scaling, "factor": scaling.factor}
    if scaling.scaling in ("llama3", "yarn"):
        rope[LENGTH] = scaling.original_length
    if scaling.scaling == "llama3":
        rope |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    if scaling.scaling == "yarn":
        names = ("beta_slow", "beta_fast", "truncate", "attention_factor")
        rope |= {name: value for name in names if (value := getattr(scaling, name)) is not None}
    return rope


def _read(settings: Settings, rope: Settings, max_length: int) -> tuple[float, RopeScaling | None]:
    _check_whole_head(rope)
    kind = _kind(rope)
    _check_options(rope, kind)
    base = _base(settings, rope, "rope_theta", 10_000.0)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, RopeScaling(kind, rope.number("factor"))
    if kind == "dynamic":
        rope.must_be(LENGTH, max_length)
        return base, RopeScaling(kind, rope.number("factor"))
    inside, outside = rope.whole(LENGTH, 0), settings.whole(LENGTH, 0)
    if inside and outside and inside != outside:
        raise settings.error(f"{LENGTH} is {inside} and {outside}; keep one of them")
    length = inside or outside or max_length
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return base, RopeScaling(kind, rope.number("factor"), length, low, high)
    return base, _yarn(rope, length, max_length)


def _yarn(rope: Settings, length: int, max_length: int) -> RopeScaling:
    """Return YaRN's scaling with the defaults of Transformers."""
    if "factor" not in rope.values:
        raise rope.error("factor is missing")
    factor = rope.number("factor", max_length / length)
    if "truncate" in rope.values and rope.values["truncate"] is None:
        raise rope.error("truncate must be true or false, got None")
    mscale, of_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    temperature = None
    if rope.values.get("attention_factor") is not None:
        temperature = rope.number("attention_factor")
    elif mscale and of_all and factor > 1:
        temperature = (0.1 * mscale * math.log(factor) + 1) / (0.1 * of_all * math.log(factor) + 1)
    return RopeScaling(
        "yarn",
        factor,
        length,
        beta_slow=rope.number("beta_slow", 1.0),
        beta_fast=rope.number("beta_fast", 32.0),
        truncate=rope.flag("truncate", True),
        attention_factor=temperature,
    )


def _kind(rope: Settings) -> str:
    """Return the type of scaling, which older files call `type`."""
    choices = {name: name for name in OPTIONS}
    return rope.renamed({"type": "rope_type"}).choice("rope_type", choices, "default")


def _check_options(rope: Settings, kind: str) -> None:
    known = (*COMMON, *OPTIONS[kind])
    unused = [name for name, value in rope.values.items() if value is not None]
    if unused := [name for name in unused if name not in known]:
        raise rope.error(
            f"rope_type {kind!r} does not use {unused[0]!r:.60}; remove it, or name the type that "
            "does"
        )


def _check_whole_head(settings: Settings) -> None:
    share = settings.number("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise settings.error(f"partial_rotary_factor={share} is not supported, 1.0 is")


def _base(settings: Settings, rope: Settings, name: str, default: float) -> float:
    inside, outside = rope.number("rope_theta", math.nan), settings.number(name, math.nan)
    given = [base for base in (inside, outside) if not math.isnan(base)]
    if given and given[0] != given[-1]:
        raise settings.error(
            f"rope_theta is {inside} with the type of positions, and {name} outside is {outside}; "
            "keep one of them"
        )
    return given[0] if given else default
