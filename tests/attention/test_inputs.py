"""The arguments of an attention are one pytree, validated once a call.

Masked rows are found once.
"""

from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import jax_normal
from tests.helpers.implementations import IMPLEMENTATIONS, attend, forced
from transformer_jax.attention import inputs, masked_rows
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.biases import alibi
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels.compute import compute_attention
from transformer_jax.attention.kernels.dispatch import attention_plan
from transformer_jax.attention.mask_rule import Mask
from transformer_jax.attention.masked_rows import (
    MaskedRows,
    MaskWithRows,
    attach_masked_rows,
    find_masked_rows,
)
from transformer_jax.attention.masks import causal, padding
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import EncoderLayer
from transformer_jax.nn.layers import MultiHeadAttention

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, K, H, O, D = 2, 5, 7, 6, 2, 3, 11, 12  # noqa: E741
IS_TOKEN = np.arange(S) < np.array([[3], [0]])


def qkv():
    return jax_normal(1, B, T, N, H), jax_normal(2, B, S, K, H), jax_normal(3, B, S, K, O)


def whole():
    """Inputs with something in every field."""
    given = AttentionInputs(
        *qkv(),
        bias=alibi(jax_normal(4, N)),
        mask=padding(IS_TOKEN),
        dropout_rng=jax.random.key(0),
        soft_cap=1.5,
        dropout_rate=0.3,
    )
    return prepared(given)


@jax.jit
def prepared(given):
    return validate(given).zero_masked_rows()


# A pytree --------------------------------------------------------------------------------------


def test_arrays_and_rules_are_leaves_numbers_and_flags_are_static():
    leaves, structure = jax.tree.flatten(whole())
    # query, key, value, slopes, is_token, two arrays of rows, the key of the dropout
    assert len(leaves) == 8
    assert all(hasattr(leaf, "shape") for leaf in leaves)
    static = structure.node_data()[1]
    assert static == (H**-0.5, 1.5, 0.3, False, False, False)
    assert hash(structure) == hash(jax.tree.structure(whole()))


def test_fields_with_a_gradient_are_the_first_leaves():
    given = whole()
    first = [given.query, given.key, given.value, given.bias.slopes]
    assert all(one is other for one, other in zip(jax.tree.leaves(given), first, strict=False))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("placeholder", [object(), None, "x"], ids=["object", "None", "string"])
def test_the_constructor_takes_whatever_jax_fills_in(placeholder):
    structure = jax.tree.structure(whole())
    filled = jax.tree.unflatten(structure, [placeholder] * structure.num_leaves)
    assert isinstance(filled, AttentionInputs)
    assert filled.query is placeholder and filled.soft_cap == 1.5


