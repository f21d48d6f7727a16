"""The kernels in Pallas, in its interpreter: blocks, masks, dropout, derivatives and the choice.

On a GPU, the compiled kernels.
"""

from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.helpers.arrays import jax_normal
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels import triton
from transformer_jax.attention.kernels.blockwise import triton_attention
from transformer_jax.attention.kernels.dispatch import CUDNN_FROM, attention_plan
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
B, N, K, H = 2, 4, 2, 8


@pytest.fixture
def anywhere(monkeypatch):
    """The kernels take float32 and few features, on any device."""
    monkeypatch.setattr(triton, "is_one_gpu", lambda: True)
    monkeypatch.setattr(triton, "DTYPES", (jnp.float32, jnp.bfloat16))
    monkeypatch.setattr(triton, "WIDTHS", (H,))


def qkv(T, S, dtype=jnp.float32):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    return [jax_normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def masks(T, S):
    rng = np.random.default_rng(T)
    first, all_of_none = np.arange(S) < S // 3, np.zeros(S, bool)
    ids = [np.sort(rng.integers(0, 4, (B, length)), axis=1) for length in (T, S)]
    return {
        "none": None,
        "causal": causal(),
        "window": sliding_window(70, 3),
        "window to the right": sliding_window(None, 9),
        "padding": padding(np.stack([first, rng.random(S) < 0.5])),
        "no tokens": padding(np.stack([all_of_none, first])),
        "segments": segments(*ids),
        "all": causal()
        & sliding_window(90, None)
        & padding(~first)
        & segments(ids[0][0], ids[1][0]),
    }


def value_and_gradient(implementation, arrays, *, mask, rate=0.0, cotangent=jax_normal):
    """Output, logsumexp and gradients of both."""

    def loss(*arrays):
        output, logsumexp = tj.dot_product_attention(
            *arrays,
            mask=mask,
            dropout_rate=rate,
            dropout_rng=jax.random.key(5) if rate else None,
            return_logsumexp=True,
            implementation=implementation,
        )
        seen = jnp.where(logsumexp == -jnp.inf, 0, logsumexp)
        weighted = output.astype(jnp.float32) * cotangent(7, *output.shape)
        return weighted.sum() + (seen**2).sum(), (output, logsumexp)

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays)


def assert_near(one, other, atol=2e-5):
    for ours, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        ours, right = (np.asarray(x, np.float32) for x in (ours, right))
        finite = np.isfinite(right)
        np.testing.assert_array_equal(np.isfinite(ours), finite)
        bound = atol * max(1, np.abs(right[finite]).max())
        np.testing.assert_allclose(ours[finite], right[finite], rtol=0, atol=bound)


# No block is whole, the queries fill blocks of 128, and the bits of dropout need a second group.
SIZES = [(70, 100), (128, 128), (65, 600)]
CASES = [
    *((name, SIZES[0], rate) for name in masks(1, 1) for rate in (0.0, 0.3)),
    *((name, SIZES[1], 0.0) for name in ("causal", "window")),
    *((name, SIZES[2], 0.3) for name in ("none", "padding")),
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("name", "sizes", "rate"), CASES)
def test_value_and_gradient_equal_the_reference(name, sizes, rate):
    options = {"mask": masks(*sizes)[name], "rate": rate}
    assert_near(*(value_and_gradient(i, qkv(*sizes), **options) for i in ("triton", "reference")))


@pytest.mark.usefixtures("anywhere", "mixed_dtypes")
def test_bfloat16_is_accumulated_in_float32():
    sizes = 70, 100
    options = {"mask": causal(), "rate": 0.3}
    ours = value_and_gradient("triton", qkv(*sizes, jnp.bfloat16), **options)
    assert ours[1][0].dtype == jnp.bfloat16 and ours[1][1].dtype == jnp.float32
    exact = [x.astype(jnp.float32) for x in qkv(*sizes, jnp.bfloat16)]
    assert_near(ours, value_and_gradient("reference", exact, **options), atol=2e-2)


