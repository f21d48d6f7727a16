"""The cost of a transformer: published parameter counts, formulas against counts of the jaxpr,
laws, the command.
"""

import dataclasses
import json
import re
import types
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.recipes.imdb import FAST, SAMPLE, TUTORIAL
from transformer_jax.__main__ import main
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal, sliding_window
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.costs import formulas
from transformer_jax.costs.formulas import FEED_FORWARD, PRODUCTS, PROJECTIONS
from transformer_jax.costs.jaxpr import count
from transformer_jax.costs.published import PUBLISHED
from transformer_jax.functional.feed_forward import feed_forward, gated_feed_forward
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import EncoderLayer
from transformer_jax.nn.layers import MultiHeadAttention
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.nn.position_schemes import RopeScaling

B, T, D, N, H, F = 2, 11, 42, 6, 7, 13


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def layer_of(**changes):
    return StackConfig(
        **{"num_layers": 1, "embed_dim": D, "num_heads": N, "hidden_dim": F} | changes
    )


def two_stacks(encoder_layers=1, decoder_layers=1, vocab_size=1, **changes):
    """An encoder-decoder whose positions are sinusoids."""
    stacks = (layer_of(num_layers=L, **changes) for L in (encoder_layers, decoder_layers))
    return SequenceToSequenceConfig(vocab_size, 17, *stacks)


def language_model(tied_head, **changes):
    return LanguageModelConfig(31, 17, layer_of(**changes), positions="none", tied_head=tied_head)


def text_encoder(**changes):
    return TextEncoderConfig(31, 17, layer_of(), **changes)


# Parameters ---------------------------------------------------------------------------------------

