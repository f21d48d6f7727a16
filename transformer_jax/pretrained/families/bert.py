"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805), MiniLM, and sentence encoders with
BERT's architecture.
"""

from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.activations import PLAIN, name_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.tensor_layout import Tensor, embedding, linear, norm

MODEL_TYPES = ("bert",)
ARCHITECTURES = {
    "BertModel": "encoder",
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "masked",
    "BertForSequenceClassification": "classifier",
}
PREFIX = "bert."
HEADS = ("cls.", "classifier.", "pooler.")  # parts that a model may lack
OUTPUT = OutputLayer(
    "cls.predictions.decoder.weight",
    "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.bias",
)
# No model of this library has the next-sentence head. Old files hold positions and segments, which
# Transformers does not read.
BUFFERS = r"embeddings\.(position|token_type)_ids$"
IGNORED = (r"cls\.seq_relationship\.", BUFFERS)
# Names in old files.
RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}


def holds(config) -> bool:
    return (
        isinstance(config, TextEncoderConfig)
        and config.positions == "learned"
        and config.num_segments > 1
    )


def read_config(settings: Settings, kind: str, names: set[str]):
    """Read the configuration of a model. `names` are the names of the tensors in its file."""
    return of_kind(text_config(settings, kind, names), settings, kind)


def text_config(settings: Settings, kind: str, names: set[str], skip: int = 0) -> TextEncoderConfig:
    """Read the configuration of the encoder. Its position table has `skip` unused first rows."""
    settings.must_be("position_embedding_type", "absolute")
    settings.must_be("is_decoder", False)
    settings.must_be("add_cross_attention", False)
    return TextEncoderConfig(
        settings.whole("vocab_size"),
        settings.whole("max_position_embeddings") - skip,
        StackConfig(
            settings.whole("num_hidden_layers"),
            settings.whole("hidden_size"),
            settings.whole("num_attention_heads"),
            settings.whole("intermediate_size"),
            norm_epsilon=settings.number("layer_norm_eps", 1e-12),
            activation=settings.choice("hidden_act", PLAIN, "gelu"),
            dropout_rate=settings.number("hidden_dropout_prob", 0.1),
            attention_dropout_rate=settings.number("attention_probs_dropout_prob", 0.1),
            hidden_dropout_rate=0.0,
        ),
        num_segments=settings.whole("type_vocab_size", 2, least=1),
        pooler=kind == "encoder" and "pooler.dense.weight" in names,
        tied_head=settings.flag("tie_word_embeddings", True),
        embedding_dropout_rate=settings.number("hidden_dropout_prob", 0.1),
    )


def of_kind(text: TextEncoderConfig, settings: Settings, kind: str, **head):
    """Build the configuration of a model of the kind `kind` from that of its encoder."""
    if kind != "classifier":
        return text
    dropout = settings.number("classifier_dropout", text.encoder.dropout_rate)
    options = {"activation": "tanh", "head_dropout_rate": dropout} | head
    return EncoderClassifierConfig(text, num_classes(settings), "cls", **options)


def num_classes(settings: Settings) -> int:
    """Return the number of classes in id2label, else num_labels, else 2 as in Transformers."""
    labels = settings.part("id2label")
    if labels is None:
        return settings.whole("num_labels", 2)
    count = len(labels.values)
    if set(labels.values) != {str(i) for i in range(count)}:
        raise settings.error(
            f"id2label must name the classes 0 to {count - 1}, got {labels.values!r:.60}"
        )
    if (said := settings.whole("num_labels", count)) != count:
        raise settings.error(f"num_labels is {said}, and id2label names {count}; keep one of them")
    return count


def tensors(config, kind: str) -> list[Tensor]:
    """Return the tensors of a model's file."""
    at = "" if kind == "encoder" else "text."
    text = config.text if kind == "classifier" else config
    found = text_tensors(text, at)
    if text.pooler:
        found += linear("pooler.dense", "pooler.")
    if kind == "masked":
        found += linear("cls.predictions.transform.dense", "head.linear.")
        found += norm("cls.predictions.transform.LayerNorm", "head.norm")
        found += output_tensors(OUTPUT, text.tied_head)
    if kind == "classifier":
        found += linear("pooler.dense", "linear.") + linear("classifier", "head.")
    return found


def text_tensors(config: TextEncoderConfig, at: str, skip: int = 0) -> list[Tensor]:
    """Return the tensors of the encoder, whose parameter names begin with `at`."""
    found = [
        embedding("embeddings.word_embeddings", f"{at}embedding.token"),
        embedding("embeddings.position_embeddings", f"{at}embedding.position", skip=skip),
        embedding("embeddings.token_type_embeddings", f"{at}embedding.segment"),
        *norm("embeddings.LayerNorm", f"{at}embedding.norm"),
    ]
    for i in range(config.encoder.num_layers):
        theirs, ours = f"encoder.layer.{i}", f"{at}encoder.layers.{i}"
        for name in ("query", "key", "value"):
            found += linear(f"{theirs}.attention.self.{name}", f"{ours}.attention.{name}_")
        found += linear(f"{theirs}.attention.output.dense", f"{ours}.attention.out_", inputs=2)
        found += norm(f"{theirs}.attention.output.LayerNorm", f"{ours}.attention_norm")
        found += linear(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.in_")
        found += linear(f"{theirs}.output.dense", f"{ours}.feed_forward.out_")
        found += norm(f"{theirs}.output.LayerNorm", f"{ours}.feed_forward_norm")
    return found


def output_tensors(layer: OutputLayer, tied: bool) -> list[Tensor]:
    """Return the tensors of an output layer whose bias has two names."""
    names = (layer.tied_bias,) if tied else (layer.tied_bias, layer.bias)
    found = [Tensor(str(name), ("head.bias",), "vector") for name in names]
    return found if tied else [*found, Tensor(layer.matrix, ("head.output.kernel",), "linear")]


def write_config(config, kind: str) -> dict:
    """Return the content of config.json for a model."""
    text = config.text if kind == "classifier" else config
    names = {"encoder": "BertModel", "masked": "BertForMaskedLM"}
    head = {} if kind != "classifier" else {"classifier_dropout": config.head_dropout_rate}
    return {
        "model_type": "bert",
        "architectures": [names.get(kind, "BertForSequenceClassification")],
        **text_settings(text),
        **head,
    }


def text_settings(config: TextEncoderConfig, skip: int = 0) -> dict:
    """Return the settings of an encoder under their names in BERT's config.json."""
    stack = config.encoder
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length + skip,
        "type_vocab_size": config.num_segments,
        "num_hidden_layers": stack.num_layers,
        "hidden_size": stack.embed_dim,
        "num_attention_heads": stack.num_heads,
        "intermediate_size": stack.hidden_dim,
        "layer_norm_eps": stack.norm_epsilon,
        "hidden_act": name_of(stack.activation, PLAIN),
        "hidden_dropout_prob": stack.dropout_rate,
        "attention_probs_dropout_prob": stack.attention_dropout_rate,
        "tie_word_embeddings": config.tied_head,
    }
