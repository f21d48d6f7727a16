"""Our code around NVIDIA's kernel, with XLA's in its place: names of masks, rows that see
nothing, broadcasting.

The same contract holds as of every implementation (test_mask_contract.py, test_loops.py). On a GPU,
the kernel itself.
"""

from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import jax_normal
from tests.helpers.implementations import forced, without_a_gpu
from transformer_jax.attention.bias_rule import dense_bias
from transformer_jax.attention.biases import alibi, relative_bias
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels.dispatch import attention_plan
from transformer_jax.attention.kernels.known_masks import is_causal, left_window
from transformer_jax.attention.masks import causal, padding, prefix, sliding_window

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, K, H = 2, 7, 11, 6, 2, 8


def qkv(T=T, S=S, dtype=jnp.float32):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    return tuple(jax_normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))


def seen(*shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    mask[..., 2, :] = False
    return mask


CASES = {
    "none": {},
    "scale": {"scale": 0.9},
    "causal": {"mask": causal()},
    "window to the left": {"mask": sliding_window(2, 0)},
    "window": {"mask": sliding_window(1, 2)},
    "padding": {"mask": padding(np.arange(S)[None] < np.array([[0], [5]]))},
    "causal or prefix": {"mask": causal() | prefix(np.array([2, 5]))},
    "array of heads": {"mask": seen(N, T, S)},
    "array of queries": {"mask": seen(B, 1, T, 1)},
    "alibi": {"bias": alibi(jax_normal(1, N)), "mask": causal()},
    "array of keys": {"bias": jax_normal(2, B, 1, 1, S), "scale": 0.3},
    "sum": {
        "bias": relative_bias(jax_normal(3, 8, N)) + jax_normal(4, N, T, S),
        "mask": seen(B, 1, T, S),
    },
}


OBLONG = ("array of heads", "array of queries", "sum")  # they have T rows


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        *((name, T) for name in CASES),
        *(pytest.param(name, S, marks=pytest.mark.slow) for name in CASES if name not in OBLONG),
    ],
)
def test_value_and_gradient_equal_the_reference(name, queries):
    inputs = qkv(queries)
    cotangent = jax_normal(5, *inputs[0].shape)

    def run(implementation):
        def loss(bias, *inputs):
            options = CASES[name] | ({} if bias is None else {"bias": bias})
            with forced():
                output = dot_product_attention(*inputs, **options, implementation=implementation)
            return jnp.sum(output * cotangent), output

        bias = CASES[name].get("bias")
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True, allow_int=True))(
            bias, *inputs
        )

    both = (jax.device_get(jax.tree.leaves(run(i))) for i in ("cudnn", "reference"))
    for ours, theirs in zip(*both, strict=True):
        if ours.dtype != jax.dtypes.float0:
            size = max(1, np.abs(theirs).max())
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * size)


def given_to_the_kernel(mask, T=S, bias=None):
    """Return the arguments of the vendor's kernel, by name."""
    options = {}

    @jax.jit
    def run(bias, mask, *arrays):
        with patch.object(jax.nn, "dot_product_attention", return_value=arrays[0]) as kernel:
            inputs = validate(AttentionInputs(*arrays, mask=mask, bias=bias))
            without_a_gpu(inputs.with_masked_rows())
        (*_, bias, mask), given = kernel.call_args
        options.update(given)
        return bias, mask

    bias, mask = run(bias, mask, *qkv(T))
    return (
        bias,
        mask,
        {name: x for name, x in options.items() if name not in ("scale", "implementation")},
    )


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (causal(), {"is_causal": True}),
        (sliding_window(3, 0), {"is_causal": True, "local_window_size": (3, 0)}),
        (None, {}),
    ],
    ids=["causal", "window to the left", "none"],
)
def test_a_mask_with_a_name_goes_by_it_and_no_array_is_made(mask, named):
    _, array, options = given_to_the_kernel(mask)
    assert array is None
    assert options == named


@pytest.mark.parametrize(
    ("mask", "queries"),
    [
        (causal(), T),  # the kernel's is top-left
        (sliding_window(3, 0), T),
        (sliding_window(3, 1), S),
        (sliding_window(None, 0), S),
        (causal(query_positions=jax.device_put(np.arange(S))), S),
        (causal() & padding(np.ones((B, S), bool)), S),
    ],
    ids=str,
)
def test_any_other_mask_goes_as_an_array(mask, queries):
    _, array, options = given_to_the_kernel(mask, queries)
    assert options == {}
    whole = jax.jit(lambda mask: mask.to_array(queries, S))(mask)
    np.testing.assert_array_equal(array, whole)


def test_a_bias_goes_whole_and_in_the_dtype_of_the_query():
    bias, _, _ = given_to_the_kernel(
        None, bias=dense_bias(jax_normal(0, 1, N, 1, S, dtype=jnp.float16))
    )
    assert bias.shape == (1, N, S, S) and bias.dtype == jnp.float32


