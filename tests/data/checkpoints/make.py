"""Tiny random checkpoints and what PyTorch makes of them: `python -m tests.data.checkpoints.make`.

Needs torch and transformers; the tests that read these folders need neither. Each folder holds
`config.json` and `model.safetensors` as `save_pretrained` writes them (one of the families in
shards, one under old names, one in bfloat16) and `expected.safetensors`, with

    tokens         int32   [B, T]         right padded; no text holds the id of the padding
    is_token       uint8   [B, T]         1 at tokens, 0 at padding
    segment_ids    int32   [B, T]         where the model takes token types
    hidden_states  float32 [L+1, B, T, D]  embeddings first, then what each layer gives
    logits         float32 [B, T, V]      of the language modelling head, where there is one
    logits         float32 [B, C]         of a classifier
    pooled         float32 [B, D]         where there is a pooler

The first of `hidden_states` is what enters the first layer: after the norm of the embeddings where
the model has one. The last is `last_hidden_state`: in a model with a final norm (ModernBERT, GPT-2,
Llama, Qwen) it is taken after that norm, and what the last layer gave is not stored.

Each text runs alone, without padding, and its results are placed in an array that is zero
elsewhere, so that nothing here depends on how padding is treated. All of it is computed from the
saved files, read back: float32, no dropout, eager attention.

All parameters are drawn anew, biases and norms included, so that one which is forgotten shows.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    from tests.helpers.needs import start

    start("tests.checkpoints.make", __doc__, "torch", "transformers")

import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel

FOLDER = Path(__file__).parent
LENGTHS = (11, 7, 4)
VOCABULARY = 97
LIMIT = 1_500_000  # bytes, of all the folders together

# Removing these changes nothing that is stored. Softmax does not see what is added to all the
# scores of a query, and that is all a bias of the keys does where they are not rotated.
WITHOUT_EFFECT = (
    "attention.self.key.bias",
    "attention.k_lin.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)


@dataclass(frozen=True)
class Family:
    """A checkpoint to write: the model's class in transformers, and its config."""

    model: type[PreTrainedModel]
    config: PreTrainedConfig
    padding: int = 0
    segments: bool = False
    dtype: torch.dtype = torch.float32
    shard_size: str = "1GB"
    rewrite: Callable[[Path], None] | None = None  # what is done to the folder once saved


def rename_as_of_old(folder: Path) -> None:
    """Give the file the names that BERT's norms had, and the buffer that was saved with them."""
    path = folder / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    tensors["embeddings.position_ids"] = torch.arange(positions)[None]
    save_file(tensors, path, metadata={"format": "pt"})


def bert_config(**rest) -> PreTrainedConfig:
    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_attention_heads=4,
        intermediate_size=40,
        num_hidden_layers=2,
        **{"max_position_embeddings": 32, "type_vocab_size": 2, "pad_token_id": 0} | rest,
    )


def roberta_config(config: type[PreTrainedConfig], **rest) -> PreTrainedConfig:
    return config(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_attention_heads=4,
        intermediate_size=40,
        num_hidden_layers=2,
        # 32 positions and the two before them: positions start at the padding id plus one.
        max_position_embeddings=34,
        type_vocab_size=1,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **rest,
    )


def distilbert_config(**rest) -> PreTrainedConfig:
    return transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=24,
        n_heads=4,
        hidden_dim=40,
        n_layers=2,
        max_position_embeddings=32,
        pad_token_id=0,
        **rest,
    )


def decoder_config(config: type[PreTrainedConfig], **rest) -> PreTrainedConfig:
    return config(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        num_hidden_layers=2,
        bos_token_id=1,
        eos_token_id=2,
        **{"max_position_embeddings": 32, "hidden_act": "silu"} | rest,
    )


