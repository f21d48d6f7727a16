"""Saving of models in Hugging Face's layout, if Transformers then computes the same outputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.pretrained.family import Family, family_of_config
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.loading import MODELS
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.files import write, write_text
from transformer_jax.serialization.folder_files import CONFIG, WEIGHTS
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer

# Fields of a stack that may be left out. They are compared by the values that follow from them.
SPELLED_OUT = ("head_dim", "value_dim", "num_heads", "num_kv_heads", "qkv_biases")


def save_pretrained(
    model: nnx.Module,
    folder: str | Path,
    *,
    tokenizer: PretrainedTokenizer | None = None,
    classes: tuple[str, ...] | None = None,
) -> None:
    """Save a model as config.json, model.safetensors and the files of its tokenizer.

    Transformers loads these files and computes the same outputs. The family is determined by the
    configuration. Raises ValueError for a model that no family can represent, or for `classes` that
    do not match the model.
    """
    folder = Path(folder)
    kind = next((name for name, of in MODELS.items() if type(model) is of), None)
    config: Any = getattr(model, "config", None)
    family = family_of_config(config)
    if kind is None or family is None:
        raise ValueError(
            f"no family of pretrained models holds this {type(model).__name__}; "
            "save it in a run folder"
        )
    if classes is not None and (kind != "classifier" or len({*classes}) != config.num_classes):
        raise ValueError(f"classes must be as many different names as the model has; got {classes}")
    settings = written_config(config, family, kind, classes)
    named = named_parameters(nnx.state(model, nnx.Param))
    parameters = {name: np.asarray(leaf) for name, leaf in named}
    prefix = "" if kind == "encoder" else family.PREFIX
    arrays = {
        _with_prefix(tensor.name, prefix, family): tensor.write(parameters)
        for tensor in family.tensors(config, kind)
    }
    dtype = str(next(iter(arrays.values())).dtype)
    # Ids that are left out would get the family's defaults in Transformers, which may not be in
    # this vocabulary.
    ids = {f"{name}_token_id": _id(tokenizer, name) for name in ("pad", "bos", "eos", "cls", "sep")}
    content = ids | settings | {"dtype": dtype, "torch_dtype": dtype}
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / WEIGHTS, lambda beside: save_file(arrays, beside, metadata={"format": "pt"}))
    write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")
    if tokenizer is not None:
        tokenizer.save(folder)


def written_config(
    config: Any, family: Family, kind: str, classes: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return the content of config.json; raise ValueError if reading it gives another model."""
    problem = "its settings cannot be represented"
    try:
        settings = family.write_config(config, kind)
        if kind == "classifier":
            classes = classes or tuple(f"LABEL_{i}" for i in range(config.num_classes))
            settings["id2label"] = {str(i): name for i, name in enumerate(classes)}
            settings["label2id"] = {name: i for i, name in enumerate(classes)}
        names = {"pooler.dense.weight"} if getattr(config, "pooler", False) else set()
        again = family.read_config(Settings.of(Path(CONFIG), settings), kind, names)
        if _outputs(again) == _outputs(config):
            return settings
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        problem = one_line(error)
    hint = "; save_pretrained(model.text, folder) saves its encoder" * (kind == "classifier")
    raise ValueError(
        f"{family.MODEL_TYPES[0]} does not hold this {MODELS[kind].__name__}: {problem}{hint}"
    )


def _outputs(config) -> dict:
    """Return the settings that determine the outputs: all but dropout, with defaults resolved."""
    found = {}
    unused = ("ngram_bits",) if getattr(config, "ngrams", 0) == 0 else ()
    for name, value in vars(config).items():
        if isinstance(value, StackConfig):
            N, K, H, O = value.axes  # noqa: E741 (the letter of the axis)
            qkv = value.biases if value.qkv_biases is None else value.qkv_biases
            found[name] = _outputs(value) | {"axes": (N, K, H, O), "qkv_biases": qkv}
        elif isinstance(value, TextEncoderConfig):
            found[name] = _outputs(value)
        elif not name.endswith("dropout_rate") and name not in (*SPELLED_OUT, *unused):
            found[name] = value
    return found


def _id(tokenizer: PretrainedTokenizer | None, name: str) -> int | None:
    return None if tokenizer is None else getattr(tokenizer, f"{name}_id")


def _with_prefix(name: str, prefix: str, family: Family) -> str:
    is_head = name.startswith((*family.HEADS, "lm_head.")) and not name.startswith("pooler.")
    return name if is_head else prefix + name
