"""Counting from the jaxpr: each kind of operation by hand, under scan, vmap, grad, remat, cond,
while, shard_map.
"""

from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from transformer_jax.costs.jaxpr import MOVES, OPAQUE, Count, count
from transformer_jax.functional.linear_map import linear_map

M, K, N = 3, 5, 7
PRODUCT = 2 * M * K * N
SQUARE_PRODUCT = 2 * K * K * K


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


X, W, SQUARE = array(M, K), array(K, N), array(K, K)


def flops(fn, *args):
    counted = count(fn, *args)
    assert counted.unknown == ()
    return counted.flops


def power(x, W, length):
    """x W W W ...: `length` products in a scan."""
    return lax.scan(lambda x, _: (x @ W, None), x, length=length)[0]


# One operation
# --------------------------------------------------------------------------------------------


def test_a_product_is_two_operations_for_each_term_of_each_sum():
    assert count(jnp.matmul, X, W) == Count(PRODUCT, 0, 4 * M * N, (M, N), ())


@pytest.mark.parametrize(
    ("equation", "x", "y", "terms"),
    [
        ("ij,jk->ik", (3, 5), (5, 7), 3 * 5 * 7),
        ("bij,bjk->bik", (2, 3, 5), (2, 5, 7), 2 * 3 * 5 * 7),
        ("btnh,bsnh->bnts", (2, 3, 5, 7), (2, 11, 5, 7), 2 * 5 * 3 * 11 * 7),
        ("ijk,jkl->il", (2, 3, 5), (3, 5, 7), 2 * 3 * 5 * 7),
        ("i,i->", (13,), (13,), 13),
        ("i,j->ij", (3,), (5,), 3 * 5),
    ],
)
def test_a_product_counts_every_combination_of_its_axes(equation, x, y, terms):
    assert flops(lambda x, y: jnp.einsum(equation, x, y), array(*x), array(*y)) == 2 * terms


@pytest.mark.parametrize(("groups", "batches"), [(1, 1), (2, 1), (1, 2)])
def test_a_convolution_counts_every_term_of_every_output(groups, batches):
    B, C, L, outputs, width = 4, 6, 11, 8, 3
    out, inputs = L - width + 1, C // groups

    def convolve(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (1,), "VALID", feature_group_count=groups, batch_group_count=batches
        )

    # The loops of the definition: for each output, each input of its group at each place of the
    # kernel.
    terms = sum(
        1
        for _ in product(
            range(B // batches), range(outputs), range(out), range(inputs), range(width)
        )
    )
    assert flops(convolve, array(B, C, L), array(outputs, inputs, width)) == 2 * terms


def test_the_gradient_of_a_convolution_counts_like_the_convolution():
    def convolve(kernel, x):
        return lax.conv_general_dilated(x, kernel, (1,), "VALID", feature_group_count=2).sum()

    args = array(8, 3, 3), array(4, 6, 11)
    assert flops(jax.grad(convolve), *args) == 2 * flops(convolve, *args)


def test_elementwise_operations_are_one_for_each_element_and_reductions_for_each_that_enters():
    assert count(lambda x: jnp.exp(x) * 2 + 1, X).elementwise == 3 * M * K
    assert count(lambda x: x.sum(axis=1), X).elementwise == M * K
    assert count(lambda x: x.max(), X).elementwise == M * K
    assert count(lambda x: jnp.cumsum(x, 0), X).elementwise == M * K
    assert count(lambda x, y: x + y, X, array(1, K)).elementwise == M * K


def test_an_addition_into_rows_counts_what_is_added_not_the_table():
    table, rows = array(1000, K), array(M, K)
    counted = count(lambda table, rows: table.at[jnp.array([1, 5, 7])].add(rows), table, rows)
    indices = 3 * M  # a comparison, a sum and a choice wrap the negative ones
    assert counted.elementwise == M * K + indices
    assert counted.largest_shape == (1000, K)


def test_moving_data_is_no_arithmetic():
    def move(x):
        x = jnp.concatenate([x.T.reshape(-1)[::-1], jnp.arange(4.0)])
        return jnp.broadcast_to(x[2:9].astype(jnp.bfloat16), (3, 7))

    counted = count(move, X)
    assert (counted.flops, counted.elementwise, counted.unknown) == (0, 0, ())


def test_the_largest_intermediate_is_measured_in_bytes_of_its_own_type():
    def widen(x):
        narrow = jnp.broadcast_to(x.astype(jnp.int8), (3, M, K))
        return narrow.sum(axis=0, dtype=jnp.int32), x.astype(jnp.float32) + 1

    counted = count(widen, array(M, K, dtype=jnp.bfloat16))
    assert (counted.largest_bytes, counted.largest_shape) == (4 * 3 * M * K, (3, M, K))  # int32
    counted = count(lambda x: x.astype(jnp.bfloat16), X)
    assert counted.largest_bytes == 2 * M * K


def test_arguments_are_no_intermediates():
    assert count(lambda x: x[0, 0] + 1, array(1000, 1000)).largest_bytes == 4


def test_keys_and_dropout_are_counted():
    counted = count(lambda key: jax.random.bernoulli(key, 0.5, (M, K)), jax.random.key(0))
    assert counted.elementwise >= M * K and counted.unknown == ()


# What is inside
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4, 100])
def test_the_body_of_a_scan_counts_as_often_as_it_runs(length):
    assert flops(lambda x, W: power(x, W, length), X, SQUARE) == length * 2 * M * K * K