@pytest.mark.usefixtures("as_users_run_it")
def test_tree_map_reaches_every_array():
    doubled = jax.tree.map(lambda x: x, whole())
    for one, other in zip(jax.tree.leaves(doubled), jax.tree.leaves(whole()), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
    shapes = jax.tree.map(lambda x: x.shape, whole())
    assert shapes.query == (B, T, N, H) and shapes.mask.is_token == (B, S)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
def test_jit_takes_them_as_one_argument(implementation):
    given = whole()
    calls = []

    @jax.jit
    def run(given):
        calls.append(1)
        with forced():
            return compute_attention(given, implementation).output

    output = run(given)
    run(jax.tree.map(lambda x: x, given))
    assert len(calls) == 1  # the same arrays' shapes, the same static fields
    options = {"soft_cap": 1.5, "dropout_rate": 0.3, "implementation": implementation}
    expected = jax.jit(partial(attend, **options))(
        *qkv(),
        bias=alibi(jax_normal(4, N)),
        mask=padding(IS_TOKEN),
        dropout_rng=jax.random.key(0),
    )
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
def test_vmap_over_them_is_each_of_them(implementation):
    masks = np.stack([IS_TOKEN, ~IS_TOKEN])
    queries = np.stack([qkv()[0], 2 * np.asarray(qkv()[0])])

    def run(query, is_token):
        given = AttentionInputs(query, *qkv()[1:], mask=padding(is_token))
        return validate(given).zero_masked_rows()

    def compute(given):
        with forced():
            return compute_attention(given, implementation).output

    batched = jax.jit(jax.vmap(run))(queries, masks)
    assert batched.query.shape == (2, B, T, N, H)
    outputs = jax.jit(jax.vmap(compute))(batched)
    alone = jax.jit(lambda *given: compute(run(*given)))
    for i in range(2):
        expected = alone(queries[i], masks[i])
        np.testing.assert_allclose(outputs[i], expected, rtol=0, atol=1e-6)


def test_a_kernel_returns_what_was_asked_for_and_no_more():
    def returned(implementation=None, **options):
        def run(*arrays):
            given = validate(AttentionInputs(*arrays, **options)).zero_masked_rows()
            return compute_attention(given, implementation)

        return jax.eval_shape(run, *qkv())

    assert returned()[1:] == (None, None)
    for implementation in ("reference", "blockwise"):
        with forced():
            result = returned(implementation, return_logsumexp=True)
        assert result.weights is None and result.logsumexp.shape == (B, T, N)


# Once a call -----------------------------------------------------------------------------------

KERNELS = (
    jax_normal(5, D, N, H),
    jax_normal(6, D, K, H),
    jax_normal(7, D, K, O),
    jax_normal(8, N, O, D),
)
TEXT = jax_normal(9, B, T, D)


def encoder_layer():
    config = StackConfig(num_layers=1, embed_dim=D, num_heads=N, num_kv_heads=K, hidden_dim=13)
    return EncoderLayer(config, rngs=nnx.Rngs(0))


CALLS = {
    "dot_product_attention": lambda mask: dot_product_attention(*qkv(), mask=mask),
    "attention_weights": lambda mask: attention_weights(*qkv()[:2], mask=mask),
    "attention_plan": lambda mask: attention_plan(*qkv(), mask=mask),
    "multi_head_attention": lambda mask: multi_head_attention(TEXT, TEXT, *KERNELS, mask=mask),
    "additive_attention": lambda mask: additive_attention(
        TEXT, TEXT, TEXT, jax_normal(1, D, 3), jax_normal(2, D, 3), jax_normal(3, 3), mask=mask
    ),
    "MultiHeadAttention": lambda mask: MultiHeadAttention(D, N, rngs=nnx.Rngs(0))(
        TEXT, TEXT, LayerContext(mask=mask)
    ),
    "EncoderLayer": lambda mask: encoder_layer()(TEXT, LayerContext(mask=mask)),
}


def traced(function, *arguments):
    """Call it without compiling and computing anything."""

    def call():
        function(*arguments)

    jax.eval_shape(call)


LENGTHS = {"dot_product_attention": S, "attention_weights": S, "attention_plan": S}


@pytest.fixture
def count(monkeypatch):
    """Lists the arguments of the calls of a function by the module that imports it."""

    def counting(module, name):
        function, calls = getattr(module, name), []

        def counted(*arguments, **options):
            calls.append(arguments)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
        return calls

    return counting


@pytest.mark.parametrize("name", CALLS)
def test_the_mask_is_validated_once_a_call(name, count):
    checked = [count(inputs, check) for check in ("check_fit", "as_mask", "as_bias")]
    traced(CALLS[name], padding(IS_TOKEN[:, : LENGTHS.get(name, T)]))
    fits, masks, biases = checked
    assert [arguments[0] for arguments in fits].count("mask") == len(masks) == 1
    assert len(biases) == (0 if name == "additive_attention" else 1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_kernel_validates_again(implementation, count):
    checks = ("check_fit", "as_mask", "check_attention", "check_rate")
    counts = [count(inputs, check) for check in checks]
    counts += [count(inputs, "find_masked_rows")]
    x = jax_normal(1, B, T, N, H)
    mask = padding(IS_TOKEN[:, :T])
    traced(partial(attend, mask=mask, implementation=implementation), x, x, x)
    assert [len(calls) for calls in counts] == [2, 1, 1, 1, 1]  # `check_fit` of bias and mask


@pytest.mark.parametrize("name", CALLS)
def test_the_masked_rows_are_found_once_a_call(name):
    """The mask is rendered for them, and once more for the softmax."""
    rendered = []

    class Counted(type(padding(IS_TOKEN))):
        def block(self, block):
            rendered.append(block)
            return super().block(block)

    mask = Counted(jax.device_put(IS_TOKEN[:, : LENGTHS.get(name, T)]))
    with_shapes_alone = 1  # `check_fit`
    traced(CALLS[name], mask)
    expected = 0 if name == "attention_plan" else 2
    assert len(rendered) == expected + with_shapes_alone


def test_layers_use_the_rows_that_their_stack_found(count):
    mask = attach_masked_rows(padding(IS_TOKEN[:, :T]), T, T)
    searched = count(masked_rows, "rendered")  # the whole mask, of so few tokens

    graph, abstract = nnx.split(nnx.eval_shape(encoder_layer))
    parameters = jax.tree.map(lambda leaf: jax_normal(1, *leaf.shape), abstract)

    @jax.jit
    def two_layers(mask):
        layer, context = nnx.merge(graph, parameters), LayerContext(mask=mask)
        return layer(layer(TEXT, context), context)

    with_rows = two_layers(mask)
    assert searched == []
    without = two_layers(mask.rule)
    assert len(searched) == 2  # once a layer
    np.testing.assert_array_equal(with_rows, without)


# A mask that carries its rows ------------------------------------------------------------------


def test_attached_rows_are_those_of_the_mask():
    mask = causal() & padding(IS_TOKEN)
    attached = attach_masked_rows(mask, T, S)
    for one, other in zip(attached.rows, find_masked_rows(mask, T, S), strict=True):
        np.testing.assert_array_equal(one, other)
    assert find_masked_rows(attached, T, S) is attached.rows
    assert attach_masked_rows(attached, T, S).rows is attached.rows
    assert attach_masked_rows(None, T, S) is None
    assert isinstance(attach_masked_rows(np.ones((T, S), bool), T, S), MaskWithRows)


def test_rows_of_other_lengths_are_not_used():
    attached = attach_masked_rows(causal(), T, T)
    assert attached.rows == MaskedRows()
    rows = find_masked_rows(attached, S, T)  # the first queries come before every key
    assert np.asarray(rows.visible_queries).ravel().tolist() == [False] * (S - T) + [True] * T
    again = attach_masked_rows(attached, S, T)
    assert not isinstance(again.rule, MaskWithRows) and (again.T, again.S) == (S, T)


def test_a_mask_with_rows_is_a_mask_like_any_other():
    mask = causal() & padding(IS_TOKEN[:, :T])
    attached = attach_masked_rows(mask, T, T)
    assert isinstance(attached, Mask) and attached.show(T) == mask.show(T)
    assert attached.includes_diagonal is mask.includes_diagonal
    np.testing.assert_array_equal((attached & causal()).to_array(T), mask.to_array(T))
    x = jax_normal(1, B, T, N, H)
    for implementation in IMPLEMENTATIONS:
        run = partial(attend, x, x, x, implementation=implementation)
        ours, theirs = jax.jit(lambda *masks, run=run: [run(mask=mask) for mask in masks])(
            attached, mask
        )
        np.testing.assert_array_equal(ours, theirs)


def test_the_plan_knows_the_mask_behind_its_rows(monkeypatch):
    """cuDNN takes a causal mask by its name."""
    seen = []
    monkeypatch.setattr(
        "transformer_jax.attention.kernels.dispatch.why_not_cudnn",
        lambda given: seen.append(given.mask) or "no",
    )
    x = jax_normal(1, B, T, N, H)
    attention_plan(x, x, x, mask=attach_masked_rows(causal(), T, T))
    assert type(seen[0]) is type(causal())


def test_nothing_is_hidden_where_every_row_sees_itself():
    x = jax_normal(1, B, T, N, H)
    given = validate(AttentionInputs(x, x, x, mask=causal())).zero_masked_rows()
    assert given.masked_rows == MaskedRows()
    assert given.query is x and given.value is x
