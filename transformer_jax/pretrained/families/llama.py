"""LLaMA (Touvron et al., 2023, https://arxiv.org/abs/2302.13971) and related models.

SmolLM has the same architecture. Qwen2 adds biases to queries, keys and values. Qwen3 instead has a
norm on every head's queries and keys. These files pair the features of rotary positions as this
library does, half a head apart, and also place heads that share a key next to each other.
"""

from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.activations import GATED, name_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.rope_settings import read_rope, write_rope
from transformer_jax.pretrained.tensor_layout import Tensor, embedding, linear, norm

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ARCHITECTURES = {
    f"{family}{suffix}": "language"
    for family in ("Llama", "Qwen2", "Qwen3")
    for suffix in ("ForCausalLM",)
}
PREFIX = "model."
HEADS: tuple[str, ...] = ()
OUTPUT = OutputLayer("lm_head.weight", "embed_tokens.weight")
IGNORED = (r".*rotary_emb\.inv_freq$",)
RENAMED: dict[str, str] = {}
ACTIVATIONS = {name: ours for name, ours in GATED.items() if ours == "swiglu"}


def holds(config) -> bool:
    return (
        isinstance(config, LanguageModelConfig)
        and config.positions == "rotary"
        and config.decoder.norm_kind == "rms"
        and not config.decoder.biases
    )


def read_config(settings: Settings, kind: str, names: set[str]) -> LanguageModelConfig:
    for name, value in (
        ("attention_bias", False), ("mlp_bias", False),
        ("attn_logit_softcapping", None), ("final_logit_softcapping", None),
    ):  # fmt: skip
        settings.must_be(name, value)
    model_type = settings.text("model_type")
    N, D = settings.whole("num_attention_heads", least=1), settings.whole("hidden_size")
    num_layers = settings.whole("num_hidden_layers")
    _check_windows(settings, num_layers)
    max_length = settings.whole("max_position_embeddings", least=1)
    rope_base, scaling = read_rope(settings, max_length)
    if scaling is not None and scaling.scaling == "yarn":  # often the length before scaling
        max_length = max(max_length, round(scaling.factor * (scaling.original_length or 0)))
    return LanguageModelConfig(
        settings.whole("vocab_size"),
        max_length,
        StackConfig(
            num_layers,
            D,
            N,
            settings.whole("intermediate_size"),
            head_dim=settings.whole("head_dim", 128 if model_type == "qwen3" else D // N),
            num_kv_heads=settings.whole("num_key_value_heads", N),
            norm="pre",
            final_norm=True,
            norm_kind="rms",
            norm_epsilon=settings.number("rms_norm_eps", 1e-6),
            activation=settings.choice("hidden_act", ACTIVATIONS, "silu"),
            biases=False,
            qkv_biases=model_type == "qwen2" or None,
            head_norm=model_type == "qwen3",
            dropout_rate=0.0,
            attention_dropout_rate=settings.number("attention_dropout", 0.0),
        ),
        positions="rotary",
        rope_base=rope_base,
        rope_scaling=scaling,
        tied_head=settings.flag("tie_word_embeddings", False),
        embedding_dropout_rate=0.0,
    )


def _check_windows(settings: Settings, num_layers: int) -> None:
    """Refuse layers that attend to a window of the text."""
    layers = settings.values.get("layer_types")
    first = settings.whole("max_window_layers", 28)  # the default of Transformers
    window = settings.whole("sliding_window", 4096)
    windowed = settings.values.get("sliding_window", window) is not None and first < num_layers
    if settings.flag("use_sliding_window", False) and windowed and layers is None:
        raise settings.error(
            f"use_sliding_window is not supported; layers from {first} on attend to {window} tokens"
        )
    if layers is None:
        return
    if not (
        isinstance(layers, list)
        and len(layers) == num_layers
        and all(kind == "full_attention" for kind in layers)
    ):
        raise settings.error(
            f"layer_types must be full_attention for each of {num_layers} layers, got "
            f"{layers!r:.60}"
        )


def tensors(config: LanguageModelConfig, kind: str) -> list[Tensor]:
    found = [
        embedding("embed_tokens", "embedding.token"),
        *norm("norm", "decoder.final_norm", bias=False),
    ]
    if not config.tied_head:
        found += linear("lm_head", "head.", bias=False)
    for i in range(config.decoder.num_layers):
        theirs, ours = f"layers.{i}", f"decoder.layers.{i}"
        attention, network = f"{ours}.attention", f"{ours}.feed_forward"
        found += norm(f"{theirs}.input_layernorm", f"{ours}.attention_norm", bias=False)
        biases = bool(config.decoder.qkv_biases)
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            projection = f"{theirs}.self_attn.{short}_proj"
            found += linear(projection, f"{attention}.{name}_", bias=biases)
        if config.decoder.head_norm:
            for short, name in (("q", "query"), ("k", "key")):
                scale = f"{theirs}.self_attn.{short}_norm"
                found += norm(scale, f"{attention}.{name}_norm", bias=False)
        found += linear(f"{theirs}.self_attn.o_proj", f"{attention}.out_", bias=False, inputs=2)
        found += norm(f"{theirs}.post_attention_layernorm", f"{ours}.feed_forward_norm", bias=False)
        for short, name in (("gate", "gate"), ("up", "in"), ("down", "out")):
            found += linear(f"{theirs}.mlp.{short}_proj", f"{network}.{name}_", bias=False)
    return found


def write_config(config: LanguageModelConfig, kind: str) -> dict:
    stack = config.decoder
    N, K, H, _ = stack.axes
    qwen = "qwen3" if stack.head_norm else "qwen2"
    model_type = qwen if stack.head_norm or stack.qkv_biases else "llama"
    return {
        "model_type": model_type,
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "num_hidden_layers": stack.num_layers,
        "hidden_size": stack.embed_dim,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "head_dim": H,
        "intermediate_size": stack.hidden_dim,
        "rms_norm_eps": stack.norm_epsilon,
        "hidden_act": name_of(stack.activation, ACTIVATIONS),
        "attention_dropout": stack.attention_dropout_rate,
        "rope_parameters": write_rope(config.rope_base, config.rope_scaling),
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_head,
    }
