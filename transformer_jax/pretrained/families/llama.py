"""LLaMA (Touvron et al., 2023, https://arxiv.org/abs/2302.13971) and related models.

SmolLM has the same architecture. Qwen2 adds biases to queries, keys and values. Qwen3 instead has a
norm on every head's queries and keys. These files pair the features of rotary positions as this
library does, half a head apart, and also place heads that share a key next to each other.
"""

from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.position_schemes import RopeScaling
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
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
SCALINGS = {"linear": "linear", "llama3": "llama3"}


def holds(config) -> bool:
    return (
        isinstance(config, LanguageModelConfig)
        and config.positions == "rotary"
        and config.decoder.norm_kind == "rms"
        and not config.decoder.biases
    )


def read_config(settings: Settings, kind: str, names: set[str]) -> LanguageModelConfig:
    for name, value in (
        ("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False),
        ("use_sliding_window", False),
    ):  # fmt: skip
        settings.must_be(name, value)
    model_type = settings.text("model_type")
    N, D = settings.whole("num_attention_heads", least=1), settings.whole("hidden_size")
    rope = settings.part("rope_parameters") or settings  # at the top level in older files
    return LanguageModelConfig(
        settings.whole("vocab_size"),
        settings.whole("max_position_embeddings"),
        StackConfig(
            settings.whole("num_hidden_layers"),
            D,
            N,
            settings.whole("intermediate_size"),
            head_dim=settings.whole("head_dim", D // N),
            num_kv_heads=settings.whole("num_key_value_heads", N),
            norm="pre",
            final_norm=True,
            norm_kind="rms",
            norm_epsilon=settings.number("rms_norm_eps", 1e-6),
            activation="swiglu",
            biases=False,
            qkv_biases=model_type == "qwen2" or None,
            head_norm=model_type == "qwen3",
            dropout_rate=0.0,
            attention_dropout_rate=settings.number("attention_dropout", 0.0),
        ),
        positions="rotary",
        rope_base=rope.number("rope_theta", settings.number("rope_theta", 10_000.0)),
        rope_scaling=_scaling(settings),
        tied_head=settings.flag("tie_word_embeddings", False),
        embedding_dropout_rate=0.0,
    )


def _scaling(settings: Settings) -> RopeScaling | None:
    rope = settings.part("rope_parameters") or settings.part("rope_scaling")
    if rope is None:
        return None
    name = "rope_type" if "rope_type" in rope.values else "type"
    kind = rope.choice(name, {"default": None, **SCALINGS}, "default")
    if kind is None:
        return None
    if kind == "linear":
        return RopeScaling(kind, rope.number("factor"))
    return RopeScaling(
        kind,
        rope.number("factor"),
        rope.whole("original_max_position_embeddings"),
        rope.number("low_freq_factor"),
        rope.number("high_freq_factor"),
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
    rope = {"rope_type": "default", "rope_theta": config.rope_base}
    if config.rope_scaling is not None:
        scaled = config.rope_scaling
        rope |= {"rope_type": scaled.scaling, "factor": scaled.factor}
        if scaled.scaling == "llama3":
            rope |= {
                "original_max_position_embeddings": scaled.original_length,
                "low_freq_factor": scaled.low,
                "high_freq_factor": scaled.high,
            }
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
        "hidden_act": "silu",
        "attention_dropout": stack.attention_dropout_rate,
        "rope_parameters": rope,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_head,
    }
