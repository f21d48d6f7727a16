"""The kernel in C++, where it is built: `make` does so."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels import cpu
from transformer_jax.attention.kernels.compute import compute_attention
from transformer_jax.attention.mask_rule import dense
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.costs.jaxpr import count

built = pytest.mark.skipif(not cpu.is_built(), reason="python -m transformer_jax build")
B, T, S, N, K, H, O = 2, 67, 131, 6, 2, 11, 7  # noqa: E741
IS_TOKEN = np.random.default_rng(0).random((B, S)) < 0.7
# Texts in order, of which the queries have the last T tokens, and ids in any order.
TEXTS = np.sort(np.random.default_rng(0).integers(0, 5, (B, S)), axis=1)
ANY_IDS = np.random.default_rng(1).integers(-2, 4, (B, S))
MASKS = {
    "none": None,
    "causal": causal(),
    "window": sliding_window(20, 3),
    "padding": padding(IS_TOKEN),
    "causal and padding": causal() & padding(IS_TOKEN),
    "array of keys": dense(IS_TOKEN[:, None, None]),
    "all": causal() & sliding_window(50, None) & padding(IS_TOKEN) & padding(IS_TOKEN[:1]),
    "texts": segments(TEXTS[:, -T:], TEXTS),
    "causal in texts": causal() & segments(TEXTS[:, -T:], TEXTS) & padding(IS_TOKEN),
    "ids in any order": segments(TEXTS[:, -T:].astype(np.uint8), ANY_IDS.astype(np.int16)),
    "one text": segments(np.array([[2], [3]]), TEXTS),
    "ids of all examples": segments(ANY_IDS[0, :T], ANY_IDS[0]) & sliding_window(50, 50),
}


SHORT_MASKS = {
    "none": None,
    "window": sliding_window(5, 3),
    "causal and padding": causal() & padding(IS_TOKEN[:, :21]),
}


def drawn(*shapes):
    rng = np.random.default_rng(3)
    return jax.device_put([rng.standard_normal(shape, np.float32) for shape in shapes])


def qkv():
    return drawn((B, T, N, H), (B, S, K, H), (B, S, K, O))


def attend(*arrays, implementation="cpu", **options):
    return tj.dot_product_attention(*arrays, implementation=implementation, **options)


def assert_near(one, other, atol=1e-5):
    for ours, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=atol)


@built
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_value_logsumexp_and_gradient_equal_the_reference(mask):
    cotangents = drawn((B, T, N, O), (B, T, N))

    def value_and_gradient(implementation):
        run = partial(attend, implementation=implementation, mask=mask, return_logsumexp=True)
        found, pullback = jax.vjp(run, *qkv())
        return found, pullback(tuple(cotangents))

    assert_near(*map(jax.jit(value_and_gradient, static_argnums=0), ("cpu", "reference")))


@built
@pytest.mark.parametrize("mask", [None, MASKS["causal and padding"]], ids=["none", "masks"])
@pytest.mark.parametrize("keys", [S, 47])
def test_the_weights_that_the_reference_drops_are_dropped(mask, keys):
    """Among keys whose bits are in one byte and in several."""
    query, key, value = qkv()
    mask = None if mask is None else causal() & padding(IS_TOKEN[:, :keys])
    arrays, key_of_dropout = (query[:, :keys], key[:, :keys], value[:, :keys]), jax.random.key(4)
    options = {"mask": mask, "dropout_rate": 0.3, "dropout_rng": key_of_dropout}
    options["return_logsumexp"] = True

    def value_and_gradient(implementation):
        run = partial(attend, implementation=implementation, **options)
        found, pullback = jax.vjp(run, *arrays)
        return found, pullback((found[0] ** 2, jnp.where(found[1] == -jnp.inf, 0, found[1])))

    found, right = map(jax.jit(value_and_gradient, static_argnums=0), ("cpu", "reference"))
    assert_near(found, right)
    assert tj.attention_plan(*arrays, mask=mask, dropout=True).implementation == "cpu"


@built
@pytest.mark.parametrize("transform", ["mapped keys", "jvp", "forward over reverse"])
def test_dropout_under_transformations(transform):
    arrays, keys = qkv(), jax.random.split(jax.random.key(0), 3)

    def run(implementation, key, *arrays):
        options = {"mask": causal(), "dropout_rate": 0.3, "dropout_rng": key}
        return attend(*arrays, implementation=implementation, **options)

    def gradient(implementation, key, *arrays):
        return jax.grad(lambda *arrays: (run(implementation, key, *arrays) ** 2).sum())(*arrays)

    @partial(jax.jit, static_argnums=0)
    def result(implementation):
        if transform == "mapped keys":
            return jax.vmap(lambda key: gradient(implementation, key, *arrays))(keys)
        function = run if transform == "jvp" else gradient
        return jax.jvp(partial(function, implementation, keys[0]), arrays, arrays)[1]

    # Not the reference: where keys are mapped and arrays are not, the fusions of XLA's library YNN
    # in jaxlib 0.10 sum wrong products.
    assert_near(result("cpu"), result("blockwise"), atol=1e-4)


@built
@pytest.mark.parametrize("mask", [None, MASKS["causal and padding"]], ids=["none", "masks"])
def test_bfloat16_has_the_value_and_gradient_of_float32(mask):
    """The weights and the results are rounded to 8 bits, the logsumexp is not."""
    arrays = [x.astype(jnp.bfloat16) for x in (*qkv(), *drawn((B, T, N, O)))]

    @partial(jax.jit, static_argnums=0)
    def value_and_gradient(implementation, query, key, value, cotangent):
        run = partial(attend, implementation=implementation, mask=mask, return_logsumexp=True)
        found, pullback = jax.vjp(run, query, key, value)
        return found, pullback((cotangent, jnp.zeros_like(found[1])))

    (output, logsumexp), gradients = value_and_gradient("cpu", *arrays)
    wide = [x.astype(jnp.float32) for x in arrays]
    (right, right_logsumexp), right_gradients = value_and_gradient("reference", *wide)
    assert_near(logsumexp, right_logsumexp)
    for found, expected in zip((output, *gradients), (right, *right_gradients), strict=True):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=1e-2, atol=1e-2)


@built
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_query_without_keys_gets_zeros_and_reaches_nothing(dtype):
    """Neither do keys that padding hides: both hold NaN."""
    is_token = np.zeros((B, S), bool)
    is_token[0, 5:90] = True
    query, key, value = (np.array(x, dtype) for x in qkv())
    query[1] = key[~is_token] = value[~is_token] = np.nan

    @jax.jit
    def run(*arrays):
        attended = partial(attend, mask=padding(is_token), return_logsumexp=True)
        found, pullback = jax.vjp(attended, *arrays)
        return found, pullback((jnp.ones_like(found[0]), jnp.zeros_like(found[1])))

    (output, logsumexp), gradients = jax.device_get(run(query, key, value))
    assert (output[1] == 0).all() and (logsumexp[1] == -np.inf).all()
    assert all(np.isfinite(x).all() and (x[1] == 0).all() for x in gradients)
    assert np.isfinite(output).all() and (gradients[1][0, :5] == 0).all()


ONE_QUERY = {
    "none": None,
    "causal": causal(query_positions=jnp.array([[170]]), key_positions=jnp.arange(600)[None]),
    "window of positions": sliding_window(
        20, 0, query_positions=jnp.array([[99]]), key_positions=jnp.arange(600)[None]
    ),
    "texts": segments(jnp.array([[1]]), jnp.arange(600)[None] // 50),
    "array": dense(np.random.default_rng(1).random((B, 1, 1, 600)) < 0.7),
}


@built
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("mask", ONE_QUERY.values(), ids=ONE_QUERY)
def test_one_query_takes_every_mask_that_heads_share_and_reads_no_masked_key(mask, heads_first):
    """Also those with positions; the gradient is the reference's, of keys that hold zeros."""
    query, key, value = drawn((B, 1, N, 32), (B, 600, K, 32), (B, 600, K, 48))
    seen = np.ones((1, 600), bool) if mask is None else np.asarray(mask.to_array(1, 600))[:, 0, 0]
    key, value = jax.device_put(
        [np.where(seen[..., None, None], x, np.float32(np.nan)) for x in (key, value)]
    )

    @partial(jax.jit, static_argnums=3)
    def run(query, key, value, implementation=None):
        inputs = AttentionInputs(query, key, value, mask=mask, heads_first=heads_first)
        return compute_attention(validate(inputs), implementation, zero_rows=True).output

    plan = tj.attention_plan(query, key, value, mask=mask)
    assert (plan.implementation, plan.differentiated) == ("cpu", "reference")
    gradient = jax.jit(jax.grad(lambda *arrays: (run(*arrays) ** 2).sum(), (0, 1, 2)))
    assert all(np.isfinite(x).all() for x in gradient(query, key, value))
    right = run(*map(np.nan_to_num, (query, key, value)), "reference")
    assert_near(run(query, key, value), right)
    assert_near(run(query, key, value, "cpu"), right)