EXACT = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "distilbert": 66_362_880,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
}  # fmt: skip
# [layers, heads, embedding, parameters] as the scale table of the sources prints them.
SCALE_TABLE = {
    "bert-base": (12, 12, 768, 110e6),
    "bert-large": (24, 16, 1024, 340e6),
    "distilbert": (6, 12, 768, 66e6),
    "gpt2-xl": (48, 25, 1600, 1.5e9),
    "gpt3": (96, 96, 12_288, 175e9),
    "llama2-70b": (80, 64, 8192, 70e9),
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_of_released_weights_are_exact(name):
    assert formulas.parameters(PUBLISHED[name].config) == EXACT[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_within_seven_per_cent(name):
    published = PUBLISHED[name]
    assert published.nominal == pytest.approx(formulas.parameters(published.config), rel=0.07)


@pytest.mark.parametrize("name", SCALE_TABLE)
def test_the_scale_table_of_the_sources(name):
    (stack,) = formulas.stacks_of(PUBLISHED[name].config)
    found = (stack.num_layers, stack.num_heads, stack.embed_dim, PUBLISHED[name].nominal)
    assert found == SCALE_TABLE[name]


def test_training_gpt3_by_the_rule_is_3_15e23():
    gpt3 = PUBLISHED["gpt3"]
    assert formulas.six_nd(gpt3.nominal, gpt3.tokens) == pytest.approx(3.15e23, rel=1e-12)
    # With the parameters counted, as the source prints it.
    assert formulas.six_nd(formulas.parameters(gpt3.config), gpt3.tokens) == pytest.approx(
        3.14e23, rel=1e-3
    )


def test_the_feed_forward_and_attention_of_the_sources():
    """FFN 512-2048-512 and attention of 512, without biases."""
    table = formulas.parameter_table(StackConfig(1, 512, 8, 2048, biases=False))
    assert (table["feed-forward"], table["attention"]) == (2_097_152, 1_048_576)


@pytest.mark.parametrize("stacks", [(1, 1), (2, 3)])
def test_parameters_of_the_encoder_decoder_equal_those_of_pytorch(stacks):
    """`torch.nn.Transformer`: the layers of 2017, biases everywhere, and a norm at the end of each
    stack.
    """
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Transformer(D, N, *stacks, dim_feedforward=F, batch_first=True, device="meta")
    config = two_stacks(*stacks, final_norm=True)
    ours = formulas.parameters(config) - D  # a table of one token
    assert ours == sum(parameter.numel() for parameter in theirs.parameters())


def test_parameters_by_hand():
    """A weight here for each weight there, written out by shape."""

    def of(*shapes):
        return sum(int(np.prod(shape)) for shape in shapes)

    def part(name, config):
        return formulas.parameter_table(config).get(name, 0)

    attention = [(D, N, H), (D, 2, H), (D, 2, H), (N, H, D)]
    assert part("attention", layer_of(num_kv_heads=2, biases=False)) == of(*attention)
    biases = [(N, H), (2, H), (2, H), (D,)]
    assert part("attention", layer_of(num_kv_heads=2)) == of(*attention, *biases)
    assert part("cross-attention", two_stacks(1, 3)) == 3 * part("attention", layer_of())
    gated = [(D, F), (D, F), (F, D)]
    assert part("feed-forward", layer_of(activation="swiglu", biases=False)) == of(*gated)
    assert part("feed-forward", layer_of(activation="swiglu")) == of(*gated, (F,), (F,), (D,))
    assert part("norms", two_stacks(final_norm=True)) == (2 + 3 + 2) * of((D,), (D,))
    assert part("norms", text_encoder()) == (2 + 1) * of((D,), (D,))
    assert part("norms", layer_of(norm_biases=False)) == 2 * of((D,))
    assert part("norms", layer_of(norm_kind="rms")) == 2 * of((D,))
    assert part("pooler", text_encoder(pooler=True)) == of((D, D), (D,))
    assert part("head", language_model(tied_head=False)) == of((D, 31))
    assert part("head", language_model(tied_head=True)) == part("head", layer_of()) == 0
    classifier = ClassifierConfig(31, 17, 5, layer_of(), pooling=("max", "mean"))
    assert part("head", classifier) == of((2 * D, 5), (5,))


def real_parameters(config):
    model = nnx.eval_shape(lambda: TextClassifier(config, rngs=AbstractRngs()))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(("layers", "parameters"), [(4, 16_092_674), (6, 17_672_194)])
def test_parameters_of_the_tutorial_classifier(layers, parameters):
    encoder = dataclasses.replace(TUTORIAL.model.encoder, num_layers=layers)
    config = dataclasses.replace(TUTORIAL.model, encoder=encoder)
    assert formulas.parameters(config) == parameters == real_parameters(config)


BASE = ClassifierConfig(31, 17, encoder=StackConfig(2, D, N, F))
# Of each field of the configurations a value that is not the default: the formulas must know what
# it changes.
CHANGES = {
    "vocab_size": 37, "max_length": 19, "num_classes": 5, "num_segments": 3,
    "pooling": ("max", "mean"),
    "region_width": 3, "region_features": 7, "patch_width": 4, "embedding_dropout_rate": 0.0,
    "head_dropout_rate": 0.0, "encoder_scale": 0.5, "attends": False,
    "ngrams": 2, "ngram_bits": 6,
}  # fmt: skip
ENCODER_CHANGES = {
    "num_layers": 3, "embed_dim": 48, "num_heads": 3, "hidden_dim": 11, "head_dim": 5,
    "value_dim": 7,
    "num_kv_heads": 2, "norm": "pre", "final_norm": True, "norm_kind": "rms", "norm_epsilon": 1e-3,
    "activation": "swiglu", "biases": False, "dropout_rate": 0.0, "attention_dropout_rate": 0.0,
    "hidden_dropout_rate": 0.0,
    "qkv_biases": False, "norm_biases": False, "head_norm": True, "first_norm": False,
}  # fmt: skip


def changed():
    for name, value in CHANGES.items():
        more = {"patch_width": {"region_features": 7}, "ngram_bits": {"ngrams": 3}}.get(name, {})
        yield name, dataclasses.replace(BASE, **{name: value}, **more)
    for name, value in ENCODER_CHANGES.items():
        more = {"norm": "pre"} if name == "first_norm" else {}
        encoder = dataclasses.replace(BASE.encoder, **{name: value}, **more)
        yield f"encoder.{name}", dataclasses.replace(BASE, encoder=encoder)


def test_every_field_of_the_configurations_is_tried():
    for cls, tried in (
        (ClassifierConfig, {*CHANGES, "encoder"}),
        (StackConfig, {*ENCODER_CHANGES}),
    ):
        assert {field.name for field in dataclasses.fields(cls)} == tried


CONFIGS = dict(changed()) | {"base": BASE, "fast": FAST.model, "sample": SAMPLE.model}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_forward_flops_equal_those_of_the_real_classifier(name):
    config = CONFIGS[name]
    assert formulas.parameters(config) == real_parameters(config)
    graph, params = nnx.split(nnx.eval_shape(lambda: TextClassifier(config, rngs=AbstractRngs())))

    def forward(params, tokens, is_token):
        return nnx.merge(graph, params)(tokens, is_token, implementation="reference")

    length = config.max_length
    tokens = array(B, length, dtype=jnp.int32), array(B, length, dtype=bool)
    counted = count(forward, params, *tokens)
    # Patches are of the tokens moved to the front, and a loop looks for what a long mask hides: no
    # product in either.
    assert set(counted.unknown) <= {"sort", "while"}
    assert counted.flops == formulas.forward_flops(config, length, batch=B)


STACK = StackConfig(2, 36, N, F)  # rotary positions turn pairs of features
ONE_LAYER = dataclasses.replace(STACK, num_layers=1)
WRITERS = {
    LanguageModelConfig: (
        LanguageModel,
        LanguageModelConfig(31, 17, decoder=STACK),
        {
            "vocab_size": 37, "max_length": 19, "positions": "rotary", "rope_base": 1e3,
            "window": 3, "rope_scaling": RopeScaling("linear", 2.0), "tied_head": False,
            "embedding_dropout_rate": 0.0,
        },
    ),
    SequenceToSequenceConfig: (
        SequenceToSequence,
        # How many layers of a reader cost is compared above.
        SequenceToSequenceConfig(31, 17, encoder=ONE_LAYER, decoder=STACK),
        {
            "vocab_size": 37, "max_length": 19, "positions": "learned", "rope_base": 1e3,
            "embedding_dropout_rate": 0.0,
        },
    ),
}  # fmt: skip


def writers():
    for cls, (model, base, changes) in WRITERS.items():
        stacks = [name for name in ("encoder", "decoder") if hasattr(base, name)]
        assert {field.name for field in dataclasses.fields(cls)} == {*changes, *stacks}
        yield pytest.param(model, base, id=model.__name__)
        for name, value in changes.items():
            config = dataclasses.replace(base, **{name: value})
            yield pytest.param(model, config, id=f"{model.__name__}, {name}")
        for name, value in ENCODER_CHANGES.items():
            if name == "first_norm":
                continue  # of encoders alone
            both = {s: dataclasses.replace(getattr(base, s), **{name: value}) for s in stacks}
            config = dataclasses.replace(base, **both)
            yield pytest.param(model, config, id=f"{model.__name__}, stack.{name}")


@pytest.mark.parametrize(("model", "config"), [*writers()])
def test_parameters_and_forward_flops_equal_those_of_models_that_write(model, config):
    graph, params = nnx.split(nnx.eval_shape(lambda: model(config, rngs=AbstractRngs())))
    assert formulas.parameters(config) == sum(leaf.size for leaf in jax.tree.leaves(params))
    text = array(B, T, dtype=jnp.int32), array(B, T, dtype=bool)
    arguments = text * (2 if model is SequenceToSequence else 1)
    counted = count(lambda params, *args: nnx.merge(graph, params)(*args), params, *arguments)
    assert counted.flops == formulas.forward_flops(config, T, batch=B)


TEXT = TextEncoderConfig(31, 17, dataclasses.replace(STACK, norm_biases=False), pooler=True)
READERS = [
    (TextEncoder, TEXT),
    (TextEncoder, dataclasses.replace(TEXT, num_segments=0, positions="rotary", pooler=False)),
    (EncoderClassifier, EncoderClassifierConfig(dataclasses.replace(TEXT, pooler=False), 5)),
    (
        EncoderClassifier,
        EncoderClassifierConfig(
            dataclasses.replace(TEXT, pooler=False), 3, "mean", None, ngrams=2, ngram_bits=5
        ),
    ),
]


@pytest.mark.parametrize(("model", "config"), READERS)
def test_parameters_of_published_readers(model, config):
    real = nnx.state(nnx.eval_shape(lambda: model(config, rngs=AbstractRngs())), nnx.Param)
    assert formulas.parameters(config) == sum(leaf.size for leaf in jax.tree.leaves(real))


def test_what_is_no_configuration_is_named():
    with pytest.raises(TypeError, match="config"):
        formulas.parameters(3)


# Attention ----------------------------------------------------------------------------------------

MASKS = {"none": None, "causal": causal(), "window": sliding_window(5, 0)}


def attend(query, key, value, mask=None):
    return dot_product_attention(query, key, value, mask=mask, implementation="reference")


def heads(T, K=N):
    return array(B, T, N, H), array(B, T, K, H), array(B, T, K, H)


def gradient(fn, arguments):
    """The gradient of the sum of the outputs, with respect to the first arguments."""
    return jax.grad(lambda *args: jnp.sin(fn(*args)).sum(), argnums=tuple(range(arguments)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_attention_costs_four_times_as_much_for_twice_the_length(direction, mask):
    def fn(*args):
        return attend(*args, mask=MASKS[mask])

    fn = fn if direction == "forward" else gradient(fn, 3)
    counts = [count(fn, *heads(T)) for T in (32, 64, 128, 256)]
    for shorter, longer in pairwise(counts):
        assert longer.flops / shorter.flops == 4.0
        assert longer.largest_bytes / shorter.largest_bytes == 4.0
        assert sum(size == longer.largest_shape[-1] for size in longer.largest_shape) == 2  # T x S


@pytest.mark.parametrize(
    ("mask", "K"), [("none", 1), ("none", 6), ("causal", 2), ("causal", 6), ("window", 3)]
)
def test_attention_flops_equal_the_formula_whatever_the_mask_and_the_groups(mask, K):
    def fn(*args):
        return attend(*args, mask=MASKS[mask])

    table = formulas.forward_table(layer_of(num_kv_heads=K), T, batch=B)
    assert count(fn, *heads(T, K)).flops == table[PRODUCTS]
    assert count(gradient(fn, 3), *heads(T, K)).flops == 3 * table[PRODUCTS]


@pytest.mark.parametrize("K", [1, 2, 3, 6])
def test_multi_head_attention_flops_equal_the_formula(K):
    x = array(B, T, D)
    kernels = array(D, N, H), array(D, K, H), array(D, K, H), array(N, H, D)

    def fn(x, *kernels):
        return multi_head_attention(x, x, *kernels)

    table = formulas.forward_table(layer_of(num_kv_heads=K), T, batch=B)
    forward = table[PRODUCTS] + table[PROJECTIONS]
    assert count(fn, x, *kernels).flops == forward
    assert count(gradient(fn, 5), x, *kernels).flops == 3 * forward


def test_feed_forward_flops_equal_the_formula():
    x, inner, outer = array(B, T, D), array(D, F), array(F, D)
    forward = formulas.forward_table(layer_of(), T, batch=B)[FEED_FORWARD]

    def fn(x, inner, outer):
        return feed_forward(x, inner, None, outer, None)

    assert count(fn, x, inner, outer).flops == forward
    assert count(gradient(fn, 3), x, inner, outer).flops == 3 * forward


def test_gated_feed_forward_flops_equal_the_formula():
    x, inner, outer = array(B, T, D), array(D, F), array(F, D)
    forward = formulas.forward_table(layer_of(activation="swiglu"), T, batch=B)[FEED_FORWARD]
    counted = count(gated_feed_forward, x, inner, inner, outer)
    assert counted.flops == forward


@pytest.mark.parametrize("length", [1, 2, 11])
@pytest.mark.parametrize("window", [None, 0, 1, 5, 40])
def test_visible_pairs_are_those_of_the_mask(length, window):
    one_way = causal() if window is None else sliding_window(window, 0)
    both = np.ones((length, length), bool) if window is None else sliding_window(window, window)
    for mask, is_causal in ((one_way, True), (both, False)):
        rendered = mask if isinstance(mask, np.ndarray) else mask.to_array(length)
        assert formulas.visible_pairs(length, causal=is_causal, window=window) == rendered.sum()


def test_a_causal_mask_halves_and_a_window_makes_attention_linear():
    def products(T, **visible):
        return formulas.forward_table(layer_of(), T, **visible)[PRODUCTS]

    long = 2**14
    assert products(long, causal=True) / products(long) == pytest.approx(0.5, rel=1e-4)
    assert products(2 * long) / products(long) == 4
    windowed = [products(T, causal=True, window=128) for T in (long, 2 * long)]
    assert windowed[1] / windowed[0] == pytest.approx(2, rel=1e-2)
    assert products(T) == 4 * N * H * T * T  # what is computed without skipping


# A layer ------------------------------------------------------------------------------------------


def layer_and_input(T, *, remat=False, implementation="reference", **changes):
    """A function of the parameters of an encoder layer and its input, and their shapes."""
    config = StackConfig(
        **{"num_layers": 1, "embed_dim": D, "num_heads": N, "hidden_dim": F} | changes
    )
    graph, params = nnx.split(nnx.eval_shape(lambda: EncoderLayer(config, rngs=AbstractRngs())))

    def apply(params, x):
        return nnx.merge(graph, params)(x, LayerContext(implementation=implementation))

    return (jax.checkpoint(apply) if remat else apply), params, array(B, T, config.embed_dim)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("K", [2, 6])
def test_encoder_layer_flops_equal_the_formula(K, norm):
    sizes = layer_of(num_kv_heads=K)
    fn, *args = layer_and_input(T, num_kv_heads=K, norm=norm)
    assert count(fn, *args).flops == formulas.forward_flops(sizes, T, batch=B)
    both = count(gradient(fn, 2), *args).flops
    assert both == formulas.training_flops(sizes, T, batch=B) == 3 * count(fn, *args).flops
    # Without the gradient of the input, which the first layer above fixed vectors does not need,
    # the three products of the input with the projections have one gradient instead of two (pre:
    # its norm needs it).
    parameters_alone = count(jax.grad(lambda p, x: jnp.sin(fn(p, x)).sum()), *args).flops
    saved = 2 * B * T * D * (N + 2 * K) * H
    assert both - parameters_alone == (saved if norm == "post" else 0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_remat_computes_a_layer_once_more_but_for_a_last_product_that_no_gradient_needs(norm):
    sizes = layer_of()
    fn, *args = layer_and_input(T, norm=norm, remat=True)
    last = 2 * B * T * F * D  # post: the norm after it needs its value
    counted = count(gradient(fn, 2), *args).flops
    assert counted == formulas.training_flops(sizes, T, batch=B, remat=True) - last * (
        norm == "pre"
    )
    assert formulas.training_flops(sizes, T, remat=True) == 4 * formulas.forward_flops(sizes, T)
    head = language_model(tied_head=True)  # which is not in a layer
    once_more = formulas.training_flops(head, T, remat=True) - formulas.training_flops(head, T)
    assert once_more == formulas.forward_flops(sizes, T) < formulas.forward_flops(head, T)


def test_layers_in_a_scan_cost_as_much_as_layers_in_a_row():
    """With each layer rematerialised: what a deep stack is trained as."""
    layers = 5
    fn, params, x = layer_and_input(T, norm="post", remat=True)
    stacked = jax.tree.map(lambda leaf: array(layers, *leaf.shape), params)

    def stack(params, x):
        return jax.lax.scan(lambda x, one: (fn(one, x), None), x, params)[0]

    sizes = layer_of(num_layers=layers)
    assert count(stack, stacked, x).flops == formulas.forward_flops(sizes, T, batch=B)
    remat = formulas.training_flops(sizes, T, batch=B, remat=True)
    assert count(gradient(stack, 2), stacked, x).flops == remat


def test_parameters_of_a_layer_equal_the_real_one():
    for K, head_dim in ((6, None), (2, 5)):
        sizes = layer_of(num_kv_heads=K, head_dim=head_dim)
        _, params, _ = layer_and_input(T, num_kv_heads=K, head_dim=head_dim)
        layer = formulas.parameters(sizes) - formulas.parameters(
            dataclasses.replace(sizes, num_layers=0)
        )
        assert layer == sum(leaf.size for leaf in jax.tree.leaves(params))


# Crossover ----------------------------------------------------------------------------------------


def test_attention_equals_its_projections_at_2d_and_the_rest_of_the_layer_at_6d():
    D, N = 48, 6
    sizes = StackConfig(1, D, N, 4 * D)
    assert formulas.crossover_lengths(sizes) == (2 * D, 6 * D)
    at_2d, at_6d = formulas.forward_table(sizes, 2 * D), formulas.forward_table(sizes, 6 * D)
    assert at_2d[PRODUCTS] == at_2d[PROJECTIONS]
    assert at_6d[PRODUCTS] == at_6d[PROJECTIONS] + at_6d[FEED_FORWARD]

    def counted(T):
        """T x T products, projections, the whole layer, from the jaxpr alone."""
        split = array(B, T, N, D // N)
        products = count(attend, split, split, split).flops
        module = nnx.eval_shape(lambda: MultiHeadAttention(D, N, rngs=AbstractRngs()))
        graph, params = nnx.split(module)
        whole = count(lambda p, x: nnx.merge(graph, p)(x, x), params, array(B, T, D)).flops
        fn, *args = layer_and_input(T, embed_dim=D, num_heads=N, hidden_dim=4 * D)
        return products, whole - products, count(fn, *args).flops

    products, projections, _ = counted(2 * D)
    assert products == projections
    products, _, layer = counted(6 * D)
    assert products == layer - products


def test_crossovers_move_with_shared_keys_and_gates():
    projections, layer = formulas.crossover_lengths(layer_of(num_kv_heads=2, activation="swiglu"))
    assert projections == D * (1 + 2 / 6)
    assert layer == pytest.approx(D * (1 + 2 / 6) + 3 * D * F / (2 * N * H))
    table = formulas.forward_table(StackConfig(1, 64, 4, 96, num_kv_heads=2), 96)
    assert table[PRODUCTS] == table[PROJECTIONS]


# Bytes --------------------------------------------------------------------------------------------


def kept_by_jax(T, dtype, **changes):
    """Bytes of the arrays over texts that a layer's backward pass gets from its forward pass.

    An array and its reshape, which have the same bytes and share them in a compiled step, count
    once.
    """
    fn, *shapes = layer_and_input(T, **changes)
    rng = np.random.default_rng(0)
    arguments = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), dtype), shapes)
    kept = jax.tree.leaves(jax.vjp(fn, *arguments)[1])
    return sum(map(len, {np.asarray(x).tobytes() for x in kept if x.shape[:1] in ((B,), (B * T,))}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("T", [53, 509])
def test_jax_keeps_no_less_than_the_formula_and_at_most_twice(T, dtype):
    """The formula is what the gradient needs; JAX keeps some of it before and after a cast."""
    changes = {"embed_dim": 96, "hidden_dim": 384, "num_kv_heads": 2}
    for more in ({"activation": "gelu"}, {"norm": "pre"}):
        formula = formulas.activation_bytes(layer_of(**changes), T, batch=B, dtype=dtype)
        assert 1 <= kept_by_jax(T, dtype, **changes, **more) / formula <= 2
        if dtype == "bfloat16":
            continue  # without the weights most of what is kept is the norms', in float32
        more["implementation"] = "blockwise"
        formula = formulas.activation_bytes(
            layer_of(**changes), T, batch=B, dtype=dtype, keep_weights=False
        )
        assert 1 <= kept_by_jax(T, dtype, **changes, **more) / formula <= 2


def test_remat_keeps_the_input_of_a_layer_alone():
    kept = kept_by_jax(T, "float32", remat=True)
    layers = [
        formulas.activation_bytes(layer_of(num_layers=L), T, batch=B, remat=True) for L in (1, 2, 9)
    ]
    assert kept == layers[1] - layers[0] == (layers[2] - layers[0]) / 8 == 4 * B * T * D


def test_kept_bytes_by_hand():
    def kept(**options):
        return formulas.activation_bytes(
            layer_of(num_kv_heads=2, num_layers=3), T, batch=B, **options
        )

    per_token = 4 * D + 2 * (N + 2) * H + 2 * F
    assert kept() == 3 * B * T * (4 * per_token + 4 * N * T)
    assert kept(dtype="bfloat16") == 3 * B * T * (2 * per_token + (4 + 2) * N * T)
    assert kept(dtype="float64") == 2 * kept()
    assert kept(keep_weights=False) == 3 * B * T * (4 * per_token + 2 * 4 * N)
    assert kept(remat=True) == B * T * (2 * 4 * D + 4 * per_token + 4 * N * T)
    assert formulas.activation_bytes(layer_of(num_layers=0), T, remat=True) == 0


def test_kept_bytes_of_korthikanti_at_16_bits():
    """34 s b h + 5 a s^2 b with dropout (2022, equation 1): without its masks and dropped weights
    32 and 2.
    """
    s, h, a = 2048, 12_288, 96
    sizes = StackConfig(1, h, a, 4 * h)
    linear = formulas.activation_bytes(sizes, s, dtype="float16", keep_weights=False) - 8 * a * s
    assert linear == 32 * s * h
    with_weights = formulas.activation_bytes(sizes, s, dtype="float16")
    # Float32 weights beside the 16-bit ones: 4 + 2 where they count 2.
    assert with_weights - linear == (4 + 2) * a * s * s


def test_heads_and_norms_around_the_layers_keep_and_compute_their_part():
    plain = formulas.activation_bytes(layer_of(), T)

    def more(config):
        return formulas.activation_bytes(config, T) - plain

    assert more(language_model(tied_head=True)) == 4 * T * 31
    assert more(language_model(tied_head=False)) == 4 * T * 31
    assert more(text_encoder()) == 4 * T * D  # the norm of the embeddings
    assert more(layer_of(final_norm=True)) == 4 * T * 2 * D
    assert more(layer_of(activation="swiglu")) == 4 * T * F
    in_two_stacks = more(two_stacks(final_norm=True)) - more(two_stacks())
    assert in_two_stacks == 2 * more(layer_of(final_norm=True))
    for tied_head in (True, False):
        table = formulas.forward_table(language_model(tied_head), T, batch=B)
        x, W = array(B, T, D), array(D, 31)
        assert table["head"] == count(jnp.matmul, x, W).flops
    assert formulas.forward_table(text_encoder(pooler=True), T, batch=B)["pooler"] == 2 * B * D * D


def test_without_the_weights_the_bytes_grow_with_the_length_and_with_them_with_its_square():
    def kept(T, **options):
        return formulas.activation_bytes(PUBLISHED["bert-base"].config, T, **options)

    assert kept(2**16, keep_weights=False) == 2 * kept(2**15, keep_weights=False)
    assert kept(2**16) / kept(2**15) == pytest.approx(4, rel=0.02)


def test_a_cache_holds_keys_and_values_of_the_key_heads_and_a_ring_of_the_window():
    def cached(length, **window):
        config = layer_of(num_layers=3, num_kv_heads=2)
        return formulas.cache_bytes(config, length, batch=B, **window)

    # One example a row: keys and values of two heads of seven in float32.
    assert cached(T) == 3 * B * (2 * T * 2 * 7) * 4
    assert cached(T) * 3 == formulas.cache_bytes(layer_of(num_layers=3), T, batch=B)  # K=2 of N=6
    assert cached(1000, window=4) == cached(5) == cached(5, window=4)
    assert cached(3, window=4) == cached(3)
    seven_b = formulas.cache_bytes(PUBLISHED["llama2-7b"].config, 4096, dtype="float16")
    seventy_b = formulas.cache_bytes(PUBLISHED["llama2-70b"].config, 4096, dtype="float16")
    assert seven_b == 2**31  # half a mebibyte a token
    assert seventy_b / seven_b == (80 * 8) / (32 * 32)


def test_an_encoder_decoder_keeps_and_computes_its_cross_attention():
    both, T = two_stacks(), 11
    assert formulas.cache_bytes(both, T) == 2 * formulas.cache_bytes(layer_of(), T)
    ring = formulas.cache_bytes(both, T, window=4)  # of what is written; all that was read
    assert ring == formulas.cache_bytes(layer_of(), 5) + formulas.cache_bytes(layer_of(), T)
    table, alone = formulas.forward_table(both, T), formulas.forward_table(layer_of(), T)
    times = [table[part] / alone[part] for part in (PROJECTIONS, PRODUCTS, FEED_FORWARD)]
    assert times == [3, 3, 2]
    hidden = formulas.forward_table(both, T, causal=True)
    # Only where it writes no token sees a later one.
    assert hidden[PRODUCTS] == 4 * N * H * (T * T + T * (T + 1) // 2 + T * T)
    kept = formulas.activation_bytes(both, T) - 2 * formulas.activation_bytes(layer_of(), T)
    assert kept == 4 * T * (2 * D + 4 * N * H + N * T) + 4 * T  # and the logits of one token


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: formulas.forward_flops(layer_of(), 0), "length must be 1 or more; got 0"),
        (lambda: formulas.training_flops(layer_of(), 3, batch=0), "batch must be 1 or more; got 0"),
        (lambda: formulas.activation_bytes(layer_of(), -1), "length must be 1 or more; got -1"),
        (lambda: formulas.cache_bytes(layer_of(), 0), "length must be 1 or more; got 0"),
        (lambda: formulas.cache_bytes(layer_of(), 1, window=-1),
         "window must be 0 or more; got -1"),
        (lambda: formulas.cache_bytes(layer_of(), 1, dtype="float33"),
         "dtype must be the name of a type, .*; got 'float33'"),
        (lambda: formulas.visible_pairs(0), "T must be 1 or more; got 0"),
        (lambda: formulas.visible_pairs(3, window=-1), "window must be 0 or more; got -1"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_argument_what_was_expected_and_what_came(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


# The command --------------------------------------------------------------------------------------


def cost(capsys, *arguments):
    code = main(["cost", *map(str, arguments)])
    out, err = capsys.readouterr()
    return types.SimpleNamespace(code=code, out=out, err=err)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_table_fits_into_100_columns_and_shows_the_exact_count_beside_the_published(
    name, capsys
):
    shown = cost(capsys, name, "--length", 512, "--tokens", "3e9", "--window", 128)
    assert shown.code == 0 and shown.err == ""
    assert max(map(len, shown.out.splitlines())) <= 100
    assert f"{formulas.parameters(PUBLISHED[name].config):,}" in shown.out
    assert "published: " in shown.out and "%" in shown.out


def test_the_json_holds_the_same_numbers(capsys):
    found = json.loads(cost(capsys, "gpt3", "--json", "--length", 2048, "--batch", 3).out)
    config = PUBLISHED["gpt3"].config
    assert found["config"] == json.loads(json.dumps(dataclasses.asdict(config)))
    assert found["sizes"]["num_layers"] == config.decoder.num_layers and found["sizes"]["causal"]
    assert (
        found["parameters"]
        == sum(found["parameters_by_part"].values())
        == formulas.parameters(config)
    )
    assert found["forward_flops"] == formulas.forward_flops(config, 2048, batch=3)
    assert found["training_flops"] == 3 * found["forward_flops"]
    assert found["tokens_flops_6nd_published"] == pytest.approx(3.15e23)
    assert found["forward_flops_visible"] < found["forward_flops"]
    assert found["activation_bytes_remat_blockwise"] < found["activation_bytes_blockwise"]
    assert found["cache_bytes"] == formulas.cache_bytes(config, 2048, batch=3)


def test_the_list_has_every_published_model(capsys):
    lines = cost(capsys, "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(PUBLISHED)
    assert max(map(len, lines)) <= 100


def test_the_list_as_json_holds_the_same_numbers(capsys):
    found = json.loads(cost(capsys, "--list", "--json").out)
    assert {name: one["parameters"] for name, one in found.items()}.items() >= EXACT.items()
    assert found["gpt3"]["published_parameters"] == 175e9


def test_options_change_what_they_say(capsys):
    def found(*arguments):
        return json.loads(cost(capsys, "bert-base", "--json", *arguments).out)

    plain, narrow = found(), found("--dtype", "bfloat16")
    assert narrow["parameter_bytes"] * 2 == plain["parameter_bytes"]
    assert "cache_bytes" not in plain and "forward_flops_visible" not in plain
    assert found("--causal")["forward_flops_visible"] < plain["forward_flops"]
    assert (
        found("--causal", "--window", 9)["cache_bytes"] * 512
        == found("--causal")["cache_bytes"] * 10
    )


def write_run(folder, config):
    folder.mkdir()
    spec = {
        "config": dataclasses.asdict(config),
        "classes": ["a", "b"],
        "truncate": "head",
        "data": "none",
    }
    (folder / "config.json").write_text(json.dumps(spec))


@pytest.mark.parametrize("recipe", [TUTORIAL, FAST], ids=lambda recipe: recipe.name)
def test_a_run_folder_is_measured_by_its_configuration(recipe, tmp_path, capsys):
    write_run(tmp_path / "run", recipe.model)
    found = json.loads(cost(capsys, tmp_path / "run", "--json", "--length", 200).out)
    assert found["parameters"] == real_parameters(recipe.model)
    assert "published_parameters" not in found
    shown = cost(capsys, tmp_path / "run", "--length", 1000).out
    assert "note: the position table has fewer rows than 1000 tokens need" in shown


def test_xla_is_shown_beside_the_count_for_a_run_folder(tmp_path, capsys):
    write_run(tmp_path / "run", BASE)
    found = json.loads(cost(capsys, tmp_path / "run", "--json", "--xla", "--length", 17).out)
    assert found["compiled"]["counted: products"] == found["forward_flops"]
    assert len(found["compiled"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["brt-base"], "'brt-base' is neither .* did you mean bert-base, .*--list"),
        (["GPT2"], "'GPT2' is neither .* did you mean gpt2"),
        (["zzzzzz"], "'zzzzzz' is neither a published model nor a run folder; `cost --list`"),
        ([], "no model given"),
        (["gpt2", "--length", "0"], "length must be 1 or more; got 0"),
        (["gpt2", "--batch", "0"], "batch must be 1 or more; got 0"),
        (["gpt2", "--window", "-1"], "window must be 0 or more; got -1"),
        (["gpt2", "--tokens", "nan"], "--tokens must be a number above 0; got nan"),
        (["gpt2", "--tokens", "-1"], "--tokens must be a number above 0; got -1"),
        (["gpt2", "--xla"], "--xla compiles a model: pass a run folder"),
        (["a\0b"], "neither a published model"),
        (["."], "config.json is not the configuration of a model"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = cost(capsys, *arguments)
    assert shown.code == 2 and shown.out == "" and shown.err.count("\n") == 1
    assert re.search(message, shown.err)
