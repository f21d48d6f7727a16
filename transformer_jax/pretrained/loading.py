"""Loading of models from Hugging Face's layout: config.json and safetensors files."""

import itertools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.placement import at_rest, from_parts
from transformer_jax.pretrained.family import Family, family_of
from transformer_jax.pretrained.files import (
    DTYPES,
    Entry,
    PretrainedError,
    Settings,
    shown,
    some,
    tensors_of,
)
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.pretrained.output_layer import resolve_output
from transformer_jax.pretrained.tensor_layout import Shape, Tensor
from transformer_jax.serialization.folder_files import CONFIG
from transformer_jax.serialization.run_folder import KINDS as RUN_KINDS
from transformer_jax.serialization.run_folder import load_model, read_spec
from transformer_jax.text.pretrained_tokenizer import (
    PretrainedTokenizer,
    load_pretrained_tokenizer,
)

MODELS: dict[str, Callable] = {
    "encoder": TextEncoder,
    "masked": MaskedLanguageModel,
    "classifier": EncoderClassifier,
    "language": LanguageModel,
}
# Settings of any family that change its parameters or layers.
UNSUPPORTED = ("quantization_config", "per_layer_config", "pruned_heads")


def from_pretrained(
    source: str | Path,
    *,
    kind: str | None = None,
    dtype: DTypeLike = jnp.float32,
    revision: str | None = None,
) -> nnx.Module:
    """Load a model from a folder, from the Hugging Face Hub by its name, or from a run folder.

    BERT, RoBERTa, XLM-R, DistilBERT, MiniLM and ModernBERT are loaded as `TextEncoder` ("encoder"),
    `MaskedLanguageModel` ("masked") or `EncoderClassifier` ("classifier"), and GPT-2, Llama, SmolLM
    and Qwen as `LanguageModel` ("language"). The `kind` is by default that of the architecture in
    config.json. A model with a head can also be loaded as a kind that needs only some of its
    tensors, such as "encoder". The parameters are converted to `dtype`.

    Raises PretrainedError, with a message of one line, for an unknown architecture, a setting that
    is not implemented, a tensor that is missing, unknown or of another shape, a truncated file, a
    pickle, or a hub that cannot be reached.
    """
    folder = folder_of(source, revision)
    settings = Settings(folder / CONFIG)
    model = settings.values.get("model")
    if isinstance(model, str) and model in RUN_KINDS and "model_type" not in settings.values:
        return _of_run(folder, model, kind, dtype)
    for name in UNSUPPORTED:
        if settings.values.get(name):
            raise settings.error(f"{name} is not supported; remove it or convert the model")
    family = family_of(settings)
    kind = _kind(family, settings, kind)
    entries = _named(folder, tensors_of(folder), family, kind)
    try:
        config = family.read_config(settings, kind, set(entries))
    except PretrainedError:
        raise
    except ValueError as error:  # from the configuration: a size of 0, heads that do not divide
        raise settings.error(str(error)) from None
    if kind in ("masked", "language"):
        config, entries = resolve_output(config, entries, family.OUTPUT)
    _check_depth(folder, entries, config)
    abstract = nnx.eval_shape(lambda: MODELS[kind](config, rngs=AbstractRngs()))
    graph, state = nnx.split(abstract, nnx.Param)
    shapes = {name: leaf.shape for name, leaf in named_parameters(state)}
    tensors = family.tensors(config, kind)
    _check(folder, tensors, entries, shapes, family, kind)
    found = _read(tensors, entries, shapes, jnp.dtype(dtype))
    leaves = [found[name] for name in shapes]
    return nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), leaves))


def tokenizer_of(source: str | Path, revision: str | None = None) -> PretrainedTokenizer:
    """Load the tokenizer of a model from a folder, or from the Hugging Face Hub by its name.

    A text with a token beyond the model's embedding table raises TokenizerError: see
    `PretrainedTokenizer.for_table`.

    Raises PretrainedError if there is no such model, and TokenizerError if its tokenizer cannot be
    read.
    """
    folder = folder_of(source, revision)
    tokenizer = load_pretrained_tokenizer(folder)
    if not (folder / CONFIG).is_file():
        return tokenizer
    settings = Settings(folder / CONFIG)
    if "model_type" in settings.values:
        rows = settings.whole("vocab_size", tokenizer.vocab_size)
    else:
        rows = read_spec(folder / CONFIG).config.vocab_size
    return tokenizer.for_table(rows)


def _kind(family: Family, settings: Settings, wanted: str | None) -> str:
    kinds = sorted(set(family.ARCHITECTURES.values()))
    usual = "encoder" if "encoder" in kinds else kinds[0]
    if wanted is not None:
        if wanted not in MODELS:
            raise ValueError(f"kind must be one of {', '.join(MODELS)}; got {wanted!r}")
        if wanted not in kinds:
            raise settings.error(
                f"a {settings.text('model_type')} is of the kind {' or '.join(kinds)}, not {wanted}"
            )
        return wanted
    names = settings.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not name:
        return usual
    if not isinstance(name, str) or name not in family.ARCHITECTURES:
        raise settings.error(
            f"architecture {name!r:.60} is not among {', '.join(family.ARCHITECTURES)}; "
            f'pass kind="{usual}" to load only that part of it'
        )
    return family.ARCHITECTURES[name]


