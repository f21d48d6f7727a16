"""Loading of models with their tokenizers, from run folders, model folders or the hub."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.pretrained.family import family_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.hub import folder_of, is_local
from transformer_jax.pretrained.loading import cast, from_pretrained, tokenizer_of
from transformer_jax.serialization.folder_files import CONFIG
from transformer_jax.serialization.run_folder import KINDS, Trained, load_model, read_spec
from transformer_jax.serialization.specification import (
    EncoderClassifierSpec,
    LanguageModelSpec,
    Spec,
    TextEncoderSpec,
)
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer

# The run folder models of each kind. A text encoder of a run is loaded like a published one.
RUNS = {
    None: tuple(KINDS),
    "classifier": ("TextClassifier", "EncoderClassifier"),
    "language": ("LanguageModel",),
    "seq2seq": ("SequenceToSequence",),
}
READERS = ("masked", "encoder")


def load(
    source: str | Path,
    kind: str | None = None,
    *,
    dtype: DTypeLike = jnp.float32,
    revision: str | None = None,
) -> Trained:
    """Load a model with its tokenizer and its specification.

    `source` is a run folder, a folder of a published model in Hugging Face's layout, or the name
    of a model on the Hugging Face Hub. `kind` is "classifier", "language", "seq2seq", "masked" or
    "encoder"; by default it is the kind of the model in `source`. "encoder" also loads the encoder
    of a model with a head. The parameters are cast to `dtype`.

    Raises RunFolderError, PretrainedError or TokenizerError, with a message of one line, if there
    is no such model.
    """
    if kind not in (*RUNS, *READERS):
        known = ", ".join(filter(None, (*RUNS, *READERS)))
        raise ValueError(f"kind must be one of {known}; got {kind!r:.60}")
    is_run = kind == "seq2seq" or (is_local(source) and not _is_published(Path(source)))
    if is_run and kind in RUNS:
        trained = load_model(source, *RUNS[kind])
        return replace(trained, model=cast(trained.model, dtype))

    folder = folder_of(source, revision)
    settings = Settings(folder / CONFIG)
    if kind == "language" and kind not in family_of(settings).ARCHITECTURES.values():
        raise settings.error(
            f"a {settings.text('model_type')} model does not generate text; GPT-2 and Llama do"
        )
    model = from_pretrained(folder, kind=kind, dtype=dtype)
    tokenizer = tokenizer_of(folder)
    if is_run:
        return Trained(model, tokenizer, read_spec(folder / CONFIG))
    return Trained(model, tokenizer, _specification(model, tokenizer, settings), folder)


def _specification(model: Any, tokenizer: PretrainedTokenizer, settings: Settings) -> Spec:
    """Build the specification of a published model."""
    name = settings.path.parent.name
    if isinstance(model, LanguageModel):
        return LanguageModelSpec(model.config, name, framed=False)
    if isinstance(model, EncoderClassifier):
        problem = settings.text("problem_type", "single_label_classification")
        if problem != "single_label_classification" or model.config.num_classes == 1:
            raise settings.error(
                f"a {problem} model with {model.config.num_classes} outputs has no probabilities "
                "of classes that exclude each other; use the logits of from_pretrained"
            )
        classes, holds = _classes(settings, model.config.num_classes), model.config.text.max_length
        length = min(tokenizer.max_length or holds, holds)
        return EncoderClassifierSpec(model.config, classes, tokenizer.truncate, name, length)
    return TextEncoderSpec(model.config, name, type(model).__name__)


def _classes(settings: Settings, count: int) -> tuple[str, ...]:
    """Return the names in id2label, which label2id must not contradict."""
    none = Settings.of(settings.path, {})
    labels, numbers = settings.part("id2label") or none, settings.part("label2id") or none
    classes = tuple(labels.text(str(i), f"LABEL_{i}") for i in range(count))
    if len(set(classes)) != count:
        raise settings.error(f"id2label must give each class its own name, got {classes!r:.60}")
    for i, name in enumerate(classes):
        if numbers.values.get(name, i) != i:
            raise settings.error(
                f"id2label gives {name!r:.40} the number {i}, label2id "
                f"{numbers.values[name]!r:.20}; correct one of them"
            )
    return classes


def _is_published(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and "model_type" in Settings(folder / CONFIG).values