def test_names_are_for_rules_at_the_default_positions():
    assert is_causal(causal()) and not is_causal(causal(key_positions=jnp.arange(3)))
    assert not is_causal(sliding_window(None, 0)) and not is_causal(None)
    assert left_window(sliding_window(5, 0)) == 5
    others = (sliding_window(5, 1), sliding_window(None, 0), causal(), None)
    assert [left_window(mask) for mask in others] == [None] * 4
    assert left_window(sliding_window(5, 0, query_positions=jnp.arange(3))) is None


def test_the_gradients_of_padded_keys_stay_row_by_row():
    """XLA:GPU would gather them into transposed arrays: key and value have a layout constraint."""
    mask = padding(np.arange(S)[None] < np.array([[3], [5]]))

    def loss(*inputs):
        with forced():
            return dot_product_attention(*inputs, mask=mask, implementation="cudnn").sum()

    lowered = jax.jit(jax.grad(loss, argnums=(1, 2))).lower(*qkv(S)).as_text()
    assert lowered.count("custom_call @LayoutConstraint") == 2


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_comes_back_as_bfloat16():
    @jax.jit
    def run(*inputs):
        with forced():
            return dot_product_attention(*inputs, mask=seen(B, 1, S, S), implementation="cudnn")

    output = np.asarray(run(*qkv(S, dtype=jnp.bfloat16)))
    assert output.dtype == jnp.bfloat16
    assert not output[:, 2].any() and np.isfinite(output.astype(np.float32)).all()


on_a_gpu = pytest.mark.skipif(
    jax.default_backend() != "gpu", reason="needs an NVIDIA GPU, which this machine lacks"
)
LONG = 640  # beyond what `masked_rows.find_masked_rows` looks through at once


def given(name, T):
    """Inputs in bfloat16 and the options of a case, for T queries and keys."""
    rng = np.random.default_rng(T)
    mask = rng.random((N, T, T)) < 0.5
    mask[:, 2] = False
    options = {
        "none": {},
        "causal": {"mask": causal(), "scale": 0.9},
        "window to the left": {"mask": sliding_window(37, 0)},
        "window": {"mask": sliding_window(37, 5)},
        "padding": {"mask": padding(np.arange(T)[None] < np.array([[0], [T // 3]]))},
        "array of heads": {"mask": mask},
        "array of queries": {"mask": np.arange(T)[None, None, :, None] % 3 > 0},
        "alibi": {"bias": alibi(abs(jax_normal(1, N)) / 10), "mask": causal()},
        "array of keys": {"bias": jax_normal(2, B, 1, 1, T)},
        "array of keys, padding": {
            "bias": jax_normal(2, 1, N, 1, T),
            "mask": padding(np.arange(T)[None] < np.array([[T], [T // 3]])),
        },
    }[name]
    shapes = (B, T, N, 64), (B, T, K, 64), (B, T, K, 64)
    return [jax_normal(i, *shape, dtype=jnp.bfloat16) for i, shape in enumerate(shapes)], options


@on_a_gpu
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("T", [64, LONG])
@pytest.mark.parametrize(
    "name",
    ["none", "causal", "window to the left", "window", "padding", "array of heads",
     "array of queries", "alibi", "array of keys", "array of keys, padding"],
)  # fmt: skip
def test_the_kernel_itself_equals_the_reference(name, T):
    inputs, options = given(name, T)
    cotangent = jax_normal(5, *inputs[0].shape)

    def run(implementation, dtype):
        def loss(bias, *inputs):
            given = options | ({} if bias is None else {"bias": bias})
            output = dot_product_attention(*inputs, **given, implementation=implementation)
            return jnp.sum(output.astype(jnp.float32) * cotangent), output

        inputs_then = [x.astype(dtype) for x in inputs]
        with jax.default_matmul_precision("highest"):
            return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True, allow_int=True))(
                options.get("bias"), *inputs_then
            )

    ours, theirs = run("cudnn", jnp.bfloat16), run("reference", jnp.float32)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if one.dtype != jax.dtypes.float0:
            one, other = (np.asarray(x, np.float32) for x in (one, other))
            np.testing.assert_allclose(one, other, rtol=0, atol=3e-2 * np.abs(other).max())


@on_a_gpu
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("T", [64, LONG])
def test_the_kernel_itself_never_reads_what_is_hidden(T):
    (query, key, value), options = given("padding", T)
    cotangent = jax_normal(5, *query.shape)

    def run(key, value):
        def loss(*inputs):
            output = dot_product_attention(*inputs, **options)
            return jnp.sum(output.astype(jnp.float32) * cotangent), output

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)

    hidden = ~options["mask"].is_token[:, :, None, None]
    spoilt = run(jnp.where(hidden, jnp.nan, key), jnp.where(hidden, jnp.inf, value))
    for one, other in zip(jax.tree.leaves(spoilt), jax.tree.leaves(run(key, value)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one.astype(jnp.float32)).all()
        assert not one[0].any()  # the first example sees nothing


@on_a_gpu
def test_it_is_what_is_chosen():
    x = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    assert attention_plan(x, x, x, mask=causal()).implementation == "cudnn"
