"""The worked examples of the source documents, recomputed step by step with this library.

    from transformer_jax.walkthrough.worked import steps
    for step in steps("cat_sat"):
        print(step.name, "=", step.equation)

For each example, `worked_examples.json` has the inputs, the numbers that the document prints, the
correct numbers, and whether they agree. `docs/research/errata.md` is generated from it.
"""

from transformer_jax.walkthrough.worked.examples import EXAMPLES
from transformer_jax.walkthrough.worked.registry import WORKED, steps

__all__ = ["EXAMPLES", "WORKED", "steps"]