@pytest.mark.usefixtures("anywhere")
def test_a_hidden_key_is_never_read():
    is_token = np.random.default_rng(1).random((B, 100)) < 0.5
    query, key, value = qkv(70, 100)
    run = partial(value_and_gradient, "triton", mask=padding(is_token))
    hidden = ~is_token[:, :, None, None]
    spoilt = run([query, jnp.where(hidden, jnp.nan, key), jnp.where(hidden, jnp.inf, value)])
    for one, other in zip(
        jax.tree.leaves(spoilt), jax.tree.leaves(run([query, key, value])), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("anywhere")
def test_a_query_without_a_visible_key_is_zero():
    mask = padding(np.stack([np.zeros(100, bool), np.ones(100, bool)]))
    (d_query, _, _), (output, logsumexp) = value_and_gradient("triton", qkv(70, 100), mask=mask)
    assert not output[0].any() and not d_query[0].any() and output[1].all()
    assert (logsumexp[0] == -jnp.inf).all()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_derivatives_beyond_the_gradient_are_those_of_blocks(rate):
    arrays = qkv(70, 100)

    def run(implementation, *arrays):
        rng = jax.random.key(1) if rate else None
        options = {"mask": causal(), "dropout_rate": rate, "dropout_rng": rng}
        return tj.dot_product_attention(*arrays, **options, implementation=implementation)

    def gradient(implementation, *arrays):
        return jax.grad(lambda *arrays: (run(implementation, *arrays) ** 2).sum())(*arrays)

    derivatives = {
        "mapped": lambda name: jax.vmap(partial(run, name))(*(x[None] for x in arrays)),
        "jvp": lambda name: jax.jvp(partial(run, name), arrays, arrays)[1],
        "forward over reverse": lambda name: jax.jvp(partial(gradient, name), arrays, arrays)[1],
    }
    for derivative in derivatives.values():
        found = (jax.jit(partial(derivative, name))() for name in ("triton", "reference"))
        assert_near(*found, atol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_three_kernels_are_lowered_for_a_gpu(monkeypatch, rate):
    """Without a GPU they can be translated for Triton, though not compiled."""
    x = jax.ShapeDtypeStruct((B, 128, N, 64), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((B, 128), jnp.int32)

    def loss(ids, *arrays):
        inputs = AttentionInputs(
            *arrays,
            mask=causal() & segments(ids),
            dropout_rate=rate,
            dropout_rng=jax.random.key(0) if rate else None,
        )
        return triton_attention(validate(inputs)).output.astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, (1, 2, 3))).trace
    with patch.object(jax, "default_backend", lambda: "gpu"):
        try:
            text = traced(ids, x, x, x).lower(lowering_platforms=("cuda",)).as_text()
        except RuntimeError as error:
            pytest.skip(f"this version of JAX asks the device what it can do: {error}")
    assert text.count("@__gpu$xla.gpu.triton") == 3


# The choice
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    def install(*capabilities):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        devices = [SimpleNamespace(compute_capability=c) for c in capabilities]
        monkeypatch.setattr(jax, "devices", lambda: devices)

    return install


def plan(T=128, S=None, H=64, dtype=jnp.bfloat16, **options):
    query, key = (jax.ShapeDtypeStruct((1, L, 2, H), dtype) for L in (T, S or T))
    return attention_plan(query, key, key, **options)


LONG = int(CUDNN_FROM**0.5)


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        ({}, "triton"),
        ({"T": LONG - 64}, "triton"),
        ({"T": LONG}, "cudnn"),
        ({"T": LONG, "dropout": True}, "triton"),
        ({"T": LONG, "mask": causal()}, "cudnn"),
        ({"T": LONG, "mask": sliding_window(3, 0)}, "triton"),
        ({"T": LONG, "mask": sliding_window(3, 3)}, "triton"),
        ({"T": LONG, "mask": padding(np.ones((1, LONG), bool))}, "cudnn"),
        ({"T": LONG, "mask": causal() & padding(np.ones((1, LONG), bool))}, "triton"),
        ({"T": LONG, "mask": segments(np.zeros((1, LONG), int))}, "triton"),
        ({"mask": prefix(np.array([3]))}, "cudnn"),
        ({"H": 256}, "cudnn"),
        ({"T": 1, "S": 128}, "cudnn"),
        ({"dtype": jnp.float32}, "reference"),
    ],
    ids=str,
)
def test_where_the_kernels_are_used(gpu, case, chosen):
    gpu("9.0")
    found = plan(**case)
    assert (found.implementation, found.differentiated) == (chosen, chosen)
    if chosen == "triton":
        assert found.reason == "the kernels in Triton take these arguments"


@pytest.mark.parametrize(
    ("capabilities", "case", "reason"),
    [
        (["7.5"], {}, "an NVIDIA GPU, Ampere or newer, is not the only device"),
        (["gfx90a"], {}, "an NVIDIA GPU, Ampere or newer, is not the only device"),
        (["9.0", "9.0"], {}, "an NVIDIA GPU, Ampere or newer, is not the only device"),
        (["9.0"], {"dtype": jnp.float32}, "it takes float16 and bfloat16, not float32"),
        (["9.0"], {"H": 48}, "it takes 16, 32, 64 or 128 features a head, not 48"),
        (["9.0"], {"bias": np.zeros((128, 128), np.float32)}, "it takes no bias or soft cap"),
        (["9.0"], {"soft_cap": 2.0}, "it takes no bias or soft cap"),
        (["9.0"], {"T": 2**17, "dropout": True}, "it takes dropout of fewer weights"),
        (["9.0"], {"mask": prefix(np.array([3]))}, "it takes causal masks, windows, padding and"),
        (["9.0"], {"return_weights": True}, "weights are asked for"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_take_is_refused_with_the_reason(gpu, capabilities, case, reason):
    gpu(*capabilities)
    assert plan(**case).implementation != "triton"
    with pytest.raises(ValueError, match=f'"triton" cannot be had: .*{reason}'):
        plan(**case, implementation="triton")


def test_a_version_of_jax_without_the_backend_has_no_such_kernels(gpu, monkeypatch):
    gpu("9.0")
    monkeypatch.setattr(triton, "has_backend", lambda: False)
    assert plan().implementation == "cudnn"
    with pytest.raises(ValueError, match="this version of JAX has no Triton backend of Pallas"):
        plan(implementation="triton")


# On a GPU
# --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not triton.is_one_gpu(), reason="needs an NVIDIA GPU, which this machine lacks")
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("features", [32, 64, 128])
@pytest.mark.parametrize("name", masks(1, 1))
def test_the_compiled_kernels_equal_the_reference(name, features, rate):
    T, S = 200, 700
    shapes = (B, T, N, features), (B, S, K, features), (B, S, K, features)
    arrays = [jax_normal(i, *shape, dtype=jnp.bfloat16) for i, shape in enumerate(shapes)]
    options = {"mask": masks(T, S)[name], "rate": rate}
    ours = value_and_gradient("triton", arrays, **options)
    with jax.default_matmul_precision("highest"):
        exact = [x.astype(jnp.float32) for x in arrays]
        right = value_and_gradient("reference", exact, **options)
    assert_near(ours, right, atol=2e-2)
