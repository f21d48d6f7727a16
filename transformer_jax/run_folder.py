"""The run folder, the one exchange format: what training leaves and everything else reads.

    model.safetensors   the weights, float32, by their dotted names
    config.json         what to build, which classes, how texts are cut
    tokenizer.json      how texts become tokens
    report.json/.md, metrics.jsonl, curves.png, checkpoints/   how it came about; nothing here needs them

Nothing is unpickled, and a folder that does not fit together is refused in one line.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from transformer_jax.config import ClassifierConfig, from_dict
from transformer_jax.files import write, write_text
from transformer_jax.models import TextClassifier
from transformer_jax.tokenizers import Tokenizer, load_tokenizer

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


class RunFolderError(ValueError):
    """A folder that is not a run, or whose parts do not fit together."""


@dataclass(frozen=True)
class ClassifierSpec:
    """What config.json holds."""

    config: ClassifierConfig
    classes: tuple[str, ...]
    truncate: str  # "head" or "head-tail"
    data: str  # the name of what it was trained on
    model: str = "TextClassifier"


@dataclass(frozen=True)
class Classifier:
    """A model with what it takes to use it on texts."""

    model: TextClassifier
    tokenizer: Tokenizer
    spec: ClassifierSpec


def save_classifier(
    folder: Path, params: nnx.State, tokenizer: Tokenizer, spec: ClassifierSpec
) -> None:
    """Writes the three files that make a folder usable."""
    save_specification(folder, tokenizer, spec)
    save_weights(folder / WEIGHTS, params)


def save_specification(folder: Path, tokenizer: Tokenizer, spec: ClassifierSpec) -> None:
    """The two files beside the weights, which do not change while training."""
    tokenizer.save(folder / TOKENIZER)
    write_text(folder / CONFIG, json.dumps(asdict(spec), indent=2) + "\n")


def save_weights(path: Path, params: nnx.State) -> None:
    """Raises OSError when they cannot be written."""
    arrays = {name: np.asarray(leaf) for name, leaf in _named(params)}
    try:
        write(path, lambda beside: save_file(arrays, beside))
    except SafetensorError as error:  # its name for what the system said
        raise OSError(f"{path}: {error}") from error


def load_classifier(folder: str | Path) -> Classifier:
    """The classifier of a run folder, in float32.

    Raises RunFolderError when the folder is not a run, or a file of it is cut, unknown or of another model.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise RunFolderError(
                f"{folder} is not a run folder: it has no {name}. Pass the --out folder of train.imdb"
            )
    spec = _read_spec(folder / CONFIG)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.vocab_size != spec.config.vocab_size:
        raise RunFolderError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{spec.config.vocab_size}; they are of different runs"
        )
    abstract = nnx.eval_shape(lambda: TextClassifier(spec.config, rngs=nnx.Rngs(0)))
    graph, shapes = nnx.split(abstract, nnx.Param)
    return Classifier(nnx.merge(graph, load_weights(folder / WEIGHTS, shapes)), tokenizer, spec)


def load_weights(path: Path, shapes: nnx.State) -> nnx.State:
    """The weights in the structure of `shapes`, each tensor checked by name and shape."""
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path} cannot be read as safetensors: {error}") from None
    expected = dict(_named(shapes))
    for problem, names in (
        ("lacks", sorted(set(expected) - set(arrays))),
        ("has unknown", sorted(set(arrays) - set(expected))),
    ):
        if names:
            raise RunFolderError(f"{path} {problem} {', '.join(names[:3])} ({len(names)} in all)")
    for name, shape in expected.items():
        if arrays[name].shape != shape.shape:
            raise RunFolderError(
                f"{path}: {name} has the shape {arrays[name].shape}, the model needs {shape.shape}"
            )
    leaves = [jnp.asarray(arrays[name], jnp.float32) for name in expected]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def parameter_name(path: tuple) -> str:
    """The dotted name of a parameter: encoder.layers.0.attention.out_kernel."""
    keys = (getattr(entry, "key", None) for entry in path)
    return ".".join(str(key) for key in keys if key is not None)


def _named(params: nnx.State) -> list[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return [(parameter_name(path), leaf) for path, leaf in flat]


def _read_spec(path: Path) -> ClassifierSpec:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        spec = from_dict(ClassifierSpec, values)
    except (ValueError, OSError) as error:  # JSON and UTF-8 errors are ValueErrors
        raise RunFolderError(f"{path} is not the configuration of a classifier: {error}") from None
    if spec.model != "TextClassifier":
        raise RunFolderError(f"{path} describes a {spec.model}, not a TextClassifier")
    return spec
