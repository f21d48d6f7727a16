"""The class that uses a model in Python, by the kind of the model."""

from pathlib import Path

import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.inference.classify import Classifier
from transformer_jax.inference.embed import SentenceEncoder
from transformer_jax.inference.fill_mask import MaskFiller
from transformer_jax.inference.load import load
from transformer_jax.inference.text_generator import TextGenerator
from transformer_jax.inference.translate import Translator

# By the `model` of the specification.
PREDICTORS = {
    "TextClassifier": Classifier,
    "EncoderClassifier": Classifier,
    "LanguageModel": TextGenerator,
    "SequenceToSequence": Translator,
    "MaskedLanguageModel": MaskFiller,
}
Predictor = Classifier | TextGenerator | Translator | MaskFiller | SentenceEncoder


def load_predictor(
    source: str | Path,
    kind: str | None = None,
    *,
    dtype: DTypeLike = jnp.float32,
    revision: str | None = None,
) -> Predictor:
    """Load a model and return the object that applies it to texts.

    The arguments and errors are those of `inference.load`, and users call it as
    `transformer_jax.load`.
    """
    trained = load(source, kind, dtype=dtype, revision=revision)
    if kind == "encoder" or trained.spec.model == "TextEncoder":
        return SentenceEncoder.of(trained)
    return PREDICTORS[trained.spec.model](trained)
