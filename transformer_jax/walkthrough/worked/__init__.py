"""The worked examples of the source documents, computed again through this library, step by step.

    from transformer_jax.walkthrough.worked import steps
    for step in steps("cat_sat"):
        print(step.name, "=", step.equation)

`worked_examples.json` holds for each the inputs, what the document prints, what it should print,
and which of the two agree. `docs/research/errata.md` is made from it.
"""

import json
from collections.abc import Callable
from importlib import resources

import jax

from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked import attention, layers, positions, scores, texts

EXAMPLES: dict[str, dict] = {
    example["id"]: example
    for example in json.loads(
        resources.files("transformer_jax.walkthrough")
        .joinpath("worked_examples.json")
        .read_text("utf-8")
    )
}
_FUNCTIONS = attention.WORKED | scores.WORKED | layers.WORKED | positions.WORKED | texts.WORKED
WORKED: dict[str, Callable[[dict], list[Step]]] = {name: _FUNCTIONS[name] for name in EXAMPLES}


def steps(name: str) -> list[Step]:
    """The steps of one example, in the order in which one would compute them by hand.

    In float64 and without shortcuts in products, so that all digits are those of the example.
    """
    if name not in WORKED:
        raise ValueError(f"there is no worked example {name!r}; there are {', '.join(WORKED)}")
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return WORKED[name](EXAMPLES[name])
