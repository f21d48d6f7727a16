"""The run folder, the one exchange format: what training leaves and everything else reads.

    model.safetensors   the weights, float32, by their dotted names
    config.json         what to build, which classes, how texts are cut
    tokenizer.json      how texts become tokens; a pretrained tokenizer has more files beside it
    report.json/.md, metrics.jsonl, curves.png, checkpoints/
                        how it came about; nothing here needs them

Nothing is unpickled, and a folder that does not fit together is refused in one line.
"""

import json
import os
import re
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
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier, MaskedLanguageModel
from transformer_jax.nn.parameters import AbstractRngs, named_parameters
from transformer_jax.runtime.errors import RunFolderError, one_line
from transformer_jax.runtime.files import write, write_text
from transformer_jax.serialization.specification import (
    ClassifierSpec,
    EncoderClassifierSpec,
    LanguageModelSpec,
    MaskedLanguageModelSpec,
    Spec,
    TranslatorSpec,
)
from transformer_jax.serialization.typed_json import from_dict
from transformer_jax.text.tokenizer import TOKENIZER_FILE as TOKENIZER
from transformer_jax.text.tokenizer_formats import TOKENIZER_FORMATS
from transformer_jax.text.tokenizer_protocol import TextTokenizer

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Kind:
    """A kind of model that a run folder may hold."""

    spec: type
    model: type
    program: str  # that trains it
    command: str  # that uses it
    tokenizer: str = "learned"  # one of TOKENIZER_FORMATS


# By the `model` of config.json.
KINDS = {
    "TextClassifier": Kind(ClassifierSpec, TextClassifier, "train.imdb", "predict"),
    "EncoderClassifier": Kind(
        EncoderClassifierSpec, EncoderClassifier, "train.imdb", "predict", "published"
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
    published: Path | None = None  # the folder of a published model


def save_specification(folder: Path, tokenizer: TextTokenizer, spec: Spec) -> None:
    """Write the files beside the weights, which do not change while a model is trained."""
    for name, content in tokenizer.to_files().items():
        write_text(folder / name, content)
    write_text(folder / CONFIG, json.dumps(asdict(spec), indent=2) + "\n")


def save_weights(path: Path, params: nnx.State) -> None:
    """Raises OSError when they cannot be written."""
    arrays = {name: np.asarray(leaf) for name, leaf in named_parameters(params)}
    try:
        write(path, lambda beside: save_file(arrays, beside))
    except SafetensorError as error:  # its name for what the system said
        raise OSError(f"{path}: {error}") from error


def load_classifier(folder: str | Path) -> Trained:
    """The classifier of a run folder, made anew or from a pretrained encoder, in float32.

    Raises RunFolderError when the folder is not a run, or a file of it is cut, unknown or of
    another model.
    """
    return load_model(folder, "TextClassifier", "EncoderClassifier")


def load_model(folder: str | Path, *kinds: str) -> Trained:
    """The model of a run folder, which must be of one of these kinds (`KINDS`). Raises as
    `load_classifier` does.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        # Path.is_file raises where a text stands for the folder.
        if not os.path.isfile(folder / name):
            raise RunFolderError(
                f"{folder} is not a run folder: it has no {name}. "
                f"Pass the --out folder of {KINDS[kinds[0]].program}"
            )
    spec = read_spec(folder / CONFIG, *kinds)
    kind = KINDS[spec.model]
    _check_layers(folder / WEIGHTS, spec.config)
    tokenizer_format = TOKENIZER_FORMATS[kind.tokenizer]
    tokenizer = tokenizer_format.load(folder)
    rows = spec.config.vocab_size
    spare = rows - tokenizer.vocab_size
    if spare < 0 or (spare and not tokenizer_format.spare_rows):
        raise RunFolderError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{rows}; they are of different runs"
        )
    abstract = nnx.eval_shape(lambda: kind.model(spec.config, rngs=AbstractRngs()))
    graph, shapes = nnx.split(abstract, nnx.Param)
    return Trained(nnx.merge(graph, load_weights(folder / WEIGHTS, shapes)), tokenizer, spec)


def load_weights(path: Path, shapes: nnx.State) -> nnx.State:
    """The weights in the structure of `shapes`, each tensor checked: its name, shape and type
    before any is read.
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
    arrays = load_file(path)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RunFolderError(f"{path}: {name} holds values that are not finite; it is damaged")
    leaves = jax.device_put([arrays[name] for name in expected])
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor by name; the tensors stay on disk."""
    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            return {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path} cannot be read as safetensors: {one_line(error)}") from None


def _check_layers(path: Path, config: Any) -> None:
    """Before the model is laid out: a wrong size costs nothing there, each wrong layer
    milliseconds.
    """
    found = {m[0] for name in _tensors(path) if (m := re.match(r".*?\.layers\.\d+", name))}
    config = getattr(config, "text", config)
    at = "text." if isinstance(config, TextEncoderConfig) else ""
    for stack in ("encoder", "decoder"):
        number = getattr(config, stack).num_layers if hasattr(config, stack) else 0
        layers = (f"{at}{stack}.layers.{i}" for i in range(number))
        if missing := next((layer for layer in layers if layer not in found), None):
            raise RunFolderError(f"{path} lacks {missing}; {CONFIG} says num_layers={number}")


def read_spec(path: Path, *kinds: str) -> Spec:
    """What config.json holds; of any kind where none is asked for."""
    usual = kinds[0] if kinds else "TextClassifier"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Without one it is a classifier's: what is wrong with it is said below.
        found = content.get("model", "TextClassifier") if isinstance(content, dict) else None
        if isinstance(found, str) and found in KINDS and kinds and found not in kinds:
            raise RunFolderError(
                f"{path.parent} holds a {found}, not a {' or '.join(kinds)}: "
                f"python -m transformer_jax {KINDS[found].command} {path.parent} uses it"
            )
        if not isinstance(found, str) or found not in KINDS:
            found = usual
        spec = from_dict(KINDS[found].spec, content)
    except RunFolderError:
        raise
    except (ValueError, OSError, RecursionError) as error:  # ValueError: of JSON and UTF-8 too
        raise RunFolderError(
            f"{path} is not the configuration of a model: {one_line(error)}"
        ) from None
    if spec.model not in KINDS:
        raise RunFolderError(f"{path} describes a {spec.model!r:.60}, not a {found}")
    return spec
