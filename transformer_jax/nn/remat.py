"""Rematerialisation: a layer computed again in the backward pass, so that less is kept for it."""

from typing import Any

from flax import nnx

from transformer_jax.parallel.mesh import gather


def rematerialised(
    module: nnx.Module,
    x: Any,
    *args: Any,
    rngs: nnx.Rngs | None = None,
    method: str = "__call__",
    **options: Any,
) -> Any:
    """Return `module(x, *args, **options)`, and keep only its inputs for the backward pass.

    The backward pass computes it again, with the same dropout. On a mesh the parameters of the
    module are gathered in here, so that the whole ones are not kept either (ZeRO stage 3).

    Chen et al., 2016, https://arxiv.org/abs/1604.06174.

    >>> layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> rematerialised(layer, jnp.ones((1, 2))).shape
    (1, 3)
    """

    def again(module, x, rngs):
        graph, params = nnx.split(module)
        call = getattr(nnx.merge(graph, gather(params)), method)
        return call(x, *args, **options, **({} if rngs is None else {"rngs": rngs}))

    # With updates, NNX would return the parameters too.
    return nnx.remat(again, graph_updates=False)(module, x, rngs)
