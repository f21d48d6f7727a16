"""Code shared by the objectives: batches made on access, and sums over batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import nnx

from transformer_jax.parallel.mesh import gather, keep_whole, settled, split_rows


@dataclass(frozen=True)
class LazyBatches(Sequence[Any]):
    """A sequence of batches, each made from its plan on access; a slice is also a LazyBatches."""

    plans: Sequence[Any]
    make: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, k: int | slice) -> Any:
        if isinstance(k, slice):
            return replace(self, plans=self.plans[k])
        return self.make(self.plans[k])


def make_sums(
    graph: nnx.GraphDef, sums: Callable[[nnx.Module, Any], Sequence[jax.Array]], batches: Sequence
) -> Callable[[nnx.State], list[float]]:
    """Return a function of the weights that adds up `sums(model, batch)` over all batches."""

    @jax.jit
    def of_batch(params, batch):
        return keep_whole(sums(nnx.merge(graph, gather(params)), batch))

    def total(params) -> list[float]:
        found = [settled(of_batch(params, split_rows(b))) for b in batches]
        found = [map(float, sums) for sums in found]
        return [sum(column) for column in zip(*found, strict=True)]

    return total
