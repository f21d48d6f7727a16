"""Products are computed in the dtype that the machine is fast in, and summed in one that is wide enough."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import products
from transformer_jax.products import operands_dtype, product

WITH = {"amx": True, "no amx": False}


@pytest.mark.parametrize(
    ("backend", "amx", "dtype", "expected"),
    [
        ("cpu", "no amx", jnp.bfloat16, jnp.float32),
        ("cpu", "no amx", jnp.float16, jnp.float32),
        ("cpu", "amx", jnp.bfloat16, jnp.bfloat16),
        ("cpu", "amx", jnp.float16, jnp.float32),  # AMX has no float16
        ("cpu", "no amx", jnp.float32, jnp.float32),
        ("cpu", "no amx", jnp.float64, jnp.float64),
        ("gpu", "no amx", jnp.bfloat16, jnp.bfloat16),
        ("gpu", "no amx", jnp.float16, jnp.float16),
        ("tpu", "no amx", jnp.bfloat16, jnp.bfloat16),
    ],
)
def test_short_products_are_left_to_machines_that_have_them(
    monkeypatch, backend, amx, dtype, expected
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(products, "_has_amx", lambda: WITH[amx])
    assert operands_dtype(jnp.dtype(dtype)) == jnp.dtype(expected)


@pytest.mark.parametrize(
    ("flags", "has"), [("avx512f amx_bf16 amx_tile", True), ("avx512_bf16", False)]
)
def test_the_processor_says_whether_it_has_amx(monkeypatch, tmp_path, flags, has):
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags : {flags}\n")
    monkeypatch.setattr(products, "Path", lambda _: tmp_path / "cpuinfo")
    assert products._has_amx.__wrapped__() is has


def test_without_a_list_of_flags_there_is_no_amx(monkeypatch, tmp_path):
    monkeypatch.setattr(products, "Path", lambda _: tmp_path / "none")
    assert products._has_amx.__wrapped__() is False


def test_products_are_summed_in_the_wider_dtype():
    # 1024 ones: a running sum in bfloat16 stops at 256.
    ones = jnp.ones((1, 1024), jnp.bfloat16)
    total = product("AB,CB->AC", ones, ones, jnp.dtype(jnp.float32))
    assert total.dtype == jnp.float32
    np.testing.assert_array_equal(total, 1024)
