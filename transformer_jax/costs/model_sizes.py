"""What the costs of a model depend on, read from its configuration."""

from dataclasses import replace
from functools import singledispatch

from transformer_jax.costs.formulas import Sizes
from transformer_jax.functional.feed_forward import GATES
from transformer_jax.nn.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    StackConfig,
    TextEncoderConfig,
)


@singledispatch
def sizes_of(config) -> Sizes:
    """The `costs.Sizes` of the model that a configuration describes.

    Raises ValueError where the stacks of an encoder-decoder differ in more than their number of
    layers, and for an encoder of which some layers have a window.
    """
    raise TypeError(f"a configuration of a model is needed; got {type(config).__name__}")


@sizes_of.register
def _(config: ClassifierConfig) -> Sizes:
    patches = config.patch_width
    return Sizes(
        **_stack(config.encoder),
        vocab_size=config.vocab_size,
        num_positions=-(-config.max_length // patches) if patches else config.max_length,
        num_segments=0 if patches else config.num_segments,
        embedding_norm=True,
        num_classes=config.num_classes,
        num_pooled=len(config.pooling),
        region_width=config.region_width,
        region_features=config.region_features,
        patch_width=patches,
        ngram_rows=2**config.ngram_bits if config.ngrams else 0,
    )


@sizes_of.register
def _(config: LanguageModelConfig) -> Sizes:
    return Sizes(
        **_stack(config.decoder),
        vocab_size=config.vocab_size,
        num_positions=config.max_length if config.positions == "learned" else 0,
        causal=True,
        window=config.window,
        language_head="tied" if config.tied_head else "untied",
    )


@sizes_of.register
def _(config: SequenceToSequenceConfig) -> Sizes:
    encoder, decoder = _stack(config.encoder), _stack(config.decoder)
    if encoder | {"num_layers": 0} != decoder | {"num_layers": 0}:
        raise ValueError("encoder and decoder must have layers of one size to be counted")
    return Sizes(
        **encoder,
        num_decoder_layers=config.decoder.num_layers,
        vocab_size=config.vocab_size,
        num_positions=config.max_length if config.positions == "learned" else 0,
        causal=True,
        language_head="tied",
    )


@sizes_of.register
def _(config: TextEncoderConfig) -> Sizes:
    if config.window is not None:
        raise ValueError("layers that see all between others with a window are not counted")
    return Sizes(
        **_stack(config.encoder),
        vocab_size=config.vocab_size,
        num_positions=config.max_length if config.positions == "learned" else 0,
        num_segments=config.num_segments,
        embedding_norm=True,
        embedding_norm_bias=config.encoder.norm_biases,
        pooler=config.pooler,
    )


@sizes_of.register
def _(config: EncoderClassifierConfig) -> Sizes:
    has_map = config.activation is not None
    return replace(
        sizes_of(config.text),
        pooler=has_map,
        num_classes=config.num_classes,
        ngram_rows=2**config.ngram_bits if config.ngrams else 0,
    )


def _stack(config: StackConfig) -> dict[str, object]:
    return {
        "num_layers": config.num_layers,
        "embed_dim": config.embed_dim,
        "num_heads": config.num_heads,
        "hidden_dim": config.hidden_dim,
        "head_dim": config.head_dim,
        "value_dim": config.value_dim,
        "num_kv_heads": config.num_kv_heads,
        "gated": config.activation in GATES,
        "biases": config.biases,
        "qkv_biases": config.qkv_biases,
        "head_norm": config.head_norm,
        "norm_biases": config.norm_kind == "layer" and config.norm_biases,
        "first_norm": config.first_norm,
        "final_norm": config.final_norm,
    }