def families() -> dict[str, Family]:
    """Every checkpoint, by the name of its folder."""
    t = transformers
    return {
        "bert": Family(t.BertForPreTraining, bert_config(layer_norm_eps=1e-3), segments=True),
        "bert-old": Family(
            t.BertModel, bert_config(layer_norm_eps=1e-3), segments=True, rewrite=rename_as_of_old
        ),
        "bert-classifier": Family(
            t.BertForSequenceClassification, bert_config(num_labels=2), segments=True
        ),
        "roberta": Family(
            t.RobertaForMaskedLM, roberta_config(t.RobertaConfig, layer_norm_eps=1e-5), padding=1
        ),
        "xlm-roberta": Family(
            t.XLMRobertaModel,
            roberta_config(t.XLMRobertaConfig, layer_norm_eps=1e-4),
            padding=1,
            dtype=torch.bfloat16,
        ),
        "distilbert": Family(t.DistilBertForMaskedLM, distilbert_config()),
        "distilbert-classifier": Family(
            t.DistilBertForSequenceClassification,
            distilbert_config(id2label={0: "negative", 1: "neutral", 2: "positive"}),
        ),
        "modernbert": Family(
            t.ModernBertForMaskedLM,
            t.ModernBertConfig(
                vocab_size=VOCABULARY,
                hidden_size=24,
                num_attention_heads=4,
                intermediate_size=40,
                num_hidden_layers=4,
                max_position_embeddings=32,
                norm_eps=2e-3,
                global_attn_every_n_layers=3,
                local_attention=6,
                rope_parameters={
                    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                },
                pad_token_id=3,
                bos_token_id=1,
                cls_token_id=1,
                eos_token_id=2,
                sep_token_id=2,
            ),
            padding=3,
        ),
        "gpt2": Family(
            t.GPT2LMHeadModel,
            t.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=24,
                n_head=4,
                n_layer=2,
                n_positions=32,
                layer_norm_epsilon=1e-3,
                bos_token_id=VOCABULARY - 1,
                eos_token_id=VOCABULARY - 1,
            ),
        ),
        "llama": Family(
            t.LlamaForCausalLM,
            decoder_config(
                t.LlamaConfig,
                rms_norm_eps=1e-4,
                rope_parameters={"rope_type": "default", "rope_theta": 500.0},
                tie_word_embeddings=False,
            ),
            shard_size="40KB",
        ),
        "llama-scaled": Family(
            t.LlamaForCausalLM,
            decoder_config(
                t.LlamaConfig,
                rms_norm_eps=1e-5,
                max_position_embeddings=128,
                # The three wavelengths, 6.3, 19.5 and 60.7, meet the three rules: below 32/4 one
                # stays, above 32/1 one is divided by the factor, and between them one is blended.
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 30.0,
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
                tie_word_embeddings=True,
            ),
        ),
        "qwen2": Family(
            t.Qwen2ForCausalLM,
            decoder_config(
                t.Qwen2Config,
                rms_norm_eps=2e-4,
                rope_parameters={"rope_type": "default", "rope_theta": 200.0},
                tie_word_embeddings=True,
            ),
        ),
        "qwen3": Family(
            t.Qwen3ForCausalLM,
            decoder_config(
                t.Qwen3Config,
                head_dim=10,
                rms_norm_eps=1e-3,
                rope_parameters={"rope_type": "default", "rope_theta": 300.0},
                tie_word_embeddings=False,
            ),
        ),
    }


def draw(model: PreTrainedModel, seed: int) -> None:
    """Draw every parameter anew, so that none is at the value that it has when forgotten."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        normal = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.data = 0.2 * normal
        elif name.endswith("bias"):
            parameter.data = 0.3 * normal
        else:
            parameter.data = 1 + 0.3 * normal
    model.tie_weights()


def save(family: Family, folder: Path) -> None:
    """Write the weights and the config of a family."""
    shutil.rmtree(folder, ignore_errors=True)
    model = family.model(family.config)
    draw(model, seed=0)
    model.to(family.dtype).save_pretrained(folder, max_shard_size=family.shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if family.rewrite:
        family.rewrite(folder)


def load(family: Family, folder: Path) -> PreTrainedModel:
    """The model of a folder as the tests are to read it, in float32."""
    model, info = family.model.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    return model.eval()


def inputs(family: Family) -> dict[str, np.ndarray]:
    """Texts of different lengths, each with tokens of both segments where the model takes them."""
    rng = np.random.default_rng(0)
    shape = len(LENGTHS), max(LENGTHS)
    is_token = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    others = np.delete(np.arange(VOCABULARY), family.padding)
    tokens = np.where(is_token, rng.choice(others, shape), family.padding)
    arrays = {"tokens": tokens.astype(np.int32), "is_token": is_token.astype(np.uint8)}
    if family.segments:
        second = np.arange(max(LENGTHS)) >= np.array(LENGTHS)[:, None] // 2 + 1
        arrays["segment_ids"] = (second & is_token).astype(np.int32)
    return arrays


@torch.no_grad()
def run(model: PreTrainedModel, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the model for a batch, under the names of the stored arrays."""
    names = {"tokens": "input_ids", "is_token": "attention_mask", "segment_ids": "token_type_ids"}
    batch = {names[name]: torch.tensor(array).long() for name, array in arrays.items()}
    whole = model(**batch, output_hidden_states=True)
    base = model.base_model(**batch)
    results = {"hidden_states": torch.stack(whole.hidden_states)}
    assert torch.equal(results["hidden_states"][-1], base.last_hidden_state)
    logits = whole.get("prediction_logits", whole.get("logits"))
    if logits is not None:
        results["logits"] = logits
    if "pooler_output" in base:
        results["pooled"] = base.pooler_output
    return {name: result.numpy() for name, result in results.items()}


