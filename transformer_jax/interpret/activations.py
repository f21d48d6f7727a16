"""What a trained classifier computes on its way through one text: its rows, its layers and their
maps.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.attention.masks import padding
from transformer_jax.functional.regions import max_patches
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.context import LayerContext
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Inside:
    """A row is a token, or a patch of neighbouring tokens where the model reads patches; P rows."""

    ids: Int[np.ndarray, " T"]
    tokens: tuple[str, ...]  # the text of each id
    rows: tuple[str, ...]  # the text of each row
    cut: int  # tokens of the text that were not read
    separators: np.ndarray  # [P] True where [SEP] stands
    token_vectors: (
        Float[np.ndarray, "T E"] | None
    )  # each token's own row of the table; None for patches
    patches: Float[np.ndarray, "P F"] | None  # the strongest regions of each patch; None for tokens
    inputs: list[Float[np.ndarray, "P D"]]  # of every layer, and what leaves the last one
    attended: list[Float[np.ndarray, "P D"]]  # what the attention of every layer reads
    output: Float[np.ndarray, "P D"]  # of the encoder
    maps: list[Float[np.ndarray, "N P P"]]  # the weights of every layer


def look_inside(classifier: Trained, text: str) -> Inside:
    """One text, without padding, as `predict` would read it."""
    config, tokenizer = classifier.spec.config, classifier.tokenizer
    (ids,), (cut,) = tokenizer.encode_with_cuts([text], config.max_length, classifier.spec.truncate)
    tokens = tuple(token_text(tokenizer, int(i)) for i in ids)
    width = config.patch_width or 1
    starts = range(0, len(ids), width)
    rows = tuple(" ".join(tokens[i : i + width]) for i in starts)
    arrays = jax.tree.map(np.asarray, _forward(classifier.model, jnp.asarray(ids)[None]))
    return Inside(
        ids,
        tokens,
        rows,
        int(cut),
        np.array([tokenizer.sep_id in ids[i : i + width] for i in starts]),
        **arrays,
    )


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """The token itself; its name where it is none of the text."""
    names = {tokenizer.cls_id: "[CLS]", tokenizer.sep_id: "[SEP]", tokenizer.pad_id: "[PAD]"}
    return names.get(id) or tokenizer.decode([id]).strip()


def attention_parameters(classifier: Trained, layer: int) -> dict[str, jax.Array]:
    """The arguments of `multi_head_attention` of a layer, by name."""
    attention = classifier.model.encoder.layers[layer].attention
    kinds = ("query", "key", "value", "out")
    names = [f"{kind}_{part}" for kind in kinds for part in ("kernel", "bias")]
    return {name: getattr(attention, name)[...] for name in names}


@jax.jit
def _forward(model: TextClassifier, tokens):
    """The steps of `TextClassifier` up to its pooling, for a text without padding, each kept."""
    is_token = jnp.ones_like(tokens, bool)
    patches = token_vectors = None
    if model.patch_width:
        features = model.regions(tokens, is_token)
        patches, is_seen = max_patches(features, is_token, model.patch_width)
        x = model.embedding(patches, is_seen)
    else:
        table = model.embedding.token.embedding[...]
        table = table[len(table) // 2] if table.ndim == 3 else table  # its place in its own region
        token_vectors = table[tokens]
        x, is_seen = model.embedding(tokens, is_token), is_token
    inputs, attended, maps = [x], [], []
    for layer in model.encoder.layers:
        attended.append(layer.attention_norm(x) if layer.config.norm == "pre" else x)
        x, weights = layer(x, LayerContext(mask=padding(is_seen), return_weights=True))
        inputs.append(x)
        maps.append(weights)
    output = x if model.encoder.final_norm is None else model.encoder.final_norm(x)
    arrays = {
        "token_vectors": token_vectors,
        "patches": patches,
        "inputs": inputs,
        "attended": attended,
        "output": output,
        "maps": maps,
    }
    return jax.tree.map(lambda array: array[0], arrays)