def test_scans_inside_scans_multiply():
    def twice(x, W):
        return lax.scan(lambda x, _: (power(x, W, 4), None), x, length=3)[0]

    assert flops(twice, X, SQUARE) == 3 * 4 * 2 * M * K * K


def test_what_a_scan_stacks_is_an_intermediate_and_its_body_is_not_stacked():
    stacked = count(lambda x, W: lax.scan(lambda x, _: (x @ W, x), x, length=9)[1], X, SQUARE)
    assert stacked.largest_shape == (9, M, K)
    assert count(lambda x, W: power(x, W, 9), X, SQUARE).largest_shape == (M, K)


def test_xla_counts_the_body_of_a_scan_once():
    """XLA's own counter is not enough: a longer loop costs nothing there."""

    def theirs(length):
        compiled = jax.jit(lambda x, W: power(x, W, length)).lower(X, SQUARE).compile()
        return compiled.cost_analysis()["flops"]

    assert theirs(100) < 1.1 * theirs(50)
    ours = [flops(lambda x, W, n=n: power(x, W, n), X, SQUARE) for n in (50, 100)]
    assert ours[1] == 2 * ours[0]


def test_a_batch_by_vmap_counts_as_often_as_its_size():
    batched = jax.vmap(lambda x, W: power(x, W, 4), in_axes=(0, None))
    assert flops(batched, array(6, M, K), SQUARE) == 6 * 4 * 2 * M * K * K


def test_a_gradient_is_two_products_for_each_beside_the_forward_one():
    def loss(x, W):
        return jnp.sin(x @ W).sum()

    assert flops(jax.grad(loss, argnums=(0, 1)), X, W) == 3 * PRODUCT
    assert flops(jax.grad(loss, argnums=1), X, W) == 2 * PRODUCT  # no gradient of x


def test_the_gradient_of_a_scan_is_counted_through_both_its_loops():
    def loss(x, W):
        return jnp.sin(power(x, W, 4)).sum()

    assert flops(jax.grad(loss, argnums=(0, 1)), X, SQUARE) == 3 * 4 * 2 * M * K * K


def test_remat_computes_once_more_what_the_gradient_needs():
    def two(x, V, W):
        return jnp.sin(jnp.sin(x @ V) @ W).sum()

    args = X, SQUARE, W
    forward = 2 * M * K * K + PRODUCT
    assert flops(jax.grad(two, argnums=(0, 1, 2)), *args) == 3 * forward
    assert flops(jax.grad(jax.checkpoint(two), argnums=(0, 1, 2)), *args) == 4 * forward

    def linear(x, V, W):  # the last product's own value is in no gradient
        return (jnp.sin(x @ V) @ W).sum()

    rematted = flops(jax.grad(jax.checkpoint(linear), argnums=(0, 1, 2)), *args)
    assert rematted == 4 * forward - PRODUCT


def test_of_a_cond_the_more_expensive_branch_counts():
    def choose(i, x, W):
        return lax.switch(i, [lambda x: x, lambda x: x @ W @ W, lambda x: jnp.sin(x @ W)], x)

    counted = count(choose, array(dtype=jnp.int32), X, SQUARE)
    assert counted.flops == 2 * 2 * M * K * K
    assert counted.elementwise == M * K + 1  # the sine; the index clamped into 0..2


def test_a_choice_by_vmap_computes_every_branch():
    def choose(i, x, W):
        return lax.cond(i, lambda x: x @ W, lambda x: x @ W @ W, x)

    batched = jax.vmap(choose, in_axes=(0, 0, None))
    assert flops(batched, array(6, dtype=bool), array(6, M, K), SQUARE) == 6 * 3 * 2 * M * K * K


def test_a_while_loop_counts_once_and_says_so():
    def until(x, W):
        return lax.while_loop(lambda x: (x @ W).sum() < 1, lambda x: x @ W @ W, x)

    counted = count(until, X, SQUARE)
    assert counted.unknown == ("while",)
    assert counted.flops == 3 * 2 * M * K * K


