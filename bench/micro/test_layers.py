"""Benchmarks of layer norm, the feed-forward network and the whole encoder layer.

    pytest --benchmark-only bench/micro/test_layers.py

The two small ones are compared with loops and NumPy, and all three with Flax's own modules with the
same parameters. The layer is measured forward, and with the gradients of its parameters and of its
input.
"""

from functools import cache

import jax
import numpy as np
import pytest
from flax import nnx

from bench import naive
from bench.measure import harness
from bench.measure.harness import Contestant
from transformer_jax.functional.feed_forward import feed_forward
from transformer_jax.functional.normalization import layer_norm
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.encoder import EncoderLayer

B, N, H = 1, 4, 64
D, F = N * H, 4 * N * H
LENGTHS = harness.lengths(32, 128, 512, 2048, full=[64, 256, 1024])
ATOL = 2e-5 if jax.default_backend() == "cpu" else 1e-2
GRADIENT_ATOL = 2e-5 if jax.default_backend() == "cpu" else 2e-1
EPSILON = 1e-5


def numpy_layer_norm(x, scale, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(EPSILON)) * scale + bias


def numpy_feed_forward(x, in_kernel, in_bias, out_kernel, out_bias):
    return np.maximum(x @ in_kernel + in_bias, 0) @ out_kernel + out_bias


def flax_layer_norm(x, scale, bias):
    norm = nnx.eval_shape(lambda: nnx.LayerNorm(D, epsilon=EPSILON, rngs=nnx.Rngs(0)))
    norm.scale, norm.bias = nnx.Param(scale), nnx.Param(bias)
    return norm(x)


def flax_feed_forward(x, in_kernel, in_bias, out_kernel, out_bias):
    first, second = nnx.eval_shape(
        lambda: (nnx.Linear(D, F, rngs=nnx.Rngs(0)), nnx.Linear(F, D, rngs=nnx.Rngs(0)))
    )
    first.kernel, first.bias = nnx.Param(in_kernel), nnx.Param(in_bias)
    second.kernel, second.bias = nnx.Param(out_kernel), nnx.Param(out_bias)
    return second(nnx.relu(first(x)))


SMALL = {
    "layer norm": {
        "Python loops": Contestant(naive.layer_norm, "host"),
        "NumPy": Contestant(numpy_layer_norm, "host"),
        "transformer_jax": Contestant(layer_norm),
        "flax.nnx": Contestant(flax_layer_norm),
    },
    "feed-forward network": {
        "Python loops": Contestant(
            lambda *args: naive.feed_forward(*args, activation="relu"), "host"
        ),
        "NumPy": Contestant(numpy_feed_forward, "host"),
        "transformer_jax": Contestant(lambda *args: feed_forward(*args, activation="relu")),
        "flax.nnx": Contestant(flax_feed_forward),
    },
}
SHAPES = {"layer norm": [(D,), (D,)], "feed-forward network": [(D, F), (F,), (F, D), (D,)]}
DEFINITIONS = {"layer norm": numpy_layer_norm, "feed-forward network": numpy_feed_forward}
LONGEST = {"layer norm": {"Python loops": 512}, "feed-forward network": {"Python loops": 8}}
SMALL_LENGTHS = harness.lengths(2, 8, 32, 128, 512, 2048, full=[4, 64, 256, 1024])


@cache
def inputs(subject: str, T: int) -> list[tuple[np.ndarray, ...]]:
    """Draw inputs, and kernels of a size that keeps activations near one."""
    return [
        (args[0], *(a / np.float32(np.sqrt(len(a))) if a.ndim == 2 else a for a in args[1:]))
        for args in harness.random_inputs((B, T, D), *SHAPES[subject], seed=T)
    ]


@pytest.mark.parametrize(
    ("subject", "length", "name"),
    [
        (subject, *pair)
        for subject, contestants in SMALL.items()
        for pair in harness.every(contestants, SMALL_LENGTHS, LONGEST[subject])
    ],
)
def test_small(benchmark, subject, length, name):
    benchmark.group = f"{subject}, T = {length:4}"
    args = inputs(subject, length)
    wide = [[a.astype(np.float64) for a in one] for one in args]
    harness.run(
        benchmark,
        SMALL[subject][name],
        args,
        flops=harness.flops(SMALL[subject]["flax.nnx"].fn, args[0]) or None,
        expected=[DEFINITIONS[subject](*one) for one in wide],
        atol=ATOL,
        subject=subject,
        implementation=name,
        length=length,
    )