@built
def test_one_query_with_a_mask_for_each_head_is_not_for_the_kernel():
    query, key, value = drawn((B, 1, N, H), (B, 600, K, H), (B, 600, K, O))
    mask = jnp.ones((B, N, 1, 600), bool).at[:, 1, :, 5].set(False)
    assert tj.attention_plan(query, key, value, mask=mask).implementation == "reference"


@built
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nan_that_is_seen_is_not_hidden(dtype):
    query, key, value = (np.array(x, dtype) for x in qkv())
    key[0, 3] = np.nan
    output = np.asarray(attend(*jax.device_put([query, key, value])), np.float32)
    assert np.isnan(output[0]).all() and np.isfinite(output[1]).all()


@built
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "texts"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nan_in_a_query_reaches_the_gradients_of_the_keys_that_it_sees(dtype, mask):
    """Also where all of its logits are NaN, of which the highest is -inf."""
    mask = MASKS[mask]
    query, key, value = (x.astype(dtype) for x in qkv())
    query = query.at[0, 3, 0, 0].set(jnp.nan)
    output, pullback = jax.vjp(partial(attend, mask=mask), query, key, value)
    d_query, d_key, d_value = (np.isnan(x) for x in pullback(jnp.ones_like(output)))
    assert d_query[0, 3, 0].all() and d_query.sum() == H
    seen = np.ones(S, bool) if mask is None else np.asarray(mask.to_array(T, S))[0, 0, 3]
    for found in (d_key, d_value):
        assert found[0, seen, 0].all() and not found[1].any() and not found[0, :, 1].any()
        if mask is MASKS["padding"]:
            assert not found[0, ~IS_TOKEN[0]].any()


