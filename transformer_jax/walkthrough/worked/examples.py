"""The inputs, the printed numbers and the correct numbers of every worked example."""

import json
from importlib import resources

_FILE = resources.files("transformer_jax.walkthrough").joinpath("worked_examples.json")

EXAMPLES: dict[str, dict] = {
    example["id"]: example for example in json.loads(_FILE.read_text("utf-8"))
}
