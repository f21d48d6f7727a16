"""DistilBERT (Sanh et al., 2019, https://arxiv.org/abs/1910.01108): half of BERT's layers, no
segment embeddings and no pooler.
"""

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.activations import PLAIN, name_of
from transformer_jax.pretrained.families import bert
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.tensor_layout import Tensor, embedding, linear, norm

MODEL_TYPES = ("distilbert",)
ARCHITECTURES = {
    "DistilBertModel": "encoder",
    "DistilBertForMaskedLM": "masked",
    "DistilBertForSequenceClassification": "classifier",
}
PREFIX = "distilbert."
HEADS = (
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "pre_classifier.",
    "classifier.",
)
OUTPUT = OutputLayer("vocab_projector.weight", "embeddings.word_embeddings.weight")
IGNORED = (r"embeddings\.position_ids$",)
RENAMED = bert.RENAMED
# Other names of settings, which Transformers reads too.
NAMES = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def holds(config) -> bool:
    return (
        isinstance(config, TextEncoderConfig)
        and config.positions == "learned"
        and config.num_segments == 0
    )


def read_config(settings: Settings, kind: str, names: set[str]):
    settings = settings.renamed(NAMES)
    dropout = settings.number("dropout", 0.1)
    text = TextEncoderConfig(
        settings.whole("vocab_size"),
        settings.whole("max_position_embeddings", 512),
        StackConfig(
            settings.whole("n_layers"),
            settings.whole("dim"),
            settings.whole("n_heads"),
            settings.whole("hidden_dim"),
            norm_epsilon=1e-12,
            activation=settings.choice("activation", PLAIN, "gelu"),
            dropout_rate=dropout,
            attention_dropout_rate=settings.number("attention_dropout", 0.1),
            hidden_dropout_rate=0.0,
        ),
        num_segments=0,
        tied_head=settings.flag("tie_word_embeddings", True),
        embedding_dropout_rate=dropout,
    )
    head_dropout = settings.number("seq_classif_dropout", 0.2)
    return bert.of_kind(text, settings, kind, activation="relu", head_dropout_rate=head_dropout)


def tensors(config, kind: str) -> list[Tensor]:
    at = "" if kind == "encoder" else "text."
    text = config.text if kind == "classifier" else config
    found = [
        embedding("embeddings.word_embeddings", f"{at}embedding.token"),
        embedding("embeddings.position_embeddings", f"{at}embedding.position"),
        *norm("embeddings.LayerNorm", f"{at}embedding.norm"),
    ]
    for i in range(text.encoder.num_layers):
        theirs, ours = f"transformer.layer.{i}", f"{at}encoder.layers.{i}"
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            found += linear(f"{theirs}.attention.{short}_lin", f"{ours}.attention.{name}_")
        found += linear(f"{theirs}.attention.out_lin", f"{ours}.attention.out_", inputs=2)
        found += norm(f"{theirs}.sa_layer_norm", f"{ours}.attention_norm")
        found += linear(f"{theirs}.ffn.lin1", f"{ours}.feed_forward.in_")
        found += linear(f"{theirs}.ffn.lin2", f"{ours}.feed_forward.out_")
        found += norm(f"{theirs}.output_layer_norm", f"{ours}.feed_forward_norm")
    if kind == "masked":
        found += linear("vocab_transform", "head.linear.") + norm("vocab_layer_norm", "head.norm")
        found += [Tensor("vocab_projector.bias", ("head.bias",), "vector")]
        if not text.tied_head:
            found += linear("vocab_projector", "head.output.", bias=False)
    if kind == "classifier":
        found += linear("pre_classifier", "linear.") + linear("classifier", "head.")
    return found


def write_config(config, kind: str) -> dict:
    text = config.text if kind == "classifier" else config
    stack = text.encoder
    names = {"encoder": "DistilBertModel", "masked": "DistilBertForMaskedLM"}
    head = {} if kind != "classifier" else {"seq_classif_dropout": config.head_dropout_rate}
    return {
        "model_type": "distilbert",
        "architectures": [names.get(kind, "DistilBertForSequenceClassification")],
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.max_length,
        "n_layers": stack.num_layers,
        "dim": stack.embed_dim,
        "n_heads": stack.num_heads,
        "hidden_dim": stack.hidden_dim,
        "activation": name_of(stack.activation, PLAIN),
        "dropout": stack.dropout_rate,
        "attention_dropout": stack.attention_dropout_rate,
        "tie_word_embeddings": text.tied_head,
        **head,
    }
