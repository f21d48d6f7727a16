"""GPT-2 (Radford et al., 2019): `Conv1D` layers, and queries, keys and values in one tensor. The
head is usually the token embedding table.
"""

from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.activations import PLAIN, name_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.tensor_layout import Tensor, conv1d, embedding, linear, norm

MODEL_TYPES = ("gpt2",)
ARCHITECTURES = {"GPT2LMHeadModel": "language", "GPT2Model": "language"}
PREFIX = "transformer."
HEADS: tuple[str, ...] = ()
OUTPUT = OutputLayer("lm_head.weight", "wte.weight")
# Old files contain the causal mask of every layer.
IGNORED = (r"h\.\d+\.attn\.(masked_)?bias$",)
RENAMED: dict[str, str] = {}
# Other names of settings. Transformers reads all but n_ctx, the context length in old files.
NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "n_ctx": "n_positions",
}


def holds(config) -> bool:
    return (
        isinstance(config, LanguageModelConfig)
        and config.positions == "learned"
        and config.decoder.norm_kind == "layer"
    )


def read_config(settings: Settings, kind: str, names: set[str]) -> LanguageModelConfig:
    settings = settings.renamed(NAMES)
    for name, value in (
        ("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):  # fmt: skip
        settings.must_be(name, value)
    D = settings.whole("n_embd")
    return LanguageModelConfig(
        settings.whole("vocab_size"),
        settings.whole("n_positions"),
        StackConfig(
            settings.whole("n_layer"),
            D,
            settings.whole("n_head"),
            settings.whole("n_inner", 4 * D),
            norm="pre",
            final_norm=True,
            norm_epsilon=settings.number("layer_norm_epsilon", 1e-5),
            activation=settings.choice("activation_function", PLAIN, "gelu_new"),
            dropout_rate=settings.number("resid_pdrop", 0.1),
            attention_dropout_rate=settings.number("attn_pdrop", 0.1),
            hidden_dropout_rate=0.0,
        ),
        tied_head=settings.flag("tie_word_embeddings", True),
        embedding_dropout_rate=settings.number("embd_pdrop", 0.1),
    )


def tensors(config: LanguageModelConfig, kind: str) -> list[Tensor]:
    found = [
        embedding("wte", "embedding.token"),
        embedding("wpe", "embedding.position"),
        *norm("ln_f", "decoder.final_norm"),
    ]
    if not config.tied_head:
        found += linear("lm_head", "head.", bias=False)
    for i in range(config.decoder.num_layers):
        theirs, ours = f"h.{i}", f"decoder.layers.{i}"
        attention, network = f"{ours}.attention", f"{ours}.feed_forward"
        found += norm(f"{theirs}.ln_1", f"{ours}.attention_norm")
        qkv = (f"{attention}.{name}_" for name in ("query", "key", "value"))
        found += conv1d(f"{theirs}.attn.c_attn", *qkv)
        found += conv1d(f"{theirs}.attn.c_proj", f"{attention}.out_", inputs=2)
        found += norm(f"{theirs}.ln_2", f"{ours}.feed_forward_norm")
        found += conv1d(f"{theirs}.mlp.c_fc", f"{network}.in_")
        found += conv1d(f"{theirs}.mlp.c_proj", f"{network}.out_")
    return found


def write_config(config: LanguageModelConfig, kind: str) -> dict:
    stack = config.decoder
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_length,
        "n_layer": stack.num_layers,
        "n_embd": stack.embed_dim,
        "n_head": stack.num_heads,
        "n_inner": stack.hidden_dim,
        "layer_norm_epsilon": stack.norm_epsilon,
        "activation_function": name_of(stack.activation, PLAIN),
        "resid_pdrop": stack.dropout_rate,
        "attn_pdrop": stack.attention_dropout_rate,
        "embd_pdrop": config.embedding_dropout_rate,
        "tie_word_embeddings": config.tied_head,
    }
