"""The activations of a trained classifier for one text: its rows, layers and attention weights."""

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
    """The arrays of one text without padding.

    Each of the P rows is a token, or a patch of neighbouring tokens where the model reads patches.
    """

    ids: Int[np.ndarray, " T"]
    tokens: tuple[str, ...]  # the text of each id
    rows: tuple[str, ...]  # the text of each row
    cut: int  # tokens of the text that were not read
    separators: np.ndarray  # [P] True where [SEP] stands
    token_vectors: (
        Float[np.ndarray, "T E"] | None
    )  # each token's own row of the table; None for patches
    patches: Float[np.ndarray, "P F"] | None  # the strongest regions of each patch; None for tokens
    inputs: list[Float[np.ndarray, "P D"]]  # of every layer
    attended: list[Float[np.ndarray, "P D"]]  # what the attention of every layer reads
    output: Float[np.ndarray, "P D"]  # of the encoder
    maps: list[Float[np.ndarray, "N P P"]]  # the weights of every layer


def read_activations(classifier: Trained, text: str) -> Activations:
    """Return the activations of one text, read without padding as `predict` reads it."""
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
        table = table[len(table) // 2] if table.ndim == 3 else table  # its place in its own region
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
