"""Models to folders as Hugging Face lays them out, and only what is then computed as here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import named_parameters
from transformer_jax.pretrained.family import Family, family_of_config
from transformer_jax.pretrained.files import CONFIG, WEIGHTS, Settings
from transformer_jax.pretrained.loading import MODELS
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.files import write, write_text
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer

# Of a stack: they may be left out, and are compared by what they come to.
SPELLED_OUT = ("head_dim", "value_dim", "num_heads", "num_kv_heads", "qkv_biases")


def save_pretrained(
    model: nnx.Module,
    folder: str | Path,
    *,
    tokenizer: PretrainedTokenizer | None = None,
    classes: tuple[str, ...] | None = None,
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files; Transformers loads them and
    gives our outputs.

    The family follows from the configuration. Raises ValueError for a model that no family holds.
    """
    folder = Path(folder)
    kind = next((name for name, of in MODELS.items() if type(model) is of), None)
    config: Any = getattr(model, "config", None)
    family = family_of_config(config)
    if kind is None or family is None:
        raise ValueError(
            f"no family of pretrained models holds this {type(model).__name__}; a run folder does"
        )
    if classes is not None and (kind != "classifier" or len({*classes}) != config.num_classes):
        raise ValueError(f"classes must be as many different names as the model has; got {classes}")
    settings = _written(config, family, kind, classes)
    named = named_parameters(nnx.state(model, nnx.Param))
    parameters = {name: np.asarray(leaf) for name, leaf in named}
    prefix = "" if kind == "encoder" else family.PREFIX
    arrays = {
        _with_prefix(tensor.name, prefix, family): tensor.write(parameters)
        for tensor in family.tensors(config, kind)
    }
    dtype = str(next(iter(arrays.values())).dtype)
    # Left out, Transformers would take ids that it knows of the family, which this vocabulary may
    # not have.
    ids = {f"{name}_token_id": _id(tokenizer, name) for name in ("pad", "bos", "eos", "cls", "sep")}
    content = ids | settings | {"dtype": dtype, "torch_dtype": dtype}
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / WEIGHTS, lambda beside: save_file(arrays, beside, metadata={"format": "pt"}))
    write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")
    if tokenizer is not None:
        tokenizer.save(folder)


def _written(config: Any, family: Family, kind: str, classes: tuple[str, ...] | None) -> dict:
    """Return config.json, or raise where it says something else when it is read again."""
    problem = "its settings are others"
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
    """What of a configuration decides the outputs: all but dropout, and what is left out spelled
    out.
    """
    found = {}
    for name, value in vars(config).items():
        if isinstance(value, StackConfig):
            N, K, H, O = value.axes  # noqa: E741 (the letter of the axis)
            qkv = value.biases if value.qkv_biases is None else value.qkv_biases
            found[name] = _outputs(value) | {"axes": (N, K, H, O), "qkv_biases": qkv}
        elif isinstance(value, TextEncoderConfig):
            found[name] = _outputs(value)
        elif not name.endswith("dropout_rate") and name not in SPELLED_OUT:
            found[name] = value
    return found


def _id(tokenizer: PretrainedTokenizer | None, name: str) -> int | None:
    return None if tokenizer is None else getattr(tokenizer, f"{name}_id")


def _with_prefix(name: str, prefix: str, family: Family) -> str:
    is_head = name.startswith((*family.HEADS, "lm_head.")) and not name.startswith("pooler.")
    return name if is_head else prefix + name
