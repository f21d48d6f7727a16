"""The run folder, which training writes and all other programs read.

    model.safetensors   the weights in float32, by their dotted names; until training is complete,
                        also the number of its steps so far and in all, as metadata
    config.json         the configuration of the model, its classes, the truncation of texts
    tokenizer.json      the tokenizer; a pretrained tokenizer has further files
    report.json/.md/.html, mistakes.json, metrics.jsonl, curves.png, options.json, checkpoints/
                        the results of training; not read here

Nothing is unpickled. A folder whose files do not fit together raises an error of one line.
"""

import json
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.mesh import current_sizes, to_host
from transformer_jax.parallel.placement import at_rest, from_parts
from transformer_jax.runtime.errors import RunFolderError, UnfinishedWarning, one_line
from transformer_jax.runtime.files import are_discarded, write, write_text
from transformer_jax.runtime.program import program
from transformer_jax.runtime.texts import read_text
from transformer_jax.serialization.folder_files import (
    CLASSIFIER_PROGRAMS,
    CONFIG,
    WEIGHTS,
    check_run_folder,
    is_training,
)
from transformer_jax.serialization.specification import (
    ClassifierSpec,
    EncoderClassifierSpec,
    LanguageModelSpec,
    MaskedLanguageModelSpec,
    Spec,
    TranslatorSpec,
)
from transformer_jax.serialization.typed_json import from_dict
from transformer_jax.text.tokenizer_formats import TOKENIZER_FORMATS
from transformer_jax.text.tokenizer_protocol import TextTokenizer

COUNTS = ("step", "steps")  # metadata of the weights of a run that is not complete


@dataclass(frozen=True)
class Kind:
    """A kind of model that a run folder may hold."""

    spec: type
    model: type
    program: str  # the program that trains it
    command: str  # the command that uses it
    tokenizer: str = "learned"  # one of TOKENIZER_FORMATS


# By the `model` of config.json.
KINDS = {
    "TextClassifier": Kind(ClassifierSpec, TextClassifier, CLASSIFIER_PROGRAMS, "predict"),
    "EncoderClassifier": Kind(
        EncoderClassifierSpec, EncoderClassifier, CLASSIFIER_PROGRAMS, "predict", "published"
    ),
    "MaskedLanguageModel": Kind(
        MaskedLanguageModelSpec, MaskedLanguageModel, "train.mlm", "fill", "published"
    ),
    "LanguageModel": Kind(LanguageModelSpec, LanguageModel, "train.lm", "generate"),
    "SequenceToSequence": Kind(TranslatorSpec, SequenceToSequence, "train.translate", "translate"),
}


@dataclass(frozen=True)
class Trained:
    """A model with its tokenizer and its specification."""

    model: Any
    tokenizer: TextTokenizer
    spec: Any  # one of Spec
    published: Path | None = None  # the folder of a published model; None for a run folder


def save_specification(folder: Path, tokenizer: TextTokenizer, spec: Spec) -> None:
    """Write config.json and the tokenizer's files, which do not change during training."""
    for name, content in tokenizer.to_files().items():
        write_text(folder / name, content)
    write_text(folder / CONFIG, json.dumps(asdict(spec), indent=2) + "\n")


def save_weights(path: Path, params: nnx.State, after: tuple[int, int] | None = None) -> None:
    """Write the weights to a safetensors file. Raises OSError if they cannot be written.

    `after` are the steps so far and in all, if training is not complete. They are in the same file,
    because a process may be killed between the writes of two.
    """
    counts = None if after is None else {k: str(n) for k, n in zip(COUNTS, after, strict=True)}
    if are_discarded():  # each process must take part in the gathering
        for _, leaf in named_parameters(params):
            to_host(leaf)
        return
    arrays = {name: to_host(leaf) for name, leaf in named_parameters(params)}
    try:
        write(path, lambda beside: save_file(arrays, beside, counts))
    except SafetensorError as error:  # it wraps the operating system's error
        raise OSError(f"{path}: {error}") from error


def load_classifier(folder: str | Path) -> Trained:
    """Load the classifier of a run folder in float32.

    It is a `TextClassifier` or an `EncoderClassifier`. Raises RunFolderError if the folder is not a
    run folder, or a file in it is truncated, unknown or of another model.
    """
    return load_model(folder, "TextClassifier", "EncoderClassifier")


def load_model(folder: str | Path, *kinds: str) -> Trained:
    """Load the model of a run folder, which must be one of these `kinds` (keys of `KINDS`).

    Without `kinds`, it may be any of them.

    Raises RunFolderError as `load_classifier` does, and TokenizerError if the tokenizer cannot be
    read. Issues an UnfinishedWarning if training was stopped before its end.
    """
    folder = Path(folder)
    check_run_folder(folder, KINDS[kinds[0]].program if kinds else "a training program")
    spec = read_spec(folder / CONFIG, *kinds)
    kind = KINDS[spec.model]
    _check_layers(folder / WEIGHTS, spec.config)
    tokenizer_format = TOKENIZER_FORMATS[kind.tokenizer]
    tokenizer = tokenizer_format.load(folder)
    rows = spec.config.vocab_size
    if tokenizer_format.may_differ:
        tokenizer = tokenizer.for_table(rows)
    elif tokenizer.vocab_size != rows:
        raise RunFolderError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{rows}; they are of different runs"
        )
    abstract = nnx.eval_shape(lambda: kind.model(spec.config, rngs=AbstractRngs()))
    graph, shapes = nnx.split(abstract, nnx.Param)
    model = nnx.merge(graph, load_weights(folder / WEIGHTS, shapes))
    if after := steps_taken(folder / WEIGHTS):
        note = f"after step {after[0]:,} of {after[1]:,}"
        if is_training(folder):
            note = f"{folder} is training, its model is the one {note}"
        else:
            note = f"training of {folder} stopped {note}; --resume continues it"
        warnings.warn(note, UnfinishedWarning, stacklevel=2)
    return Trained(model, tokenizer, spec)


