"""Class probabilities of texts, from a trained classifier."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.inference.texts import as_text, as_texts
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.parallel.mesh import (
    gather,
    keep_whole,
    place,
    settled,
    split_rows,
    use_any_mesh,
)
from transformer_jax.runtime.progress import SHORT, ProgressBar
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import (
    Batch,
    Batches,
    bucket_lengths,
    evaluation_plans,
    in_order,
    round_lengths,
)

ROWS = 256  # texts that are classified before the next; fewer cost more padding


@dataclass(frozen=True)
class Prediction:
    text: str
    label: str
    probability: float
    probabilities: dict[str, float]
    tokens: int  # number of tokens that the model read
    tokens_cut: int  # number of tokens cut, because the text was longer than max_length
    unknown_share: float = 0.0  # of the tokens that are out of the vocabulary, special ones aside

    @property
    def is_mostly_unknown(self) -> bool:
        """Whether half of the tokens or more are out of the vocabulary: the label says little."""
        return self.unknown_share >= 0.5


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
            logits = nnx.merge(graph, gather(params))(tokens, is_token)
            return keep_whole(jax.nn.softmax(logits.astype(jnp.float32)))

        self._probabilities = probabilities

    def __call__(
        self,
        encoded: Sequence[np.ndarray],
        params: nnx.State | None = None,
        *,
        buckets: Sequence[int] | None = None,
        done: Callable[[int], object] = lambda texts: None,
    ) -> Float[np.ndarray, "n C"]:
        """Compute the class probabilities of encoded texts, in the order of the texts.

        `params` replaces the weights of the model, and `buckets` the lengths of batches, if they
        are given. `done` is called after each batch with its number of texts.
        """
        params = self.params if params is None else params
        buckets = self.buckets if buckets is None else buckets
        plans = evaluation_plans([len(ids) for ids in encoded], buckets, self.batch_tokens)
        batches = Batches(plans, encoded, None, self.pad_id)

        def computed() -> Iterator[tuple[Batch, Any]]:
            placed = place(params)
            for batch in batches:
                inputs = split_rows((batch.tokens, batch.is_token))
                yield batch, settled(self._probabilities(placed, *inputs))
                done(int(batch.is_example.sum()))

        with use_any_mesh():
            return in_order(computed(), len(encoded))


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

    def __repr__(self) -> str:
        return f"Classifier(classes={self.classes})"

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
        probabilities = self.predict_proba(as_texts(texts, "predict"))
        return np.array(self.classes)[probabilities.argmax(axis=1)]

    def predict_proba(self, texts: Iterable[str]) -> Float[np.ndarray, "n C"]:
        """Predict the probability of each class for every text, in the order of `classes`.

        The arguments and errors are those of `predict`.
        """
        texts = as_texts(texts, "predict_proba")
        if not texts:
            return np.zeros((0, len(self.classes)), np.float32)
        encoded, _, buckets = self._encoded(texts)
        return self._scorer(encoded, buckets=buckets)

    def predictions(self, texts: Iterable[str]) -> list[Prediction]:
        """Predict every text as `predict` does, and say how much of it the model read."""
        texts = as_texts(texts, "predictions")
        return list(self._predicted(texts, len(texts)))

    def stream(self, texts: Iterable[str], *, progress: bool = False) -> Iterator[Prediction]:
        """Predict every text as `predictions` does, and yield the predictions as they come.

        They have the order of the texts, which are classified ROWS at a time. `progress` shows a
        bar. The errors are those of `predict`.

        >>> from transformer_jax import load
        >>> classifier = load("tests/data/run_folders/imdb")
        >>> next(classifier.stream(["a fine film", "the plot was dull"])).label
        'positive'
        """
        return self._predicted(as_texts(texts, "stream"), ROWS, progress=progress)

    def explain(self, text: str, *, name: str | None = None, limit: int = 512) -> Explanation:
        """Compute the attribution of every word of a text to the log odds of a class.

        The class is `name`, by default the predicted one. See `interpret.explain`. Raises TypeError
        if the text is not a str, and InputError if `name` is not a class.
        """
        return explain(self.trained, as_text(text, "text"), name=name, limit=limit)

    def _encoded(self, texts: list[str]) -> tuple[list[np.ndarray], np.ndarray, tuple[int, ...]]:
        """Return the ids of the texts, the numbers of tokens cut, and the lengths of batches."""
        spec = self.trained.spec
        encode = self.trained.tokenizer.encode_with_cuts
        encoded, cuts = encode(texts, spec.max_length, spec.truncate)
        lengths = round_lengths([len(ids) for ids in encoded], spec.max_length)
        return encoded, cuts, bucket_lengths(lengths, spec.max_length, num_buckets=4)

    def _predicted(
        self, texts: list[str], rows: int, *, progress: bool = False
    ) -> Iterator[Prediction]:
        """Yield the predictions of texts, which are classified `rows` at a time."""
        if not texts:
            return
        encoded, cuts, buckets = self._encoded(texts)
        # Parts of equal size: a short last one would be compiled for itself.
        parts = np.array_split(np.arange(len(texts)), -(-len(texts) // rows))
        with ProgressBar(
            total=len(texts), desc="predicting", unit="text", leave=False, delay=SHORT,
            disable=not progress,
        ) as bar:  # fmt: skip
            for part in parts:
                ids = [encoded[i] for i in part]
                probabilities = self._scorer(ids, buckets=buckets, done=bar.update)
                for i, row in zip(part, probabilities, strict=True):
                    yield self._prediction(texts[i], encoded[i], row, int(cuts[i]))

    def _prediction(self, text: str, ids: np.ndarray, row: np.ndarray, cut: int) -> Prediction:
        tokenizer, best = self.trained.tokenizer, int(row.argmax())
        special = (tokenizer.cls_id, tokenizer.sep_id)
        words = [token for token in ids.tolist() if token not in special]
        unknown = 0 if tokenizer.unk_id is None else words.count(tokenizer.unk_id)
        return Prediction(
            text,
            self.classes[best],
            float(row[best]),
            {name: float(p) for name, p in zip(self.classes, row, strict=True)},
            tokens=len(ids),
            tokens_cut=cut,
            unknown_share=unknown / max(len(words), 1),
        )


def predict(
    classifier: Trained, texts: Sequence[str], *, batch_tokens: int = 8192
) -> list[Prediction]:
    """Predict the class of every text, in order. An empty text gets a prediction too.

    A batch has at most `batch_tokens` tokens, or one text of the model's max_length if that is
    longer. A `Classifier` does the same and keeps what was compiled.
    """
    return Classifier(classifier, batch_tokens=batch_tokens).predictions(texts)