def expected(model: PreTrainedModel, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the model for each text alone, in arrays that are zero at padding."""
    texts = []
    for i, length in enumerate(LENGTHS):
        text = run(model, {name: array[i : i + 1, :length] for name, array in arrays.items()})
        for name, result in text.items():
            if result.ndim > 2:  # [..., B, T, D], and [B, D] of the pooler and the classifiers
                axes = [(0, 0)] * result.ndim
                axes[-2] = 0, max(LENGTHS) - length
                text[name] = np.pad(result, axes)
        texts.append(text)
    return {
        name: np.concatenate([text[name] for text in texts], axis=-3 if result.ndim > 2 else 0)
        for name, result in texts[0].items()
    }


def check_padding(
    model: PreTrainedModel, arrays: dict[str, np.ndarray], results: dict[str, np.ndarray]
) -> None:
    """The padded batch gives the same as each text alone, where there are tokens."""
    for name, together in run(model, arrays).items():
        if together.ndim > 2:
            together = together * arrays["is_token"][..., None]
        np.testing.assert_allclose(together, results[name], rtol=1e-5, atol=1e-5, err_msg=name)


def check_parameters(
    model: PreTrainedModel, arrays: dict[str, np.ndarray], results: dict[str, np.ndarray]
) -> None:
    """Every parameter shows when it is forgotten: a norm at one, all others at zero."""
    for name, parameter in model.named_parameters():
        kept = parameter.data.clone()
        is_scale = parameter.ndim == 1 and not name.endswith("bias")
        parameter.data.fill_(1.0 if is_scale else 0.0)
        without = expected(model, arrays)
        parameter.data.copy_(kept)
        change = max(abs(without[key] - results[key]).max() for key in results)
        if name.endswith(WITHOUT_EFFECT):
            assert change < 1e-5, f"{name} changes the results by {change}"
        else:
            assert change > 1e-2, f"{name} changes the results by {change} only"


def describe(folder: Path) -> None:
    """Print what a folder holds."""
    print(f"\n{folder.name}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")
    for path in sorted(folder.glob("*.safetensors")):
        print(f"  {path.name}")
        with safe_open(path, "np") as file:
            for name in sorted(file.keys()):
                tensor = file.get_slice(name)
                print(f"    {name} {tensor.get_dtype()} {tensor.get_shape()}")


def main() -> None:
    torch.set_num_threads(1)  # sums in one order, on every machine
    transformers.utils.logging.disable_progress_bar()
    for name, family in families().items():
        folder = FOLDER / name
        save(family, folder)
        model = load(family, folder)
        arrays = inputs(family)
        results = expected(model, arrays)
        check_padding(model, arrays, results)
        check_parameters(model, arrays, results)
        save_arrays(arrays | results, folder / "expected.safetensors")
        describe(folder)
    size = sum(path.stat().st_size for path in FOLDER.glob("*/*") if path.suffix != ".pyc")
    print(f"\nin total: {size:,} bytes")
    assert size < LIMIT


if __name__ == "__main__":
    main()
