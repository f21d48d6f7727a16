"""The named axes of every parameter, by its name.

A mesh has named axes too (`parallel.mesh`); two maps from the names here to the names there say
how a parameter is sharded. Model code names neither. Parameters are found by name, because the
optimizer state, the averaged weights, checkpoints and safetensors files share their names.
"""

import re
from typing import Any

import jax

# The axes: `embed` D, `heads` N or K, `hidden` F, `vocab` V, the tokens or the classes. An axis
# named "." is never split; "..." is any number of such axes.
RULES = (
    (r".*attention\.(query|key|value)_kernel", "embed heads ."),
    (r".*attention\.(query|key|value)_bias", "heads ."),
    (r".*attention\.out_kernel", "heads . embed"),
    (r".*feed_forward\.(in|gate)_kernel", "embed hidden"),
    (r".*feed_forward\.(in|gate)_bias", "hidden"),
    (r".*feed_forward\.out_kernel", "hidden embed"),
    (r".*(attention|feed_forward)\.out_bias", "."),
    (r".*norm\.(scale|bias)", "."),
    (r".*token\.embedding", "vocab embed"),
    (r".*(token|region)\.embedding", ". vocab embed"),
    (r".*(position|segment)\.embedding", ". embed"),
    (r"(.*\.)?head(\.output)?\.kernel", "embed vocab"),
    (r"(.*\.)?head\.bias", "vocab"),
    (r".*(linear|pooler|projection|patches)\.kernel", "embed ."),
    (r".*(linear|pooler|projection|patches)\.bias", "."),
    (r".*regions\.bias", "."),
    (r".*evidence\.(weight|square)", ". ."),
    (r".*evidence\.bias", "."),
    (r"(.*\.)?factors\..*\.(a|b)", "..."),  # the two matrices of LoRA
)


def axes_of(name: str, ndim: int) -> tuple[str, ...]:
    """Return the names of the axes of a parameter with `ndim` axes, found by its dotted name.

    Raises ValueError unless exactly one rule of `RULES` is for this name and number of axes.

    >>> axes_of("encoder.layers.0.attention.query_kernel", 3)
    ('embed', 'heads', '.')
    """
    found = [
        (".",) * ndim if axes == "..." else tuple(axes.split())
        for pattern, axes in RULES
        if re.fullmatch(pattern, name) and (axes == "..." or len(axes.split()) == ndim)
    ]
    if len(found) != 1:
        raise ValueError(
            f"{name}, a parameter with {ndim} axes, matches {len(found) or 'no'} rules of "
            "transformer_jax/parallel/axes.py, but must match one; add a rule for it there"
        )
    return found[0]


def parameter_name(path: tuple) -> str:
    """Return the dotted name of a parameter, such as encoder.layers.0.attention.out_kernel."""
    keys = (getattr(entry, "key", None) for entry in path)
    return ".".join(str(key) for key in keys if key is not None)


def named_parameters(params: Any) -> list[tuple[str, Any]]:
    """Return every parameter with its dotted name, in the order of the tree."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return [(parameter_name(path), leaf) for path, leaf in flat]