class FlaxLayer(nnx.Module):
    """The pre-norm encoder layer built from Flax's modules, with the parameters of ours."""

    def __init__(self, ours: EncoderLayer):
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(N, D, decode=False, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(D, epsilon=EPSILON, rngs=rngs)
        self.feed_forward_norm = nnx.LayerNorm(D, epsilon=EPSILON, rngs=rngs)
        self.feed_forward_in = nnx.Linear(D, F, rngs=rngs)
        self.feed_forward_out = nnx.Linear(F, D, rngs=rngs)
        for name in ("query", "key", "value", "out"):
            part = getattr(self.attention, name)
            part.kernel[...] = getattr(ours.attention, f"{name}_kernel")[...]
            part.bias[...] = getattr(ours.attention, f"{name}_bias")[...]
        for part, name in ((self.feed_forward_in, "in"), (self.feed_forward_out, "out")):
            part.kernel[...] = getattr(ours.feed_forward, f"{name}_kernel")[...]
            part.bias[...] = getattr(ours.feed_forward, f"{name}_bias")[...]

    def __call__(self, x):
        x = x + self.attention(self.attention_norm(x))
        y = nnx.relu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + self.feed_forward_out(y)


CONFIG = StackConfig(
    num_layers=1, embed_dim=D, num_heads=N, hidden_dim=F, norm="pre", activation="relu",
    norm_epsilon=EPSILON, dropout_rate=0.0, attention_dropout_rate=0.0, final_norm=False,
)  # fmt: skip


@cache
def layers() -> dict[str, nnx.Module]:
    ours = EncoderLayer(CONFIG, rngs=nnx.Rngs(0))
    return {"transformer_jax": ours, "flax.nnx": FlaxLayer(ours)}


@cache
def forward(name: str) -> Contestant:
    graph, params = nnx.split(layers()[name])
    return Contestant(lambda x: nnx.merge(graph, params)(x))


@cache
def backward(name: str) -> Contestant:
    """Build a contestant that returns the output and the gradients of the input and the parameters.

    Gradients of parameters are returned by name. Flax's `query.kernel` is our `query_kernel`, so
    names are joined. A parameter's gradient grows with the square root of the length; it is divided
    by that to keep the rounding error small.
    """
    graph, params = nnx.split(layers()[name])

    def value_and_gradient(x, cotangent):
        output, pullback = jax.vjp(lambda p, x: nnx.merge(graph, p)(x), params, x)
        of_params, of_input = pullback(cotangent)
        scale = x.shape[1] ** -0.5
        named = {"_".join(path): leaf[...] * scale for path, leaf in nnx.to_flat_state(of_params)}
        return output, of_input, named

    return Contestant(value_and_gradient)


@cache
def layer_inputs(T: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return harness.random_inputs((B, T, D), (B, T, D), seed=T)


def numpy_layer(x: np.ndarray) -> np.ndarray:
    """Compute the layer in float64 from the definitions of bench/naive.py."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), nnx.state(layers()["transformer_jax"]))
    attention, network = p["attention"], p["feed_forward"]

    def value(leaf):
        return leaf[...]

    def norm(y, of):
        return numpy_layer_norm(y, value(p[of]["scale"]), value(p[of]["bias"]))

    x = x.astype(np.float64)
    y = norm(x, "attention_norm")
    heads = naive.numpy_attention(
        *(
            np.tensordot(y, value(attention[f"{name}_kernel"]), 1)
            + value(attention[f"{name}_bias"])
            for name in ("query", "key", "value")
        )
    )
    x = x + np.tensordot(heads, value(attention["out_kernel"]), 2) + value(attention["out_bias"])
    names = ("in_kernel", "in_bias", "out_kernel", "out_bias")
    y = norm(x, "feed_forward_norm")
    return x + numpy_feed_forward(y, *(value(network[name]) for name in names))


@pytest.mark.parametrize(
    ("length", "name"), harness.every(["transformer_jax", "flax.nnx"], LENGTHS, {})
)
def test_encoder_layer(benchmark, length, name):
    benchmark.group = f"encoder layer, T = {length:4}"
    args = [(x,) for x, _ in layer_inputs(length)]
    harness.run(
        benchmark,
        forward(name),
        args,
        flops=harness.flops(forward("flax.nnx").fn, args[0]),
        expected=[numpy_layer(*one) for one in args],
        atol=ATOL,
        subject="encoder layer",
        implementation=name,
        length=length,
    )


@cache
def expected_gradient(T: int) -> list:
    """Compute the expected gradients with Flax.

    Its forward pass has been compared with NumPy, and both implementations differentiate with
    jax.vjp.
    """
    theirs = backward("flax.nnx").fn
    fn = jax.jit(lambda *args: theirs(*args))  # a copy: compiles separately
    return [jax.device_get(fn(*args)) for args in layer_inputs(T)]


GRADIENT_LENGTHS = harness.lengths(128, 512, 1024, full=[32, 2048])


@pytest.mark.parametrize(
    ("length", "name"), harness.every(["transformer_jax", "flax.nnx"], GRADIENT_LENGTHS, {})
)
def test_encoder_layer_with_its_gradient(benchmark, length, name):
    benchmark.group = f"encoder layer with its gradient, T = {length:4}"
    harness.run(
        benchmark,
        backward(name),
        layer_inputs(length),
        flops=harness.flops(backward("flax.nnx").fn, layer_inputs(length)[0]),
        expected=expected_gradient(length),
        atol=GRADIENT_ATOL,
        subject="encoder layer with its gradient",
        implementation=name,
        length=length,
    )


@pytest.mark.parametrize("length", harness.lengths(512, full=[128, 1024]))
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "with gradient"])
def test_encoder_layer_in_turns_with_flax(benchmark, length, gradient):
    subject = "encoder layer with its gradient" if gradient else "encoder layer"
    benchmark.group = f"{subject}, T = {length:4}, interleaved"
    args = layer_inputs(length) if gradient else [(x,) for x, _ in layer_inputs(length)]
    make = backward if gradient else forward
    harness.compare(
        benchmark,
        make("flax.nnx"),
        make("transformer_jax"),
        args,
        expected=expected_gradient(length) if gradient else [numpy_layer(*one) for one in args],
        atol=GRADIENT_ATOL,
        subject=subject,
        implementation="flax.nnx",
        reference="transformer_jax",
        length=length,
    )
