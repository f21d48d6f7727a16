"""check_arrays names the argument, what was expected and what came, and lets through what fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.checks import KINDS, check_arrays

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def test_sizes_that_agree_pass():
    check_arrays(
        query=(jnp.ones((2, 3, 5)), "B T D"),
        key=(np.ones((2, 7, 5)), "B S D"),
        is_token=(np.ones((2, 7), bool), "bool B S"),
        positions=(np.ones((1, 3), int), "int #B T"),
        bias=(None, "D"),
    )


@pytest.mark.parametrize(
    ("second", "pattern", "message"),
    [
        (
            (2, 4),
            "B T",
            r"y must have the axes \[B, T\] with B=2 of x, T=3 of x; got the shape \(2, 4\)",
        ),
        ((2,), "B T", r"y must have the axes \[B, T\] with .*; got the shape \(2,\)"),
        ((2, 3, 1), "B T", r"y must have the axes \[B, T\] with .*; got the shape \(2, 3, 1\)"),
        ((1, 3), "B T", r"y must have the axes \[B, T\]"),
        ((4, 3), "#B T", r"y must have the axes \[B, T\] with B=2 of x"),
        ((7, 4), "... T", r"y must have the axes \[..., T\] with T=3 of x; got the shape \(7, 4\)"),
        ((), "... T", r"y must have the axes \[..., T\] with T=3 of x; got the shape \(\)"),
    ],
)  # fmt: skip
def test_axes_that_do_not_fit_are_named(second, pattern, message):
    arguments = {"x": (jnp.ones((2, 3)), "B T"), "y": (jnp.ones(second), pattern)}
    with pytest.raises(ValueError, match=message):
        check_arrays(**arguments)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (7, 5, 3)])
def test_three_dots_stand_for_any_axes_before(shape):
    check_arrays(x=(jnp.ones((2, 3)), "B T"), y=(jnp.ones(shape), "... T"))


def test_a_size_of_one_fits_where_it_is_allowed_and_fixes_nothing():
    one, two = jnp.ones((1, 3)), jnp.ones((2, 3))
    check_arrays(x=(one, "#B T"), y=(two, "B T"))
    check_arrays(x=(two, "B T"), y=(one, "#B T"))
    with pytest.raises(ValueError, match="y must have"):
        check_arrays(x=(two, "B T"), y=(one, "B T"))


ARRAYS = {
    "float": [np.ones(2, np.float32), jnp.ones(2, jnp.bfloat16), np.ones(2)],
    "int": [np.ones(2, np.int64), jnp.ones(2, jnp.uint8)],
    "bool": [np.ones(2, bool)],
}


@pytest.mark.parametrize("wanted", KINDS)
@pytest.mark.parametrize("given", ARRAYS)
def test_an_array_of_another_kind_is_a_type_error(wanted, given):
    for array in ARRAYS[given]:
        if wanted == given:
            check_arrays(x=(array, f"{wanted} D"))
        else:
            with pytest.raises(TypeError, match=f"x must be .*; got {array.dtype}"):
                check_arrays(x=(array, f"{wanted} D"))


def test_floating_point_is_what_is_expected_by_default():
    with pytest.raises(TypeError, match="x must be floating point; got int64; convert it with"):
        check_arrays(x=(np.ones(2, np.int64), "D"))


@pytest.mark.parametrize("thing", [[1.0, 2.0], 1.0, "text", (1.0,)])
def test_what_is_no_array_is_a_type_error(thing):
    with pytest.raises(TypeError, match=rf"x must be an array .*\[D\]; got {type(thing).__name__}"):
        check_arrays(x=(thing, "D"))


def test_tracers_and_shapes_alone_are_checked_as_arrays_are():
    def function(x):
        check_arrays(x=(x, "B T"))
        return x

    jax.jit(function)(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="x must have the axes"):
        jax.jit(function)(jnp.ones(2))
    with pytest.raises(ValueError, match="x must have the axes"):
        check_arrays(x=(jax.ShapeDtypeStruct((2,), jnp.float32), "B T"))
