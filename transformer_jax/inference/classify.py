"""Class probabilities of texts, from a trained classifier."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.inference.texts import as_text, as_texts
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.parallel.mesh import replicate, split_rows
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import (
    Batches,
    bucket_lengths,
    evaluation_plans,
    in_order,
    round_lengths,
)


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
        self,
        encoded: Sequence[np.ndarray],
        params: nnx.State | None = None,
        *,
        buckets: Sequence[int] | None = None,
    ) -> Float[np.ndarray, "n C"]:
        """Compute the class probabilities of encoded texts, in the order of the texts.

        `params` replaces the weights of the model, and `buckets` the lengths of batches, if they
        are given.
        """
        params = replicate(self.params if params is None else params)
        buckets = self.buckets if buckets is None else buckets
        plans = evaluation_plans([len(ids) for ids in encoded], buckets, self.batch_tokens)
        batches = Batches(plans, encoded, None, self.pad_id)
        return in_order(
            (
                (batch, self._probabilities(params, *split_rows((batch.tokens, batch.is_token))))
                for batch in batches
            ),
            len(encoded),
        )


class Classifier:
    """A trained classifier of texts, as `transformer_jax.load` returns it.

    Its compiled functions are kept: texts are padded to a few fixed lengths
    (`text.batching.round_lengths`), and a text whose padded length was met before is not compiled
    again. `trained` has the model, the tokenizer and the specification.
    """

    def __init__(self, trained: Trained, *, batch_tokens: int = 8192):
        self.trained = trained
        longest = trained.spec.max_length
        self._scorer = Scorer(
            trained.model, trained.tokenizer.pad_id, (longest,), max(batch_tokens, longest)
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return self.trained.spec.classes

    def predict(self, texts: Iterable[str]) -> np.ndarray:
        """Predict the name of the class of every text, in the order of the texts.

        `texts` is a list, a NumPy array or a pandas Series. An empty text gets a class too. A text
        that is longer than the model's max_length is cut. Raises TypeError for a single str, or if
        a text is not a str.

        >>> from transformer_jax import load
        >>> load("tests/data/run_folders/imdb").predict(["a fine film", "the plot was dull"])
        array(['positive', 'negative'], dtype='<U8')
        """
        probabilities = self._scored(as_texts(texts, "predict"))[0]
        return np.array(self.classes)[probabilities.argmax(axis=1)]

    def predict_proba(self, texts: Iterable[str]) -> Float[np.ndarray, "n C"]:
        """Predict the probability of each class for every text, in the order of `classes`.

        The arguments and errors are those of `predict`.
        """
        return self._scored(as_texts(texts, "predict_proba"))[0]

    def predictions(self, texts: Iterable[str]) -> list[Prediction]:
        """Predict every text as `predict` does, and say how much of it the model read."""
        texts = as_texts(texts, "predictions")
        probabilities, lengths, cuts = self._scored(texts)
        predictions = []
        for text, row, length, cut in zip(texts, probabilities, lengths, cuts, strict=True):
            best = int(row.argmax())
            predictions.append(
                Prediction(
                    text,
                    self.classes[best],
                    float(row[best]),
                    {name: float(p) for name, p in zip(self.classes, row, strict=True)},
                    tokens=length,
                    tokens_cut=cut,
                )
            )
        return predictions

    def explain(self, text: str, *, name: str | None = None, limit: int = 512) -> Explanation:
        """Compute the attribution of every word of a text to the log odds of a class.

        The class is `name`, by default the predicted one. See `interpret.explain`. Raises TypeError
        if the text is not a str, and InputError if `name` is not a class.
        """
        return explain(self.trained, as_text(text, "text"), name=name, limit=limit)

    def _scored(self, texts: list[str]) -> tuple[np.ndarray, list[int], list[int]]:
        """Return the probabilities of the classes, the tokens that were read, and those cut."""
        if not texts:
            return np.zeros((0, len(self.classes)), np.float32), [], []
        spec = self.trained.spec
        encode = self.trained.tokenizer.encode_with_cuts
        encoded, cuts = encode(texts, spec.max_length, spec.truncate)
        lengths = [len(ids) for ids in encoded]
        buckets = bucket_lengths(
            round_lengths(lengths, spec.max_length), spec.max_length, num_buckets=4
        )
        return self._scorer(encoded, buckets=buckets), lengths, cuts.tolist()


def predict(
    classifier: Trained, texts: Sequence[str], *, batch_tokens: int = 8192
) -> list[Prediction]:
    """Predict the class of every text, in order. An empty text gets a prediction too.

    A batch has at most `batch_tokens` tokens, or one text of the model's max_length if that is
    longer. A `Classifier` does the same and keeps what was compiled.
    """
    return Classifier(classifier, batch_tokens=batch_tokens).predictions(texts)
