"""Checkpoints with other settings or heads, and the logits that PyTorch computes with them: `python
-m tests.data.checkpoints.variants`.

Each is one of the folders beside this file with changes. `variants.safetensors` holds the logits at
`positions(variant)` of one text, in float32.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.helpers.needs import start

FOLDER = Path(__file__).parent
LOGITS = FOLDER / "variants.safetensors"
Tensors = dict[str, np.ndarray]

# Of each folder: the names of its output matrix and of its token table.
HEADS = {
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    "distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    "modernbert": ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "llama": ("lm_head.weight", "model.embed_tokens.weight"),
    "llama-scaled": ("lm_head.weight", "model.embed_tokens.weight"),
    "qwen2": ("lm_head.weight", "model.embed_tokens.weight"),
    "qwen3": ("lm_head.weight", "model.embed_tokens.weight"),
}
# Of each folder whose output bias has two names: the second and the first.
BIASES = {
    "bert": ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    "roberta": ("lm_head.decoder.bias", "lm_head.bias"),
}
ABSENT = object()  # the value of a setting that is left out


@dataclass(frozen=True)
class Variant:
    """A folder beside this file, and what is changed in it."""

    base: str
    settings: dict = field(default_factory=dict)
    change: Callable[[str, Tensors], Tensors] | None = None
    length: int = 24  # number of tokens of the text


def own_head(base: str, tensors: Tensors) -> Tensors:
    """Add an output matrix that is not the token table."""
    head, table = HEADS[base]
    return tensors | {head: np.roll(tensors[table], 5, axis=0) * np.float32(0.75)}


def same_head(base: str, tensors: Tensors) -> Tensors:
    head, table = HEADS[base]
    return tensors | {head: tensors[table].copy()}


def head_alone(base: str, tensors: Tensors) -> Tensors:
    """Store the token table under the name of the output matrix only."""
    head, table = HEADS[base]
    return {name: t for name, t in tensors.items() if name != table} | {head: tensors[table]}


def own_bias(base: str, tensors: Tensors) -> Tensors:
    """Add a second output bias with other values."""
    second, first = BIASES[base]
    return tensors | {second: np.roll(tensors[first], 3)}


def second_bias_alone(base: str, tensors: Tensors) -> Tensors:
    second, first = BIASES[base]
    return {name: t for name, t in tensors.items() if name != first} | {second: tensors[first]}


def own_head_and_bias(base: str, tensors: Tensors) -> Tensors:
    tensors = own_head(base, tensors)
    return own_bias(base, tensors) if base in BIASES else tensors


def yarn(**options) -> dict:
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16} | options


def scaled(base: str, rope: dict, **settings) -> Variant:
    """A model for 64 tokens with these `rope_parameters`."""
    rope = {"rope_theta": 100.0} | rope
    return Variant(base, {"max_position_embeddings": 64, "rope_parameters": rope} | settings,
                   length=60)  # fmt: skip


def in_old_form(base: str, rope: dict, **settings) -> Variant:
    """A model for 64 tokens with this `rope_scaling`, beside `rope_theta`."""
    settings = {"rope_parameters": ABSENT, "rope_theta": 100.0, "rope_scaling": rope} | settings
    return Variant(base, {"max_position_embeddings": 64} | settings, length=60)


TIES = {"true": True, "false": False, "absent": ABSENT}
CHANGES = [(own_head_and_bias, tied) for tied in TIES] + [
    (own_head, "true"), (same_head, "true"), (head_alone, "true"),
]  # fmt: skip

VARIANTS: dict[str, Variant] = {
    **{
        f"{base}-{change.__name__}-tied-{tied}": Variant(
            base, {"tie_word_embeddings": TIES[tied]}, change
        )
        for base in ("bert", "roberta", "distilbert", "modernbert", "gpt2", "qwen2")
        for change, tied in CHANGES
    },
    **{
        f"{base}-{change.__name__}": Variant(base, {}, change)
        for base in BIASES
        for change in (own_bias, second_bias_alone)
    },
    "linear": scaled("llama", {"rope_type": "linear", "factor": 4.0}),
    "dynamic": scaled("llama", {"rope_type": "dynamic", "factor": 4.0}),
    "llama3": scaled("qwen2", {
        "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }),
    "yarn": scaled("qwen3", yarn()),
    "yarn-llama": scaled("llama", yarn()),
    "yarn-qwen2": scaled("qwen2", yarn()),
    "yarn-attention-factor": scaled("qwen3", yarn(attention_factor=0.7)),
    "yarn-betas": scaled("qwen3", yarn(beta_fast=4.0, beta_slow=0.5)),
    "yarn-mscale": scaled("qwen3", yarn(mscale=1.5, mscale_all_dim=0.5)),
    "yarn-mscale-alone": scaled("qwen3", yarn(mscale=1.5)),
    "yarn-untruncated": scaled("qwen3", yarn(truncate=False, beta_fast=4.0)),
    "yarn-factor-null": scaled("qwen3", yarn(factor=None)),
    "yarn-length-absent": scaled("qwen3", {"rope_type": "yarn", "factor": 4.0}),
    "yarn-length-outside": scaled(
        "qwen3", {"rope_type": "yarn", "factor": 4.0}, original_max_position_embeddings=16
    ),
    "yarn-beyond-the-positions-in-the-file": scaled("qwen3", yarn(), max_position_embeddings=32),
    "yarn-old-form": in_old_form("qwen3", yarn()),
    "yarn-oldest-form": in_old_form(
        "llama", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    ),
    "yarn-both-forms": in_old_form(
        "qwen3", yarn(), rope_parameters={"rope_type": "default", "rope_theta": 100.0}
    ),
    "yarn-both-forms-nested": Variant(
        "qwen3",
        {"max_position_embeddings": 64, "rope_scaling": yarn(rope_theta=300.0)},
        length=60,
    ),
    "gelu_fast": Variant("bert", {"hidden_act": "gelu_fast"}),
    "gelu_python": Variant("distilbert", {"activation": "gelu_python"}),
    "gelu_python_tanh": Variant("gpt2", {"activation_function": "gelu_python_tanh"}),
    "gelu_accurate": Variant("modernbert", {
        "hidden_activation": "gelu_accurate", "classifier_activation": "gelu_pytorch_tanh",
    }),
    "swish": Variant("llama", {"hidden_act": "swish"}),
    "names-of-gpt2": Variant("gpt2", {"n_embd": ABSENT, "hidden_size": 24, "n_head": ABSENT,
                                      "num_attention_heads": 4}),
    "upcast": Variant("gpt2", {"reorder_and_upcast_attn": True}),
    "window-behind-the-layers": Variant("qwen2", {
        "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2,
        "layer_types": ABSENT,
    }),
    "window-null": Variant("qwen2", {
        "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0,
        "layer_types": ABSENT,
    }),
    "layers-of-modernbert": Variant("modernbert", {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "global_attn_every_n_layers": ABSENT,
    }),
    "window-of-modernbert": Variant("modernbert", {"local_attention": ABSENT, "sliding_window": 2}),
}  # fmt: skip


def write(variant: Variant, folder: Path) -> Path:
    """Write the checkpoint of a variant."""
    shutil.copytree(FOLDER / variant.base, folder, dirs_exist_ok=True)
    settings = json.loads((folder / "config.json").read_text()) | variant.settings
    settings = {name: value for name, value in settings.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(settings))
    if variant.change is not None:
        path = folder / "model.safetensors"
        save_file(variant.change(variant.base, load_file(path)), path, {"format": "pt"})
    return folder


def tokens(variant: Variant) -> np.ndarray:
    """The text [1, T]. No token is one of padding."""
    return np.random.default_rng(1).integers(4, 97, (1, variant.length))


def positions(variant: Variant) -> np.ndarray:
    return np.array([0, variant.length // 2, variant.length - 1])


def main() -> None:
    import tempfile

    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    found = {}
    for name, variant in VARIANTS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = write(variant, Path(place))
            settings = json.loads((folder / "config.json").read_text())
            cls = getattr(transformers, settings["architectures"][0])
            model, info = cls.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
            )
        print(name, {key: value for key, value in info.items() if value})
        assert not info["missing_keys"], name
        with torch.no_grad():
            out = model.eval()(torch.tensor(tokens(variant)))
        logits = out.get("prediction_logits", out.get("logits"))[0]
        found[name] = logits[positions(variant)].numpy()
    save_file(found, LOGITS)


if __name__ == "__main__":
    start("tests.data.checkpoints.variants", __doc__, "torch", "transformers")
    main()