def load_weights(path: Path, shapes: nnx.State) -> nnx.State:
    """Load weights in the structure of `shapes`.

    The names, shapes and dtypes of all tensors are checked before any is read. Raises
    RunFolderError if they do not match, or if a value is not finite.
    """
    found = _tensors(path)
    expected = {name: (leaf.shape, "F32") for name, leaf in named_parameters(shapes)}
    for problem, names in (
        ("lacks", sorted(set(expected) - set(found))),
        ("has unknown", sorted(set(found) - set(expected))),
    ):
        if names:
            shown = ", ".join(ascii(name)[1:-1] for name in names[:3])
            raise RunFolderError(f"{path} {problem} {shown} ({len(names)} in all)")
    for name, (shape, dtype) in expected.items():
        if found[name] != (shape, dtype):
            raise RunFolderError(
                f"{path}: {name} is {found[name][1]} of the shape {found[name][0]}, "
                f"the model needs {dtype} of {shape}"
            )
    if current_sizes():
        leaves = _read_parts(path, {name: shape for name, (shape, _) in expected.items()})
    else:
        arrays = load_file(path)
        leaves = jax.device_put([_finite(path, name, arrays[name]) for name in expected])
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _read_parts(path: Path, shapes: dict[str, tuple[int, ...]]) -> list[jax.Array]:
    """Read the parts of the weights that the devices of this process hold on the mesh."""

    def read(file: Any, name: str, shape: tuple[int, ...], sharding: Any) -> jax.Array:
        part = file.get_slice(name)
        return from_parts(shape, sharding, lambda index: _finite(path, name, part[index]))

    with safe_open(path, "numpy") as file:
        return [read(file, name, shape, at_rest(name, shape)) for name, shape in shapes.items()]


def _finite(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Return an array of weights whose values are finite, or raise RunFolderError."""
    if not np.isfinite(array).all():
        raise RunFolderError(f"{path}: {name} holds values that are not finite; it is damaged")
    return array


def steps_taken(path: Path) -> tuple[int, int] | None:
    """Return the steps of training so far and in all, or None if training was completed."""
    with safe_open(path, "numpy") as file:
        counts = file.metadata() or {}
    try:
        step, steps = (int(counts[name]) for name in COUNTS)
    except (KeyError, ValueError):  # also a file of an earlier version
        return None
    return step, steps


def _tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Read the shape and dtype of each tensor by name, without reading the tensors."""
    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            return {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path} cannot be read as safetensors: {one_line(error)}") from None


def _check_layers(path: Path, config: Any) -> None:
    """Check the number of layers."""
    # Before the shapes of the model are computed, which takes milliseconds for each wrong layer.
    found = {m[0] for name in _tensors(path) if (m := re.match(r".*?\.layers\.\d+", name))}
    config = getattr(config, "text", config)
    at = "text." if isinstance(config, TextEncoderConfig) else ""
    for stack in ("encoder", "decoder"):
        number = getattr(config, stack).num_layers if hasattr(config, stack) else 0
        layers = (f"{at}{stack}.layers.{i}" for i in range(number))
        if missing := next((layer for layer in layers if layer not in found), None):
            raise RunFolderError(f"{path} lacks {missing}; {CONFIG} says num_layers={number}")


def read_spec(path: Path, *kinds: str) -> Spec:
    """Read the specification in config.json, which must be one of `kinds` if any are given.

    Raises RunFolderError if the file does not hold one.
    """
    usual = kinds[0] if kinds else "TextClassifier"
    try:
        content = json.loads(read_text(path))
        # Without a model name it is read as a classifier's, and from_dict reports what is wrong.
        found = content.get("model", "TextClassifier") if isinstance(content, dict) else None
        if isinstance(found, str) and found in KINDS and kinds and found not in kinds:
            raise RunFolderError(
                f"{path.parent} holds a {found}, not a {' or '.join(kinds)}: "
                f"{program()} {KINDS[found].command} {path.parent} uses it"
            )
        if not isinstance(found, str) or found not in KINDS:
            found = usual
        spec = from_dict(KINDS[found].spec, content)
    except RunFolderError:
        raise
    except (ValueError, OSError, RecursionError) as error:  # ValueError covers JSON and UTF-8
        raise RunFolderError(
            f"{path} is not the configuration of a model: {one_line(error)}"
        ) from None
    if spec.model not in KINDS:
        raise RunFolderError(f"{path} describes a {spec.model!r:.60}, not a {found}")
    return spec