@built
def test_huge_logits_do_not_overflow():
    query, key, value = qkv()
    found, right = (
        attend(300 * query, 300 * key, value, implementation=name) for name in ("cpu", "reference")
    )
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-3)


@built
@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, 2), (0, 0, 0)])
def test_a_mapped_axis_is_a_part_of_the_batch(axes):
    arrays = [
        jax.device_put(x if axis is None else np.stack([x, 2 * x, -x], axis))
        for x, axis in zip(map(np.asarray, qkv()), axes, strict=True)
    ]

    @partial(jax.jit, static_argnums=0)
    def gradients(implementation):
        run = partial(attend, implementation=implementation, mask=MASKS["causal and padding"])
        return jax.vmap(jax.grad(lambda *x: (run(*x) ** 2).sum(), (0, 1, 2)), axes)(*arrays)

    assert_near(gradients("cpu"), gradients("reference"), atol=2e-4)


@built
@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (None, None, 0)])
def test_one_example_without_a_batch_is_mapped(axes):
    """The arrays that are not mapped are shared by all."""
    arrays = [
        jax.device_put(x[0] if axis is None else np.stack([x[0], x[1], -x[0]]))
        for x, axis in zip(map(np.asarray, qkv()), axes, strict=True)
    ]

    @partial(jax.jit, static_argnums=0)
    def run(implementation):
        return jax.vmap(partial(attend, implementation=implementation), axes)(*arrays)

    assert_near(run("cpu"), run("reference"))


@built
@pytest.mark.parametrize("shape", [(3, 1, S), (3, B, S)])
def test_padding_may_be_mapped_too(shape):
    is_token = np.random.default_rng(1).random(shape) < 0.5

    @partial(jax.jit, static_argnums=0)
    def run(implementation, is_token):
        return jax.vmap(
            lambda token: attend(*qkv(), mask=padding(token), implementation=implementation)
        )(is_token)

    assert_near(run("cpu", is_token), run("reference", is_token))


@built
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 1), (None, None)])
@pytest.mark.parametrize("examples", [None, B])
def test_ids_of_segments_may_be_mapped_too(axes, examples):
    """Those of the queries, of the keys or of both; for all examples, and for each."""
    rng = np.random.default_rng(2)
    ids = []
    for axis, length in zip(axes, (T, S), strict=True):
        shape = [length] if examples is None else [examples, length]
        shape = shape if axis is None else [*shape[:axis], 3, *shape[axis:]]
        ids.append(rng.integers(0, 3, shape))

    @partial(jax.jit, static_argnums=0)
    def gradients(implementation, scales, *ids):
        def loss(scale, query_ids, key_ids):
            query, key, value = qkv()
            mask = segments(query_ids, key_ids)
            return (
                attend(scale * query, key, value, mask=mask, implementation=implementation) ** 2
            ).sum()

        return jax.vmap(jax.value_and_grad(loss), (0, *axes))(scales, *ids)

    scales = np.array([1, 2, -1], np.float32)
    assert_near(gradients("cpu", scales, *ids), gradients("reference", scales, *ids), atol=1e-3)