def test_a_loop_whose_bounds_are_known_counts_as_often_as_it_runs():
    def loop(x, W):
        return lax.fori_loop(0, 6, lambda _, x: x @ W, x)

    assert flops(loop, X, SQUARE) == 6 * 2 * M * K * K


@pytest.mark.parametrize(
    "wrap",
    [jax.jit, jax.checkpoint, jax.named_call, lambda f: jax.jit(jax.jit(f))],
    ids=["jit", "remat", "named_call", "jit of jit"],
)
def test_a_wrapper_changes_nothing(wrap):
    assert flops(wrap(lambda x, W: x @ W), X, W) == PRODUCT


def test_a_tangent_of_ones_own_is_what_counts():
    @jax.custom_jvp
    def multiply(x, W):
        return x @ W

    multiply.defjvp(lambda x, t: (x[0] @ x[1], t[0] @ x[1] + x[0] @ t[1] + (x[0] + t[0]) @ x[1]))
    assert flops(multiply, X, W) == PRODUCT
    assert flops(lambda *x: jax.jvp(multiply, x, x), X, W) == 4 * PRODUCT


def test_a_gradient_of_ones_own_is_what_counts():
    @jax.custom_vjp
    def multiply(x, W):
        return x @ W

    multiply.defvjp(lambda x, W: (x @ W, (x, W)), lambda kept, d: (d @ kept[1].T, kept[1] * 0))
    assert flops(multiply, X, W) == PRODUCT
    assert flops(jax.grad(lambda x, W: multiply(x, W).sum(), argnums=(0, 1)), X, W) == 2 * PRODUCT


def test_a_tangent_that_is_a_linear_map_is_what_counts():
    @jax.custom_jvp
    def multiply(x, W):
        return x @ W

    @multiply.defjvp
    def rule(arrays, tangents):
        product = multiply(*arrays)
        both = lambda x, d: [d[0] @ x[1] + x[0] @ d[1]]  # noqa: E731
        back = lambda x, d: [d[0] @ x[1].T, x[0].T @ d[0]]  # noqa: E731
        return product, linear_map(both, back, arrays, tangents, [product])[0]

    assert flops(lambda *x: jax.jvp(multiply, x, x), X, W) == 3 * PRODUCT
    gradient = jax.grad(lambda x, W: multiply(x, W).sum(), argnums=(0, 1))
    assert flops(gradient, X, W) == 3 * PRODUCT


@pytest.mark.parametrize("devices", [1, 4])
def test_a_shard_map_counts_what_all_its_devices_do(devices):
    mesh = jax.sharding.AbstractMesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    split, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(split, whole), out_specs=split)
    assert flops(sharded, array(4 * M, K), W) == 4 * PRODUCT
    copied = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(whole, whole), out_specs=whole)
    assert flops(copied, X, W) == devices * PRODUCT  # each does all of it


def test_what_shapes_do_not_tell_is_named():
    def solve(x):
        return jnp.sort(jnp.linalg.cholesky(x) @ x)

    counted = count(solve, SQUARE)
    assert counted.unknown == ("cholesky", "sort")
    assert counted.flops == SQUARE_PRODUCT


def test_no_arithmetic_is_listed_as_moving_and_nothing_twice():
    from jax.extend.core import primitives

    known = {value.name for name, value in vars(primitives).items() if name.endswith("_p")}
    assert {"broadcast_in_dim", "reshape", "gather", "convert_element_type"} <= MOVES & known
    assert {
        "dot_general",
        "conv_general_dilated",
        "scan",
        "while",
        "cond",
    } <= known - MOVES - OPAQUE
    assert not MOVES & OPAQUE


def test_it_computes_nothing():
    """Arguments of terabytes, and a counter that only traces."""
    counted = count(lambda x, W: x @ W, array(2**20, 2**20), array(2**20, 2**20))
    assert counted.flops == 2 * 2**60
    assert counted.largest_bytes == 4 * 2**40


def test_the_count_of_a_real_function_equals_its_loops():
    """A loop that does the products of `jnp.einsum` one number at a time and keeps a tally."""
    tally = SimpleNamespace(operations=0)

    def multiply(x, y):
        out = np.zeros((x.shape[0], y.shape[1]))
        for i, j, k in product(range(x.shape[0]), range(y.shape[1]), range(x.shape[1])):
            out[i, j] += x[i, k] * y[k, j]
            tally.operations += 2
        return out

    x, W = np.ones((M, K)), np.ones((K, K))
    expected = multiply(multiply(x, W), W)
    np.testing.assert_array_equal(expected, power(jnp.array(x), jnp.array(W), 2))
    assert tally.operations == flops(lambda x, W: power(x, W, 2), X, SQUARE)