def _named(folder: Path, entries: dict[str, Entry], family: Family, kind: str) -> dict[str, Entry]:
    """Rename the tensors to the names of the family: without prefix, and old names to new ones."""
    # If an encoder is loaded from a model with a head, tensors without the prefix are the head's.
    prefix = family.PREFIX
    inside = kind == "encoder" and any(name.startswith(prefix) for name in entries)
    named: dict[str, Entry] = {}
    for found, entry in entries.items():
        if inside and not found.startswith(prefix):
            continue
        name = found.removeprefix(prefix)
        for old, new in family.RENAMED.items():
            name = name.replace(old, new)
        if name in named:
            raise PretrainedError(f"{folder} has {shown(name)} twice, under two names")
        named[name] = entry
    return named


def _check_depth(folder: Path, entries: dict[str, Entry], config) -> None:
    """Check the number of layers."""
    # Before the shapes of the model are computed, which takes milliseconds for each wrong layer.
    config = getattr(config, "text", config)
    layers = (config.encoder if hasattr(config, "encoder") else config.decoder).num_layers
    numbers = [
        int(m[1])
        for name in entries
        if (m := re.search(r"(?:^|\.)(?:layers?|h)\.(\d{1,6})\.", name))
    ]
    stored = max(numbers, default=-1) + 1
    if layers > stored:
        raise PretrainedError(
            f"{folder} has tensors of {stored} layers; its {CONFIG} says {layers}"
        )


def _check(
    folder: Path,
    tensors: list[Tensor],
    entries: dict[str, Entry],
    shapes: dict[str, Shape],
    family: Family,
    kind: str,
) -> None:
    """Check before any tensor is read that all are there, have the right shapes, and are known."""
    expected = {tensor.name: tensor.shape(shapes) for tensor in tensors}
    if missing := set(expected) - set(entries):
        raise PretrainedError(f"{folder} lacks {some(missing)}")
    # Heads of other kinds are not read, but all of the model's own head is.
    others = [head for head in family.HEADS if not any(n.startswith(head) for n in expected)]
    ignored = re.compile("|".join([*family.IGNORED, *map(re.escape, others)]) or r"(?!)")
    if unknown := [n for n in set(entries) - set(expected) if not ignored.match(n)]:
        raise PretrainedError(
            f"{folder} has {some(unknown)}, which a model of this kind does not have"
        )
    for name, shape in expected.items():
        if entries[name].shape != shape:
            raise PretrainedError(
                f"{folder}: {name} is of the shape {entries[name].shape}; {CONFIG} says {shape}"
            )
        if entries[name].dtype not in DTYPES:
            raise PretrainedError(
                f"{folder}: {name} is of {entries[name].dtype}; {', '.join(DTYPES)} can be read"
            )


def _read(
    tensors: list[Tensor], entries: dict[str, Entry], shapes: dict[str, Shape], dtype: jnp.dtype
) -> dict[str, jax.Array]:
    # Found here, because a mesh is that of a thread.
    placed = {name: at_rest(name, shape) for name, shape in shapes.items()}

    def read_parts(tensor: Tensor, name: str, sharding: NamedSharding) -> jax.Array:
        of_file = entries[tensor.name].read_part
        return from_parts(
            shapes[name],
            sharding,
            lambda index: tensor.read_part(name, index, shapes, of_file).astype(dtype),
        )

    def read(tensor: Tensor) -> dict[str, jax.Array]:
        on_mesh = {name: s for name in tensor.parameters if (s := placed[name]) is not None}
        if on_mesh:
            return {name: read_parts(tensor, name, s) for name, s in on_mesh.items()}
        parts = tensor.read(entries[tensor.name].read(), shapes)
        return {name: jnp.asarray(part, dtype) for name, part in parts.items()}

    # Transposing takes a thread each, because NumPy copies with a single thread. Only a few tensors
    # are in memory at a time.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return dict(
            itertools.chain.from_iterable(found.items() for found in pool.map(read, tensors))
        )


def _of_run(folder: Path, name: str, kind: str | None, dtype: DTypeLike) -> nnx.Module:
    model = load_model(folder, name).model
    if kind == "encoder" and isinstance(model, EncoderClassifier | MaskedLanguageModel):
        model = model.text
    elif kind is not None and type(model) is not MODELS.get(kind):
        raise PretrainedError(
            f"{folder} is a run folder of a {name}, which is not of the kind {kind!r:.60}"
        )
    return cast(model, dtype)


def cast(model: nnx.Module, dtype: DTypeLike) -> nnx.Module:
    """Return the model with its parameters converted to `dtype`."""
    graph, state = nnx.split(model, nnx.Param)
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf.astype(dtype), state))
