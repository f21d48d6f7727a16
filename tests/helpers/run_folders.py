"""Small run folders for tests."""

from pathlib import Path

from flax import nnx

from transformer_jax.serialization.run_folder import WEIGHTS, save_specification, save_weights
from transformer_jax.serialization.specification import Spec
from transformer_jax.text.tokenizer_protocol import TextTokenizer


def save_run(folder: Path, params: nnx.State, tokenizer: TextTokenizer, spec: Spec) -> None:
    """Write the three files that make a folder usable, as training does."""
    save_specification(folder, tokenizer, spec)
    save_weights(folder / WEIGHTS, params)
