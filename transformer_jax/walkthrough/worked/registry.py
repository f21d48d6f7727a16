"""The worked examples by name, and the steps of each."""

from collections.abc import Callable

import jax

from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked import attention, layers, positions, scores, texts
from transformer_jax.walkthrough.worked.examples import EXAMPLES

_FUNCTIONS = attention.WORKED | scores.WORKED | layers.WORKED | positions.WORKED | texts.WORKED
WORKED: dict[str, Callable[[dict], list[Step]]] = {name: _FUNCTIONS[name] for name in EXAMPLES}


def steps(name: str) -> list[Step]:
    """Compute the steps of an example, in the order in which one would compute them by hand.

    They are computed in float64 and with full precision of products, so that all digits can be
    compared with those of the document. Raises ValueError for an unknown name.
    """
    if name not in WORKED:
        raise ValueError(f"there is no worked example {name!r}; there are {', '.join(WORKED)}")
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return WORKED[name](EXAMPLES[name])
