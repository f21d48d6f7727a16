"""The worked examples of the source documents, computed again through this library, step by step.

    from transformer_jax.walkthrough.worked import steps
    for step in steps("cat_sat"):
        print(step.name, "=", step.equation)

`worked_examples.json` holds for each the inputs, what the document prints, what it should print,
and which of the two agree. `docs/research/errata.md` is made from it.
"""

from transformer_jax.walkthrough.worked.examples import EXAMPLES
from transformer_jax.walkthrough.worked.registry import WORKED, steps

__all__ = ["EXAMPLES", "WORKED", "steps"]
