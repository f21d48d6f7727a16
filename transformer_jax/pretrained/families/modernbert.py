"""ModernBERT (Warner et al., 2024, https://arxiv.org/abs/2412.13663): rotary positions, gated
feed-forward layers, pre-norm, mostly local layers, no biases.
"""

from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.activations import GATED, name_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.rope_settings import read_base
from transformer_jax.pretrained.tensor_layout import Tensor, embedding, fused_linear, linear, norm

MODEL_TYPES = ("modernbert",)
ARCHITECTURES = {"ModernBertModel": "encoder", "ModernBertForMaskedLM": "masked"}
PREFIX = "model."
HEADS = ("head.", "decoder.", "classifier.")
OUTPUT = OutputLayer("decoder.weight", "embeddings.tok_embeddings.weight")
IGNORED: tuple[str, ...] = ()
RENAMED: dict[str, str] = {}


def holds(config) -> bool:
    return isinstance(config, TextEncoderConfig) and config.positions == "rotary"


def read_config(settings: Settings, kind: str, names: set[str]) -> TextEncoderConfig:
    for name, value in (
        ("attention_bias", False), ("mlp_bias", False), ("norm_bias", False),
        ("classifier_bias", False), ("decoder_bias", True),
    ):  # fmt: skip
        settings.must_be(name, value)
    activation = settings.choice("hidden_activation", GATED, "gelu")
    if kind == "masked":
        of_head = settings.choice("classifier_activation", GATED, "gelu")
        if of_head != activation or of_head == "swiglu":
            raise settings.error(
                "classifier_activation, of the head, must be the GELU of hidden_activation"
            )
    window = settings.whole("local_attention", 128) // 2
    side = settings.whole("sliding_window", window)
    if side != window and settings.values.get("local_attention") is not None:
        raise settings.error(
            f"sliding_window is {side}, and local_attention, twice as wide, is {2 * window}; "
            "keep one of them"
        )
    num_layers = settings.whole("num_hidden_layers")
    rope_base, local_rope_base = _bases(settings)
    dropout = settings.number("mlp_dropout", 0.0)
    return TextEncoderConfig(
        settings.whole("vocab_size"),
        settings.whole("max_position_embeddings", 8192),
        StackConfig(
            num_layers,
            settings.whole("hidden_size"),
            settings.whole("num_attention_heads"),
            settings.whole("intermediate_size"),
            norm="pre",
            final_norm=True,
            first_norm=False,
            norm_biases=False,
            norm_epsilon=settings.number("norm_eps", 1e-5),
            activation=activation,
            biases=False,
            dropout_rate=dropout,
            attention_dropout_rate=settings.number("attention_dropout", 0.0),
        ),
        num_segments=0,
        positions="rotary",
        rope_base=rope_base,
        local_rope_base=local_rope_base,
        window=side,
        global_every=_global_every(settings, num_layers),
        tied_head=settings.flag("tie_word_embeddings", True),
        embedding_dropout_rate=settings.number("embedding_dropout", 0.0),
    )


def _global_every(settings: Settings, num_layers: int) -> int:
    """Return the distance of global layers, which older files give as a number."""
    every = settings.whole("global_attn_every_n_layers", 3, least=1)
    found = settings.values.get("layer_types")
    if found is None:
        return every
    if isinstance(found, list) and len(found) == num_layers:
        if settings.values.get("global_attn_every_n_layers") is None:
            later = [i for i, kind in enumerate(found) if i and kind == "full_attention"]
            every = later[0] if later else max(num_layers, 1)
        kinds = ("full_attention", "sliding_attention")
        if found == [kinds[i % every > 0] for i in range(num_layers)]:
            return every
    raise settings.error(
        f"layer_types must be a global layer, then local ones, in groups of {every}"
    )


def _bases(settings: Settings) -> tuple[float, float]:
    """Return the bases of rotary positions in global and in local layers."""
    for name in ("rope_scaling", "rope_theta", "partial_rotary_factor"):
        settings.must_be(name, None)
    places = {
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    }
    rope = settings.part("rope_parameters") or Settings.of(settings.path, {})
    for name in rope.values:
        if name not in places:
            raise settings.error(
                f"rope_parameters has {name!r:.60}; it must hold {' and '.join(places)}"
            )
    bases = []
    for kind, (old_name, default) in places.items():
        part = rope.part(kind) or Settings.of(settings.path, {})
        bases.append(read_base(settings, part, old_name, default))
    return bases[0], bases[1]


def tensors(config: TextEncoderConfig, kind: str) -> list[Tensor]:
    at = "" if kind == "encoder" else "text."
    found = [
        embedding("embeddings.tok_embeddings", f"{at}embedding.token"),
        *norm("embeddings.norm", f"{at}embedding.norm", bias=False),
        *norm("final_norm", f"{at}encoder.final_norm", bias=False),
    ]
    for i in range(config.encoder.num_layers):
        theirs, ours = f"layers.{i}", f"{at}encoder.layers.{i}"
        attention, network = f"{ours}.attention", f"{ours}.feed_forward"
        if i:
            found += norm(f"{theirs}.attn_norm", f"{ours}.attention_norm", bias=False)
        qkv = tuple(f"{attention}.{name}_" for name in ("query", "key", "value"))
        found += fused_linear(f"{theirs}.attn.Wqkv", qkv, bias=False)
        found += linear(f"{theirs}.attn.Wo", f"{attention}.out_", bias=False, inputs=2)
        found += norm(f"{theirs}.mlp_norm", f"{ours}.feed_forward_norm", bias=False)
        # The first half is the gate, to which the activation is applied.
        halves = (f"{network}.gate_", f"{network}.in_")
        found += fused_linear(f"{theirs}.mlp.Wi", halves, bias=False)
        found += linear(f"{theirs}.mlp.Wo", f"{network}.out_", bias=False)
    if kind == "masked":
        found += linear("head.dense", "head.linear.", bias=False)
        found += norm("head.norm", "head.norm", bias=False)
        found += [Tensor("decoder.bias", ("head.bias",), "vector")]
        if not config.tied_head:
            found += linear("decoder", "head.output.", bias=False)
    return found


def write_config(config: TextEncoderConfig, kind: str) -> dict:
    stack = config.encoder
    rope = {"full_attention": config.rope_base, "sliding_attention": config.local_rope_base}
    return {
        "model_type": "modernbert",
        "architectures": [{v: k for k, v in ARCHITECTURES.items()}[kind]],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "num_hidden_layers": stack.num_layers,
        "hidden_size": stack.embed_dim,
        "num_attention_heads": stack.num_heads,
        "intermediate_size": stack.hidden_dim,
        "norm_eps": stack.norm_epsilon,
        "hidden_activation": name_of(stack.activation, GATED),
        "classifier_activation": name_of(stack.activation, GATED),
        "global_attn_every_n_layers": config.global_every,
        "local_attention": 2 * (config.window or 0),
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": base} for name, base in rope.items()
        },
        "global_rope_theta": config.rope_base,
        "local_rope_theta": config.local_rope_base,
        "mlp_dropout": stack.dropout_rate,
        "attention_dropout": stack.attention_dropout_rate,
        "embedding_dropout": config.embedding_dropout_rate,
        "tie_word_embeddings": config.tied_head,
    }
