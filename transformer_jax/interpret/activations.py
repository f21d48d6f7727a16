"""The activations of a trained classifier for one text: embeddings, layers, attention weights."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.embeddings import BertEmbedding
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.tokenizer_protocol import TextTokenizer


@dataclass(frozen=True)
class Activations:
    """The activations of a classifier for one text without padding.

    Each of the P rows is a token, or a patch of neighbouring tokens if the model reads patches.
    """

    ids: Int[np.ndarray, " T"]
    tokens: tuple[str, ...]  # the text of each id
    rows: tuple[str, ...]  # the text of each row
    cut: int  # number of tokens that were not read because the text is too long
    separators: np.ndarray  # [P] True for the row of [SEP]
    # The row of each token in the embedding table; None if the model reads patches.
    token_vectors: Float[np.ndarray, "T E"] | None
    # The maximum over the regions of each patch; None if the model reads tokens.
    patches: Float[np.ndarray, "P F"] | None
    inputs: list[Float[np.ndarray, "P D"]]  # the input of every layer
    attended: list[Float[np.ndarray, "P D"]]  # the input of every layer's attention
    output: Float[np.ndarray, "P D"]  # the output of the encoder
    maps: list[Float[np.ndarray, "N P P"]]  # the attention weights of every layer


def read_activations(classifier: Trained, text: str) -> Activations:
    """Compute the activations of one text, truncated as in `predict` but without padding."""
    config, tokenizer = classifier.spec.config, classifier.tokenizer
    (ids,), (cut,) = tokenizer.encode_with_cuts([text], config.max_length, classifier.spec.truncate)
    tokens = tuple(token_text(tokenizer, int(i)) for i in ids)
    width = config.patch_width or 1
    starts = range(0, len(ids), width)
    rows = tuple(" ".join(tokens[i : i + width]) for i in starts)
    arrays = jax.tree.map(np.asarray, _run(classifier.model, jnp.asarray(ids)[None]))
    return Activations(
        ids,
        tokens,
        rows,
        int(cut),
        np.array([tokenizer.sep_id in ids[i : i + width] for i in starts]),
        **arrays,
    )


def token_text(tokenizer: TextTokenizer, id: int) -> str:
    """Return the text of a token, or the name of a special token such as [CLS]."""
    names = {tokenizer.cls_id: "[CLS]", tokenizer.sep_id: "[SEP]", tokenizer.pad_id: "[PAD]"}
    return names.get(id) or tokenizer.decode([id]).strip()


def attention_parameters(classifier: Trained, layer: int) -> dict[str, jax.Array]:
    """Return the attention parameters of a layer by their `multi_head_attention` argument names."""
    attention = classifier.model.encoder.layers[layer].attention
    kinds = ("query", "key", "value", "out")
    names = [f"{kind}_{part}" for kind in kinds for part in ("kernel", "bias")]
    return {name: getattr(attention, name)[...] for name in names}


@jax.jit
def _run(model: TextClassifier, tokens: Int[Array, "1 T"]) -> dict[str, Array | list | None]:
    _, maps, states = model(
        tokens, jnp.ones_like(tokens, bool), return_weights=True, return_states=True
    )
    *inputs, output = states.layers
    attended = [
        layer.attention_norm(x)
        if layer.attention_norm is not None and layer.config.norm == "pre"
        else x
        for layer, x in zip(model.encoder.layers, inputs, strict=True)
    ]
    token_vectors = None
    if isinstance(model.embedding, BertEmbedding):
        table = model.embedding.token.embedding[...]
        # A region embedding has a table for each place; a token is in the middle of its region.
        table = table[len(table) // 2] if table.ndim == 3 else table
        token_vectors = table[tokens]
    arrays = {
        "token_vectors": token_vectors,
        "patches": states.patches,
        "inputs": inputs,
        "attended": attended,
        "output": output,
        "maps": maps,
    }
    return jax.tree.map(lambda array: array[0], arrays)
