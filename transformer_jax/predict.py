"""Classify texts with a trained model.

    python -m transformer_jax predict RUN "A wonderful film." "Dull."
    python -m transformer_jax predict RUN --file reviews.txt      (one text a line; - is standard input)

prints the label, its probability and the text, or with --json one object a line.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.batching import Batches, bucket_lengths, evaluation_plans, in_order
from transformer_jax.models import TextClassifier
from transformer_jax.run_folder import Classifier, load_classifier
from transformer_jax.sharding import num_devices, replicate, split_rows


class InputError(ValueError):
    """Texts that cannot be read."""


@dataclass(frozen=True)
class Prediction:
    text: str
    label: str
    probability: float
    probabilities: dict[str, float]
    tokens: int  # that the model read
    tokens_cut: int  # that it did not: the text was longer than what it reads


class Scorer:
    """Class probabilities of encoded texts, batched by length; each shape of a batch compiles once."""

    def __init__(
        self, model: TextClassifier, pad_id: int, buckets: Sequence[int], batch_tokens: int
    ):
        graph, self.params = nnx.split(model, nnx.Param)
        self.pad_id, self.buckets, self.batch_tokens = pad_id, buckets, batch_tokens

        @jax.jit
        def probabilities(params, tokens):
            logits = nnx.merge(graph, params)(tokens, tokens != pad_id)
            return jax.nn.softmax(logits.astype(jnp.float32))

        self._probabilities = probabilities

    def __call__(
        self, encoded: Sequence[np.ndarray], params: nnx.State | None = None
    ) -> Float[np.ndarray, "n C"]:
        """In the order given; `params` are other weights of the same model."""
        params = replicate(self.params if params is None else params)
        plans = evaluation_plans([len(ids) for ids in encoded], self.buckets, self.batch_tokens)
        batches = Batches(plans, encoded, None, self.pad_id, num_devices())
        return in_order(
            ((batch, self._probabilities(params, split_rows(batch.tokens))) for batch in batches),
            len(encoded),
        )


def predict(
    classifier: Classifier, texts: Sequence[str], *, batch_tokens: int = 8192
) -> list[Prediction]:
    """A prediction for every text, in order; an empty text gets one too."""
    if not texts:
        return []
    spec, tokenizer = classifier.spec, classifier.tokenizer
    encoded, cuts = tokenizer.encode_with_cuts(texts, spec.config.max_length, spec.truncate)
    buckets = bucket_lengths([len(ids) for ids in encoded], spec.config.max_length, num_buckets=4)
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="a run folder, the --out of train.imdb")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts to classify")
    parser.add_argument("--file", metavar="FILE", help="texts, one a line; - is standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(options: argparse.Namespace) -> None:
    texts = list(options.texts)
    if options.file:
        texts += read_lines(options.file)
    elif not texts:
        if sys.stdin.isatty():
            raise InputError('no text given; pass "a text", --file FILE or --file - to type some')
        texts = read_lines("-")
    classifier = load_classifier(options.folder)
    if classifier.spec.data == "sample" and not options.json:
        print(
            "note: this model was trained on the built-in sample, not on real reviews",
            file=sys.stderr,
        )
    for line in format_predictions(predict(classifier, texts), as_json=options.json):
        print(_writable(line))


def _writable(line: str) -> str:
    """What standard output cannot write is escaped: half a character, and in some locales any but ASCII."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def read_lines(file: str) -> list[str]:
    """The lines of a UTF-8 file, split at line feeds alone: U+0085 stands inside real reviews."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 at byte {error.start}; convert it first") from None
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


def format_predictions(predictions: Iterable[Prediction], *, as_json: bool) -> Iterable[str]:
    for prediction in predictions:
        if as_json:
            yield json.dumps(asdict(prediction), ensure_ascii=False)
            continue
        shown = " ".join(prediction.text.split())
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        line = f"{prediction.label:<10} {prediction.probability:6.1%}  {shown}"
        if prediction.tokens_cut:
            line += f"   (cut: {prediction.tokens_cut} tokens were not read)"
        yield line
