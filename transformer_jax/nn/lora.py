"""LoRA: training of low-rank matrices that are added to the kernels of a model.

Hu et al., 2021, https://arxiv.org/abs/2106.09685. Every kernel W of the layers is replaced by

    W' = W + (alpha / rank) A B

with A [inputs, rank] and B [rank, outputs]. B begins at zero, so the model begins unchanged. After
training only W' is kept: a plain model again, as fast as before.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.functional.precision import wide_dtype
from transformer_jax.nn.parameters import kernel, zeros
from transformer_jax.parallel.axes import named_parameters, parameter_name

ALPHA = 16.0


def add_low_rank(
    kernel: Float[Array, "..."], a: Float[Array, "... R"], b: Float[Array, "R ..."], scale: float
) -> Float[Array, "..."]:
    """Return W + scale A B, in the dtype of W.

    A has the input axes of W, B its output axes.

    >>> add_low_rank(jnp.zeros((2, 2)), jnp.array([[1.0], [2.0]]), jnp.array([[1.0, 0.0]]), 3.0)
    Array([[3., 0.],
           [6., 0.]], dtype=float32)
    """
    dtype = wide_dtype(kernel.dtype, a.dtype, b.dtype)
    change = jnp.tensordot(a.astype(dtype), b.astype(dtype), axes=1)
    return (kernel.astype(dtype) + scale * change).astype(kernel.dtype)


def input_axes(name: str) -> int | None:
    """Return how many axes of a layer's kernel are inputs; None for any other parameter."""
    if ".layers." not in name or not name.endswith("kernel"):
        return None
    return 2 if name.endswith("attention.out_kernel") else 1


class LowRank(nnx.Module):
    """The matrices A and B of one kernel."""

    def __init__(self, shape: tuple[int, ...], inputs: int, rank: int, *, rngs: nnx.Rngs):
        self.a = kernel(rngs, *shape[:inputs], rank, inputs=inputs)
        self.b = zeros(rank, *shape[inputs:])


class Lora(nnx.Module):
    """A model with matrices A and B for every kernel of its layers.

    It is called like the model, and computes with W'. It freezes no parameter of the model: that is
    the optimizer's task.
    """

    def __init__(self, model: nnx.Module, rank: int, *, alpha: float = ALPHA, rngs: nnx.Rngs):
        self.model = model
        self.factors = nnx.Dict(
            {
                name: LowRank(leaf.shape, inputs, rank, rngs=rngs)
                for name, leaf in named_parameters(nnx.state(model, nnx.Param))
                if (inputs := input_axes(name))
            }
        )
        self.scale = alpha / rank

    def __call__(self, *args, **options):
        params = merged(nnx.state(self, nnx.Param), self.scale)
        return nnx.merge(nnx.graphdef(self.model), params)(*args, **options)


def merged(params: nnx.State, scale: float) -> nnx.State:
    """Return the parameters of the plain model, from those of a `Lora` with this `scale`."""
    factors: Any = params["factors"]  # the state of A and B by the kernel's name

    def plain(path, leaf):
        name = parameter_name(path)
        if name not in factors:
            return leaf
        return add_low_rank(leaf, factors[name]["a"][...], factors[name]["b"][...], scale)

    return jax.tree_util.tree_map_with_path(plain, params["model"])
