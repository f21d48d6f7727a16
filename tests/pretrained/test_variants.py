"""Checkpoints with other settings or heads give the logits that PyTorch computed, and survive being
saved.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from tests.data.checkpoints.variants import LOGITS, VARIANTS, positions, tokens, write
from transformer_jax.pretrained import from_pretrained, save_pretrained

EXPECTED = load_file(LOGITS)


def logits(folder, variant):
    """Computed eagerly: the operations have few shapes, and each variant is another program."""
    model, text = from_pretrained(folder), tokens(variant)
    found = model(jnp.asarray(text), jnp.ones(text.shape, bool))
    return model, np.asarray(found[0, positions(variant)])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_changed_checkpoint_gives_the_logits_of_pytorch_and_is_saved_as_it_is(name, tmp_path):
    variant = VARIANTS[name]
    model, found = logits(write(variant, tmp_path / "given"), variant)
    np.testing.assert_allclose(found, EXPECTED[name], rtol=1e-4, atol=2e-5)
    save_pretrained(model, tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    assert again.config == model.config
    for part, kept in zip(*(map(np.asarray, _leaves(one)) for one in (again, model)), strict=True):
        np.testing.assert_array_equal(part, kept)


def _leaves(model):
    return jax.tree.leaves(nnx.state(model, nnx.Param))
