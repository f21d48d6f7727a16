"""The output layer of a published model: which of its stored tensors are used.

A file may store the output matrix beside the token table although the two are tied, and BERT's
output bias under two names. Transformers ties two tensors only if they are equal, or if one of them
is missing.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transformer_jax.pretrained.files import Entry


@dataclass(frozen=True)
class OutputLayer:
    """The names of the tensors of a family's output layer, and of those that they are tied to."""

    matrix: str
    table: str  # of the tokens
    bias: str | None = None  # None: the bias has a single name
    tied_bias: str | None = None


def resolve_output(
    config: Any, entries: dict[str, Entry], layer: OutputLayer
) -> tuple[Any, dict[str, Entry]]:
    """Return the configuration and the tensors of a model whose output layer is found by its names.

    The configuration is untied if the file holds an output matrix that is not the token table. The
    token table of a tied model may be stored under either name.

    Raises PretrainedError if the tensors cannot be read.
    """
    entries, tied = dict(entries), config.tied_head
    if tied and layer.matrix in entries:
        table = entries.setdefault(layer.table, entries[layer.matrix])
        if _equal(entries[layer.matrix], table):
            del entries[layer.matrix]
        else:
            config = replace(config, tied_head=False)
    if layer.bias is not None and layer.tied_bias is not None:
        if layer.bias in entries:  # the output layer adds this one
            entries[layer.tied_bias] = entries[layer.bias]
        elif tied and layer.tied_bias in entries:
            entries[layer.bias] = entries[layer.tied_bias]
        if config.tied_head:
            entries.pop(layer.bias, None)
    return config, entries


def _equal(one: Entry, other: Entry) -> bool:
    same_place = (one.path, one.start) == (other.path, other.start)
    return same_place or (one.shape == other.shape and np.array_equal(one.read(), other.read()))
