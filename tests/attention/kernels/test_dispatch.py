"""The choice of an implementation, and its reason.

An implementation that is not available says so, and modules pass the choice on.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import normal
from tests.helpers.implementations import forced
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.kernels import compute
from transformer_jax.attention.kernels.dispatch import (
    IMPLEMENTATIONS,
    ON_AN_ACCELERATOR,
    attention_plan,
)
from transformer_jax.attention.kernels.thresholds import (
    KERNEL_FROM,
    LIMITS,
    SINGLE_QUERY_FROM,
    Case,
)
from transformer_jax.attention.masks import causal, padding, sliding_window
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.layers import MultiHeadAttention

pytestmark = pytest.mark.usefixtures("strict")

LONG = (1, 4096, 8, 64)
PLAIN = Case("avx512", narrow=False, gradient=False, masked=False)


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(autouse=True)
def processor_with(monkeypatch):
    """Set the widest instructions of the processor, as far as the plan knows: AVX-512."""

    def has(instructions):
        monkeypatch.setattr(
            "transformer_jax.attention.kernels.dispatch.widest_instructions", lambda: instructions
        )

    has("avx512")
    return has


@pytest.fixture(autouse=True)
def without_the_kernel_for_cpus(monkeypatch):
    """The choice where it is not built; `test_cpu.py` has that where it is."""
    monkeypatch.setattr("transformer_jax.attention.kernels.cpu.is_built", lambda: False)


def plan(query=LONG, key=None, value=None, dtype=jnp.float32, **options):
    key = key or query
    arrays = (shaped(*shape, dtype=dtype) for shape in (query, key, value or key))
    return attention_plan(*arrays, **options)


# On a CPU
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "implementation", "reason"),
    [
        ({}, "blockwise", "134,217,728 logits are computed by blocks and never stored together"),
        ({"mask": causal()}, "blockwise", "134,217,728 logits"),
        ({"dtype": jnp.bfloat16}, "blockwise", "134,217,728 logits"),
        ({"return_logsumexp": True, "dropout": True, "soft_cap": 1.0}, "blockwise", "134,217,728"),
        ({"query": (1, 16, 2, 8)}, "reference", "512 logits are few enough to be stored together"),
        ({"return_weights": True}, "reference", "weights are asked for, which only the reference"),
        ({"query": (1, 0, 2, 8)}, "reference", "there is nothing to attend to"),
        ({"query": (1, 4, 2, 8), "key": (1, 0, 2, 8)}, "reference", "there is nothing to attend"),
        ({"query": (0, 4, 2, 8)}, "reference", "there is nothing to attend to"),
        ({"implementation": "reference"}, "reference", "it is asked for"),
        ({"query": (1, 4, 2, 8), "implementation": "blockwise"}, "blockwise", "it is asked for"),
    ],
)
def test_the_choice_and_its_reason(case, implementation, reason):
    chosen = plan(**case)
    assert chosen.implementation == implementation
    assert reason in chosen.reason


def first_by_blocks(B, N, T, narrow=False, gradient=False, masked=False):
    """The fewest keys with which so many examples, heads and queries go by blocks."""
    few, many, dtype = 1, 2**30, jnp.bfloat16 if narrow else jnp.float32
    mask = causal() if masked else None
    while many - few > 1:
        S = (few + many) // 2
        found = plan((B, T, N, 8), (B, S, N, 8), dtype=dtype, mask=mask)
        chosen = found.differentiated if gradient else found.implementation
        few, many = (S, many) if chosen == "reference" else (few, S)
    return many


@pytest.mark.parametrize(("N", "T"), [(1, 1), (8, 1), (1, 64), (8, 64)])
def test_few_logits_are_counted_over_heads_queries_and_keys(N, T):
    assert first_by_blocks(1, N, T) * N * T == LIMITS[PLAIN].one_example
    assert first_by_blocks(2, N, T) * N * T == LIMITS[PLAIN].of_several


@pytest.mark.parametrize("case", LIMITS)
def test_the_limits_differ_by_processor_dtype_derivative_and_mask(case, processor_with):
    processor_with(case.instructions)
    limits = LIMITS[case]
    assert first_by_blocks(1, 8, 64, *case[1:]) * 8 * 64 == limits.one_example
    of_two = min(limits.of_several, limits.together // 2)
    assert first_by_blocks(2, 8, 64, *case[1:]) * 8 * 64 == of_two


def test_few_logits_are_counted_over_examples_too():
    limits = LIMITS[PLAIN]
    examples = 2 * limits.together // limits.of_several
    assert first_by_blocks(examples, 1, 1) * examples == limits.together


@pytest.mark.parametrize(("B", "case"), [(1, "one_example"), (2, "of_several")])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("instructions", ["amx", "avx512", "other"])
def test_the_kernel_attends_to_texts_as_short_as_it_differentiates_or_shorter(
    instructions, narrow, B, case, monkeypatch, processor_with
):
    processor_with(instructions)
    monkeypatch.setattr("transformer_jax.attention.kernels.cpu.is_built", lambda: True)
    attends_from, differentiates_from = (
        getattr(KERNEL_FROM[Case(instructions, narrow, gradient, True)], case)
        for gradient in (False, True)
    )
    dtype = jnp.bfloat16 if narrow else jnp.float32
    for queries, keys, attends, differentiates in [
        (2, attends_from // 2 - 1, False, False),
        (2, attends_from // 2, True, attends_from == differentiates_from),
        (2, differentiates_from // 2 - 1, attends_from < differentiates_from, False),
        (2, differentiates_from // 2, True, True),
        # The masked keys of one query are not zeroed, so its gradient must not read them.
        (1, differentiates_from, True, False),
        (1, SINGLE_QUERY_FROM[True] // B - 1, False, False),
        (1, SINGLE_QUERY_FROM[True] // B, True, False),
    ]:
        found = plan((B, queries, 2, 8), (B, keys, 2, 8), dtype=dtype, mask=causal())
        assert (found.implementation == "cpu") is attends
        assert (found.differentiated == "cpu") is differentiates
    found = plan((1, 32, 2, 8), implementation="cpu")
    assert (found.implementation, found.differentiated) == ("cpu", "cpu")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"implementation": "cudnn"}, '"cudnn" cannot be had: there is no NVIDIA GPU; pass None'),
        (
            {"implementation": "blockwise", "return_weights": True},
            '"blockwise" cannot be had: weights are asked for, which only the reference makes',
        ),
        (
            {"implementation": "blockwise", "query": (1, 0, 2, 8)},
            '"blockwise" cannot be had: there is nothing to attend to',
        ),
        (
            {"implementation": "flash"},
            "implementation must be one of reference, blockwise, cpu, triton, cudnn, or None to "
            "choose; got 'flash'",
        ),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_what_cannot_be_had_says_why(case, message):
    with pytest.raises(ValueError, match=message):
        plan(**case)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("implementation", ["cudnn", "flash", ""])
def test_attention_says_the_same(implementation):
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ValueError, match=r"cannot be had|must be one of"):
        dot_product_attention(x, x, x, implementation=implementation)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": "causal"}, TypeError, "mask must be a rule"),
        ({"mask": jnp.ones((3, 5), bool)}, ValueError, "T=4"),
        (
            {"mask": jnp.ones((3, 1, 4, 4), bool)},
            ValueError,
            r"mask must broadcast to \[B, N, T, S\]",
        ),
        ({"bias": jnp.ones((3, 1, 4, 4))}, ValueError, r"bias must broadcast to \[B, N, T, S\]"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_a_plan_is_made_only_of_what_fits(options, error, message):
    x = jnp.ones((1, 4, 2, 8))
    for ask in (attention_plan, dot_product_attention):
        with pytest.raises(error, match=message):
            ask(x, x, x, **options)


def test_arrays_need_not_be_there():
    x = jnp.ones((1, 4, 2, 8))
    assert attention_plan(x, x, x) == plan((1, 4, 2, 8))


# On a GPU
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    def install(capability):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(
            jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)]
        )

    return install


HALF = {"dtype": jnp.bfloat16}


@pytest.mark.parametrize(
    ("capability", "case", "objection"),
    [
        ("9.0", HALF, None),
        ("8.0", HALF, None),
        ("8.0", {"dtype": jnp.float16, "mask": causal()}, None),
        ("9.0", HALF | {"query": (1, 4, 2, 256)}, None),
        ("9.0", HALF | {"query": (1, 5, 2, 8)}, None),
        ("7.5", HALF, "the GPU is older than Ampere"),
        ("9.0", {}, "it takes float16 and bfloat16, not float32"),
        (
            "8.0",
            HALF | {"query": (1, 4, 2, 256)},
            "it takes 128 features a head, in multiples of 8, not 256",
        ),
        ("9.0", HALF | {"query": (1, 4, 2, 264)}, "it takes 256 features"),
        ("9.0", HALF | {"query": (1, 4, 2, 12)}, "in multiples of 8, not 12"),
        (
            "9.0",
            HALF | {"query": (1, 4, 2, 8), "value": (1, 4, 2, 16)},
            "another width than the keys",
        ),
        ("9.0", HALF | {"soft_cap": 2.0}, "it has no soft cap"),
        ("9.0", HALF | {"dropout": True}, "its dropout cannot be repeated"),
        ("9.0", HALF | {"return_weights": True}, "it returns no weights"),
        ("9.0", HALF | {"return_logsumexp": True}, "it returns no logsumexp"),
        ("9.0", HALF | {"query": (1, 5, 2, 8), "mask": causal()}, None),
        ("9.0", HALF | {"query": (1, 5, 2, 8), "mask": padding(np.ones((1, 5), bool))}, None),
        (
            "9.0",
            HALF | {"query": (1, 5, 2, 8), "mask": sliding_window(1, 1)},
            "it takes even lengths",
        ),
        (
            "9.0",
            HALF | {"query": (1, 5, 2, 8), "bias": np.ones((5, 5), np.float32)},
            "it takes even lengths",
        ),
        ("9.0", HALF | {"query": (1, 0, 2, 8)}, "there is nothing to attend to"),
    ],
)
def test_a_gpus_own_kernel_is_taken_where_it_can_be(gpu, capability, case, objection):
    gpu(capability)
    if objection is None:
        assert plan(**case).implementation == "cudnn"
        assert plan(**case).reason == "the GPU's own fused kernel takes these arguments"
        return
    assert plan(**case).implementation != "cudnn"
    with pytest.raises(ValueError, match=f'"cudnn" cannot be had: .*{objection}'):
        plan(**case, implementation="cudnn")


@pytest.mark.parametrize("B", [1, 4])
def test_an_accelerator_stores_what_its_memory_holds(gpu, B):
    gpu("9.0")
    assert first_by_blocks(B, 8, 64) * B * 8 * 64 == ON_AN_ACCELERATOR  # float32: not cuDNN's


@pytest.mark.parametrize(
    ("mask", "choice"),
    [
        (sliding_window(5, 5), "blockwise"),
        (sliding_window(5, 0), "cudnn"),
        (causal(), "cudnn"),
        (padding(np.ones((1, 2**14), bool)), "cudnn"),
    ],
    ids=["window", "window to the left", "causal", "padding"],
)
def test_its_kernel_is_not_given_an_array_that_fills_the_memory(gpu, mask, choice):
    gpu("9.0")
    x = shaped(1, 2**14, 2, 256, dtype=jnp.bfloat16)  # too many features for Triton's kernels
    assert attention_plan(x, x, x, mask=mask).implementation == choice
    assert attention_plan(x, x, x, mask=mask, implementation="cudnn").implementation == "cudnn"


def test_its_kernel_does_not_round_a_bias_unasked(gpu):
    gpu("9.0")
    short, long = (jnp.ones((8, 8), dtype) for dtype in (jnp.bfloat16, jnp.float32))
    case = HALF | {"query": (1, 8, 2, 8)}
    assert plan(**case, bias=short).implementation == "cudnn"
    assert plan(**case, bias=long).implementation == "reference"
    assert plan(**case, bias=long, implementation="cudnn").implementation == "cudnn"


def test_dtypes_that_differ_are_computed_in_the_widest_which_it_lacks(gpu):
    gpu("9.0")
    arrays = [shaped(*LONG, dtype=dtype) for dtype in (jnp.bfloat16, jnp.bfloat16, jnp.float16)]
    assert attention_plan(*arrays).implementation != "cudnn"
    with pytest.raises(ValueError, match="takes float16 and bfloat16, not float32"):
        attention_plan(*arrays, implementation="cudnn")


def test_the_oldest_of_several_gpus_decides(monkeypatch, gpu):
    gpu("9.0")
    devices = [SimpleNamespace(compute_capability=c) for c in ("9.0", "7.0")]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert plan(**HALF).implementation != "cudnn"


def test_a_gpu_of_another_maker_has_no_such_kernel(gpu):
    gpu("gfx90a")
    assert plan(**HALF).implementation != "cudnn"
    with pytest.raises(ValueError, match='"cudnn" cannot be had'):
        plan(**HALF, implementation="cudnn")


# Functions and modules pass it on
# ----------------------------------------------------------------------------

B, T, D, N, K = 2, 7, 12, 6, 2


def encoder_config(rate):
    sizes = {"num_layers": 2, "embed_dim": D, "num_heads": N, "num_kv_heads": K, "hidden_dim": 5}
    return StackConfig(**sizes, dropout_rate=rate, attention_dropout_rate=rate)


def classifier(rate):
    config = ClassifierConfig(17, T, encoder=encoder_config(rate))
    return TextClassifier(config, rngs=nnx.Rngs(0))


RNG = np.random.default_rng(0)
X = jax.device_put(RNG.standard_normal((B, T, D)).astype(np.float32))
TOKENS = jax.device_put(np.arange(B * T).reshape(B, T))
IS_TOKEN = jax.device_put(np.arange(T)[None] < np.array([[4], [T]]))
MODULES = {
    "MultiHeadAttention": (
        lambda rate: MultiHeadAttention(
            D, N, num_kv_heads=K, dropout_rate=rate, rngs=nnx.Rngs(0)
        ),
        lambda module, rngs=None, **options: module(
            X, X, LayerContext(mask=causal(), **options), rngs=rngs
        ),
        1,
    ),
    "Encoder": (
        lambda rate: Encoder(encoder_config(rate), rngs=nnx.Rngs(0)),
        lambda module, rngs=None, **options: module(
            X, LayerContext(mask=causal(), **options), rngs=rngs
        ),
        2,
    ),
    "TextClassifier": (
        classifier,
        lambda module, **options: module(
            TOKENS, IS_TOKEN, **options
        ),
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "rate", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["evaluation", "training"]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "Encoder" else ())  # the classifier's
        for name in MODULES
    ],
)
def test_a_module_gives_the_same_by_blocks(name, rate, monkeypatch):
    make, call, layers = MODULES[name]
    graph, abstract = nnx.split(nnx.eval_shape(lambda: make(rate)))
    parameters = jax.tree.map(lambda leaf: normal(1, *leaf.shape).astype(leaf.dtype) / 4, abstract)
    calls = []
    blockwise_attention = compute.blockwise_attention

    def counted(*arguments, **options):
        calls.append(1)
        return blockwise_attention(*arguments, **options)

    monkeypatch.setattr(compute, "blockwise_attention", counted)

    def run(parameters, implementation, trains=rate > 0):
        options = {"rngs": nnx.Rngs(dropout=3)} if trains else {}
        with forced(4, 3):
            return call(nnx.merge(graph, parameters), implementation=implementation, **options)

    run = jax.jit(run, static_argnums=(1, 2))
    reference = run(parameters, "reference")
    assert calls == []
    np.testing.assert_allclose(run(parameters, "blockwise"), reference, rtol=0, atol=1e-5)
    assert len(calls) == layers
    if rate:  # training is not evaluation
        assert np.abs(run(parameters, "reference", False) - reference).max() > 1e-3


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_cannot_be_had(name):
    make, call, _ = MODULES[name]
    with pytest.raises(ValueError, match="weights are asked for, which only the reference makes"):
        jax.eval_shape(lambda: call(make(0.0), implementation="blockwise", return_weights=True))


def test_each_name_is_an_implementation():
    assert [plan(implementation=name).implementation for name in IMPLEMENTATIONS[:2]] == [
        "reference",
        "blockwise",
    ]
