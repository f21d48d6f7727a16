"""Class probabilities of texts, from a trained classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.parallel.mesh import replicate, split_rows
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import Batches, bucket_lengths, evaluation_plans, in_order


@dataclass(frozen=True)
class Prediction:
    text: str
    label: str
    probability: float
    probabilities: dict[str, float]
    tokens: int  # number of tokens that the model read
    tokens_cut: int  # number of tokens cut, because the text was longer than max_length


class Scorer:
    """A compiled function from encoded texts to class probabilities.

    Texts of similar length share a batch. Each batch shape compiles once.
    """

    def __init__(
        self,
        model: TextClassifier | EncoderClassifier,
        pad_id: int | None,
        buckets: Sequence[int],
        batch_tokens: int,
    ):
        graph, self.params = nnx.split(model, nnx.Param)
        self.pad_id, self.buckets, self.batch_tokens = pad_id, buckets, batch_tokens

        @jax.jit
        def probabilities(params, tokens, is_token):
            logits = nnx.merge(graph, params)(tokens, is_token)
            return jax.nn.softmax(logits.astype(jnp.float32))

        self._probabilities = probabilities

    def __call__(
        self, encoded: Sequence[np.ndarray], params: nnx.State | None = None
    ) -> Float[np.ndarray, "n C"]:
        """Compute the class probabilities of encoded texts, in the order of the texts.

        `params` replaces the weights of the model if it is given.
        """
        params = replicate(self.params if params is None else params)
        plans = evaluation_plans([len(ids) for ids in encoded], self.buckets, self.batch_tokens)
        batches = Batches(plans, encoded, None, self.pad_id)
        return in_order(
            (
                (batch, self._probabilities(params, *split_rows((batch.tokens, batch.is_token))))
                for batch in batches
            ),
            len(encoded),
        )


def predict(
    classifier: Trained, texts: Sequence[str], *, batch_tokens: int = 8192
) -> list[Prediction]:
    """Predict the class of every text, in order. An empty text gets a prediction too.

    A batch has at most `batch_tokens` tokens, or one text if that is longer.
    """
    if not texts:
        return []
    spec, tokenizer = classifier.spec, classifier.tokenizer
    encoded, cuts = tokenizer.encode_with_cuts(texts, spec.max_length, spec.truncate)
    buckets = bucket_lengths([len(ids) for ids in encoded], spec.max_length, num_buckets=4)
    scorer = Scorer(classifier.model, tokenizer.pad_id, buckets, max(batch_tokens, buckets[-1]))
    predictions = []
    for text, ids, cut, row in zip(texts, encoded, cuts, scorer(encoded), strict=True):
        best = int(row.argmax())
        predictions.append(
            Prediction(
                text,
                spec.classes[best],
                float(row[best]),
                {name: float(p) for name, p in zip(spec.classes, row, strict=True)},
                tokens=len(ids),
                tokens_cut=int(cut),
            )
        )
    return predictions
