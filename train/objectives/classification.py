"""Losses of a text classifier, and token dropout."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.dropout import keep
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.text.tokenizer_protocol import TextTokenizer


def cross_entropy(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], smoothing: float = 0.0
) -> Float[Array, " B"]:
    """Return the cross-entropy with label smoothing of each example.

    -sum_c q_c log p_c with q = (1 - smoothing) onehot(label) + smoothing / C, and p the softmax of
    the logits z. It is computed as logsumexp(z) - (1 - smoothing) z_label - smoothing mean(z),
    without an array for q.
    """
    logits = logits.astype(jnp.float32)
    of_label = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    likely = (1 - smoothing) * of_label + smoothing * logits.mean(axis=1)
    return jax.nn.logsumexp(logits, axis=1) - likely


def squared_hinge(logits: Float[Array, "B C"], labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the squared hinge loss of each example.

    It is the sum over classes c other than the label of max(0, 1 - (z_label - z_c))^2, z the
    logits. An example that is right by a margin of 1 has no gradient, whereas cross-entropy would
    keep raising its confidence (Tang, 2013, https://arxiv.org/abs/1306.0239; over pairs of
    classes as in Crammer and Singer, 2001). The logits are not log-probabilities until they are
    scaled by a temperature.
    """
    logits = logits.astype(jnp.float32)
    of_label = jnp.take_along_axis(logits, labels[:, None], axis=1)
    short = jnp.maximum(0, 1 - (of_label - logits)) ** 2
    return jnp.where(jnp.arange(logits.shape[1]) == labels[:, None], 0, short).sum(axis=1)


def drop_tokens(
    tokens: Int[Array, "B T"],
    is_token: Bool[Array, "B T"],
    rate: float,
    tokenizer: TextTokenizer,
    rngs: nnx.Rngs,
) -> Int[Array, "B T"]:
    """Replace each token by the mask token with probability `rate`; keep [CLS] and [SEP].

    This keeps a classifier from relying on single words.
    """
    if rate == 0.0:
        return tokens
    frame = [i for i in (tokenizer.cls_id, tokenizer.sep_id) if i is not None]
    kept = keep(rngs.dropout(), rate, tokens.shape) | jnp.isin(tokens, jnp.array(frame, jnp.int32))
    return jnp.where(kept | ~is_token, tokens, tokenizer.mask_id)


def balanced_weights(labels: Int[np.ndarray, " n"], classes: int) -> Float[np.ndarray, " C"]:
    """Return the weight of each class with which all classes of n texts count the same.

    It is n / (C n_c), with n_c the number of texts of the class and C that of classes with a text;
    1 for a class without a text.

    >>> balanced_weights(np.array([0, 0, 0, 2]), 3).round(2).tolist()
    [0.67, 1.0, 2.0]
    """
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts, len(labels) / (np.maximum(counts, 1) * max(1, (counts > 0).sum())), 1.0)


def make_loss(
    tokenizer: TextTokenizer,
    *,
    token_dropout: float,
    smoothing: float,
    margin: bool = False,
    labelled: int | None = None,
    unlabelled_weight: float = 1.0,
    class_weights: Float[np.ndarray, " C"] | None = None,
):
    """Return a loss function: the cross-entropy of a batch, or squared hinge with `margin`.

    It gives the weighted sum over the examples and the sum of their weights. Rows that only fill
    the shape of the batch do not count. With `labelled`, examples whose index is not below it have
    pseudo-labels and the weight `unlabelled_weight`. With `class_weights`, an example also has the
    weight of its class.

    Raises ValueError for `margin` with smoothing, and for token dropout without a mask token.
    """
    if margin and smoothing:
        raise ValueError("a squared hinge has no probabilities: label smoothing must be 0")
    if token_dropout and tokenizer.mask_id is None:
        raise ValueError(
            f"token dropout needs a mask token, which the {tokenizer.spec} vocabulary lacks"
        )

    def loss(
        model: TextClassifier, batch, rngs: nnx.Rngs
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        tokens = drop_tokens(batch.tokens, batch.is_token, token_dropout, tokenizer, rngs)
        logits = model(tokens, batch.is_token, rngs=rngs)
        losses = (
            squared_hinge(logits, batch.labels)
            if margin
            else cross_entropy(logits, batch.labels, smoothing)
        )
        weights = batch.is_example.astype(losses.dtype)
        if labelled is not None:
            weights = jnp.where(batch.index < labelled, weights, unlabelled_weight * weights)
        if class_weights is not None:
            weights *= jnp.asarray(class_weights, losses.dtype)[batch.labels]
        losses = jnp.where(batch.is_example, losses, 0)
        return (weights * losses).sum(), weights.sum()

    return loss
