"""RoBERTa (Liu et al., 2019, https://arxiv.org/abs/1907.11692) and XLM-R (Conneau et al., 2020,
https://arxiv.org/abs/1911.02116).

They have BERT's layers, one segment and another head. The first position is row pad + 1 of the
position table; the rows before it are unused.
"""

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.pretrained.families import bert
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.tensor_layout import Tensor, linear, norm

MODEL_TYPES = ("roberta", "xlm-roberta")
ARCHITECTURES = {
    f"{family}{suffix}": kind
    for family in ("Roberta", "XLMRoberta")
    for suffix, kind in (
        ("Model", "encoder"),
        ("ForMaskedLM", "masked"),
        ("ForSequenceClassification", "classifier"),
    )
}
PREFIX = "roberta."
HEADS = ("lm_head.", "classifier.", "pooler.")
OUTPUT = OutputLayer(
    "lm_head.decoder.weight",
    "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias",
    "lm_head.bias",
)
IGNORED = (r"embeddings\.position_ids$",)
RENAMED = bert.RENAMED
SKIP = 2  # pad + 1; the padding token has the id 1 in all published models


def holds(config) -> bool:
    return (
        isinstance(config, TextEncoderConfig)
        and config.positions == "learned"
        and config.num_segments == 1
    )


def read_config(settings: Settings, kind: str, names: set[str]):
    if settings.whole("pad_token_id", 1) + 1 != SKIP:
        raise settings.error("pad_token_id must be 1: positions begin at row pad_token_id + 1")
    text = bert.text_config(settings, kind, names, SKIP)
    if kind == "masked" and text.encoder.activation != "gelu":
        raise settings.error(
            "hidden_act must be gelu in a masked language model: its head always applies GELU"
        )
    return bert.of_kind(text, settings, kind)


def tensors(config, kind: str) -> list[Tensor]:
    at = "" if kind == "encoder" else "text."
    text = config.text if kind == "classifier" else config
    found = bert.text_tensors(text, at, SKIP)
    if text.pooler:
        found += linear("pooler.dense", "pooler.")
    if kind == "masked":
        found += linear("lm_head.dense", "head.linear.") + norm("lm_head.layer_norm", "head.norm")
        found += bert.output_tensors(OUTPUT, text.tied_head)
    if kind == "classifier":
        found += linear("classifier.dense", "linear.") + linear("classifier.out_proj", "head.")
    return found


def write_config(config, kind: str) -> dict:
    text = config.text if kind == "classifier" else config
    names = {"encoder": "RobertaModel", "masked": "RobertaForMaskedLM"}
    head = {} if kind != "classifier" else {"classifier_dropout": config.head_dropout_rate}
    return {
        "model_type": "roberta",
        "architectures": [names.get(kind, "RobertaForSequenceClassification")],
        **bert.text_settings(text, SKIP),
        **head,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