@built
@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.hessian])
@pytest.mark.parametrize("mask", [None, segments(np.arange(5) // 3)], ids=["none", "texts"])
def test_it_has_the_derivatives_of_blocks(derivative, mask):
    arrays = [x[:1, :5, :, :3] for x in qkv()]

    def value(implementation, scale):
        query, key, value = arrays
        options = {"mask": mask, "implementation": implementation}
        return (attend(scale * query, key, scale * value, **options) ** 2).sum()

    found, right = (
        jax.jit(derivative(partial(value, name)))(np.array([1.3], np.float32))
        for name in ("cpu", "reference")
    )
    np.testing.assert_allclose(found, right, rtol=1e-4)


@built
def test_what_is_exported_or_for_another_device_is_computed_by_xla():
    run = jax.jit(partial(attend, mask=causal()))
    exported = jax.export.export(run)(*qkv())
    assert "transformer_jax_attention" not in exported.mlir_module()
    assert_near(exported.call(*qkv()), run(*qkv()))
    for device, is_ours in (("cpu", True), ("cuda", False), ("tpu", False)):
        text = run.trace(*qkv()).lower(lowering_platforms=(device,)).as_text()
        assert ("transformer_jax_attention" in text) is is_ours


@built
@pytest.mark.parametrize("name", MASKS)
def test_its_operations_count_as_those_of_the_reference(name):
    def gradient(*arrays, implementation):
        run = partial(attend, mask=MASKS[name], implementation=implementation)
        return jax.vjp(run, *arrays)[1](arrays[0][..., :O])

    run = partial(attend, mask=MASKS[name])
    found, right = (count(partial(run, implementation=i), *qkv()) for i in ("cpu", "reference"))
    assert found.flops == right.flops and not found.unknown
    found, right = (
        count(partial(gradient, implementation=i), *qkv()) for i in ("cpu", "reference")
    )
    again = 2 * B * N * T * S * H  # the logits are computed a second time
    assert found.flops == right.flops + again and found.elementwise > 0


@built
def test_its_plan_says_so_and_few_logits_are_the_reference():
    x = jax.ShapeDtypeStruct((2, 256, 8, 64), jnp.float32)
    plan = tj.attention_plan(x, x, x, mask=causal())
    assert (plan.implementation, plan.reason) == ("cpu", "the kernel in C++ takes these arguments")
    x = jax.ShapeDtypeStruct((2, 15, 8, 64), jnp.float32)
    assert tj.attention_plan(x, x, x).implementation == "reference"


def arrays_of_a_call():
    """The arrays of one head with padding, segments and dropout."""
    x, rows = np.ones((1, 1, 1, T, H), np.float32), np.ones((1, 1, 1, T), np.float32)
    ids = np.zeros((1, T), np.int32)
    kept = np.ones((1, 1, 1, -(-T // 64) * 64, 64), np.uint8)
    of_both = {"query": x, "key": x[0], "value": x[0], "is_token": ids == 0, "query_ids": ids}
    of_both |= {"key_ids": ids, "kept": kept}
    return of_both, {
        "d_output": x, "highest": rows, "log_total": rows, "output": x, "d_logsumexp": rows
    }  # fmt: skip


FORWARD, BACKWARD = "attention_forward", "attention_backward"
WRONG = [(FORWARD, name) for name in arrays_of_a_call()[0]]
WRONG += [(BACKWARD, name) for part in arrays_of_a_call() for name in part]


@built
@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_no_array_is_read_beyond_its_end(name, wrong):
    of_both, more = arrays_of_a_call()
    x, key, rows = of_both["query"], of_both["key"], more["highest"]
    arrays, like = of_both | more, (x, key, key)
    if name == FORWARD:
        arrays, like = of_both, (x, rows, rows)

    def call(*arrays):
        return cpu._call(
            *arrays, name=name, bounds=(None, None), scale=1.0, dropout_rate=0.5,
            heads_first=False, types=tuple(map(jax.typeof, like)),
        )  # fmt: skip

    jax.block_until_ready(jax.jit(call)(*arrays.values()))
    axis = {"is_token": 1, "query_ids": 1, "key_ids": 1, "key": 2, "value": 2}.get(wrong, 3)
    arrays[wrong] = np.delete(arrays[wrong], 0, axis)
    with pytest.raises(jax.errors.JaxRuntimeError, match="sizes of arrays differ"):
        jax.block_until_ready(jax.jit(call)(*arrays.values()))


@built
@pytest.mark.parametrize("options", [{}, {"dropout_rate": 0.3}], ids=["plain", "dropout"])
def test_a_gradient_of_its_gradient_is_that_of_the_reference(options):
    if options:
        options = {**options, "dropout_rng": jax.random.key(0)}
    mask = causal() & padding(IS_TOKEN)

    def values(implementation):
        def loss(*arrays):
            output = tj.dot_product_attention(
                *arrays, mask=mask, implementation=implementation, **options
            )
            return (output**2).sum()

        def penalty(*arrays):
            return sum((x**2).sum() for x in jax.grad(loss, (0, 1, 2))(*arrays))

        return jax.jit(jax.grad(penalty, (0, 1, 2)))(*qkv())

    assert_near(values("cpu"), values("reference"), atol=1e-3)


@built
@pytest.mark.parametrize("name", SHORT_MASKS)
def test_short_texts_have_its_values_and_every_derivative_of_the_reference(name, monkeypatch):
    monkeypatch.setattr(
        "transformer_jax.attention.kernels.dispatch.widest_instructions", lambda: "other"
    )
    arrays = [x[:, :21] for x in qkv()]
    mask = SHORT_MASKS[name]

    def run(implementation, *arrays):
        return tj.dot_product_attention(
            *arrays, mask=mask, implementation=implementation, return_logsumexp=True
        )

    def loss(implementation, *arrays):
        return sum((x**2).sum() for x in run(implementation, *arrays))

    derivatives = {
        "value": lambda name: run(name, *arrays),
        "mapped": lambda name: jax.vmap(partial(run, name))(*(x[None] for x in arrays)),
        "jvp": lambda name: jax.jvp(partial(run, name), arrays, arrays)[1],
        "gradient": lambda name: jax.grad(partial(loss, name), (0, 1, 2))(*arrays),
        "reverse over reverse": lambda name: jax.grad(
            lambda q: jax.grad(partial(loss, name))(q, *arrays[1:]).sum()
        )(arrays[0]),
    }
    for derivative in derivatives.values():
        run_compiled = jax.jit(derivative, static_argnums=0)
        assert_near(run_compiled(None), run_compiled("reference"), atol=1e-4)
    calls = {
        name: "transformer_jax_attention"
        in jax.jit(partial(derivatives[name], None)).lower().as_text()
        for name in ("value", "gradient")
    }
    assert calls == {"value": True, "gradient": False}


REFUSED = {
    "it takes float32 and bfloat16": {"dtype": jnp.float16},
    "it takes no bias": {"bias": np.zeros((T, S), np.float32)},
    "it takes no bias or soft cap": {"soft_cap": 2.0},
    "it takes causal masks, windows, padding": {"mask": prefix(jnp.array([3, 4]))},
    "causal masks, windows": {"mask": causal(query_positions=jnp.arange(T))},
    "segments (ids of int32)": {"mask": segments(np.zeros(T, np.uint32), np.zeros(S, np.uint32))},
    "weights are asked for": {"return_weights": True},
}


@built
@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_does_not_take_is_refused_with_the_reason(reason):
    options = dict(REFUSED[reason])
    dtype = options.pop("dtype", jnp.float32)
    arrays = [x.astype(dtype) for x in qkv()]
    with pytest.raises(ValueError, match=f'"cpu" cannot be had: .*{re.escape(reason)}'):
        attend(*arrays, **options)
    tj.dot_product_attention(*arrays, **options)  # another is chosen


@built
@pytest.mark.usefixtures("as_users_run_it")
def test_a_scale_that_is_traced_is_another_implementation_s():
    def run(scale):
        return tj.dot_product_attention(*qkv(), scale=scale).sum()

    assert np.isfinite(jax.jit(jax.grad(run))(0.3))
    with pytest.raises(ValueError, match="it takes a scale that is a number"):
        jax.jit(lambda scale: attend(*qkv(), scale=scale))(0.3)
    assert_near(attend(*qkv(), scale=0.3), attend(*qkv(), scale=0.3, implementation="reference"))


@built
def test_it_is_the_same_in_64_bit_mode():
    run = partial(attend, mask=MASKS["all"])
    narrow = jax.jit(run)(*qkv())
    with jax.enable_x64(True):
        found = jax.jit(run)(*qkv())
    assert found.dtype == jnp.float32
    assert_near(found, narrow)


def test_where_it_is_not_built_xla_computes_attention(monkeypatch):
    monkeypatch.setattr(cpu, "is_built", lambda: False)
    with pytest.raises(ValueError, match=re.escape("not built (python -m transformer_jax build)")):
        attend(*qkv())
    x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    assert tj.attention_plan(x, x, x).implementation == "blockwise"
