"""Every transformation of JAX on every implementation of attention, and on models.

Each gives the value of float64, or an error of one line that names the implementation to pass.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

import transformer_jax as tj
from tests.helpers.arrays import jax_normal, normal
from tests.helpers.implementations import attend
from tests.helpers.modules import drawn
from transformer_jax.attention.kernels import blockwise
from transformer_jax.attention.masks import causal, padding, sliding_window
from transformer_jax.cpu.library import is_built
from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import generate, generate_target, next_tokens
from transformer_jax.generation.sampling import Sampling
from transformer_jax.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig

# Symbolic sizes are no integers, which the checks of signatures in tests would refuse.
pytestmark = pytest.mark.usefixtures("as_users_run_it")

B, T, N, K, H = 2, 5, 6, 2, 4
WITH_SYMBOLS = ("reference", "blockwise")  # take symbolic sizes
IMPLEMENTATIONS = (*WITH_SYMBOLS, *(["cpu"] if is_built() else []))
IS_TOKEN = jax.device_put(np.arange(T) < np.array([[T], [3]]))
QUERY, KEY, VALUE = (normal(i, B, T, n, H).astype(np.float32) for i, n in enumerate((N, K, K)))
TANGENTS = tuple(normal(9 + i, *x.shape).astype(x.dtype) for i, x in enumerate((QUERY, KEY, VALUE)))
WEIGHTS = normal(5, B, T, N, H).astype(np.float32)


def exact(query, key, value, mask=None):
    """Attention in a few plain operations, in the dtype of its arguments."""
    key, value = (jnp.repeat(x, N // K, axis=2) for x in (key, value))
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) / H**0.5
    if mask is not None:
        logits = jnp.where(mask, logits, -1e30)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits), value)


def causal_attention(implementation, **blocks):
    if implementation == "exact":
        return partial(exact, mask=np.tri(T, dtype=bool))
    return partial(attend, implementation=implementation, mask=causal(), **blocks)


def loss(function):
    return lambda *arrays: (function(*arrays) * WEIGHTS.astype(arrays[0].dtype)).sum()


def over_layers(function):
    def run(query, key, value):
        def layer(x, _):
            return function(x, key, value), None

        return jax.lax.scan(layer, query, None, length=3)[0]

    return run


def exported(function, *arrays, sizes=("b", T)):
    """The result of the function exported for a symbolic batch, called for this one."""
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(
            export.symbolic_shape(", ".join(map(str, (*sizes, *x.shape[2:]))), scope=scope), x.dtype
        )
        for x in arrays
    ]
    return export.export(jax.jit(function))(*specs).call(*arrays)


def hessian_product(function, arrays, tangents):
    gradient = jax.grad(loss(function), (0, 1, 2))
    return jax.jvp(gradient, arrays, tangents)[1]


# Each takes (function, arrays, tangents).
TRANSFORMATIONS = {
    "vmap": lambda f, x, t: jax.vmap(f, (None, 0, 0))(
        x[0], *(jnp.stack([y, 2 * y]) for y in x[1:])
    ),
    "vmap of the gradient": lambda f, x, t: jax.vmap(jax.grad(loss(f), (0, 1)), (None, 0, None))(
        x[0], jnp.stack([x[1], 2 * x[1]]), x[2]
    ),
    "gradient of vmap": lambda f, x, t: jax.grad(
        lambda q, k: jax.vmap(loss(f), (None, 0, None))(q, k, x[2]).sum(), (0, 1)
    )(x[0], jnp.stack([x[1], 2 * x[1]])),
    "scan": lambda f, x, t: jax.jit(over_layers(f))(*x),
    "gradient of scan": lambda f, x, t: jax.jit(jax.grad(loss(over_layers(f)), (0, 1, 2)))(*x),
    "remat": lambda f, x, t: jax.jit(jax.grad(jax.checkpoint(loss(f)), (0, 1, 2)))(*x),
    "jvp": jax.jvp,
    "jvp of a compiled function": lambda f, x, t: jax.jvp(  # of one argument
        jax.jit(lambda v: f(x[0], x[1], v)), x[2:], t[2:]
    )[1],
    "jvp of vmap": lambda f, x, t: jax.jvp(
        lambda k: jax.vmap(f, (None, 0, None))(x[0], k, x[2]),
        (jnp.stack([x[1], 2 * x[1]]),), (jnp.stack([t[1], 3 * t[1]]),),
    )[1],
    "jvp of scan": lambda f, x, t: jax.jvp(jax.jit(over_layers(f)), x, t)[1],
    "linearize": lambda f, x, t: jax.linearize(f, *x)[1](*t),
    "vjp": lambda f, x, t: jax.vjp(f, *x)[1](WEIGHTS.astype(x[0].dtype)),
    "hessian by forward over reverse": lambda f, x, t: jax.jit(partial(hessian_product, f))(x, t),
    "gradient of a hessian product": lambda f, x, t: jax.grad(
        lambda *x: sum((y**2).sum() for y in hessian_product(f, x, t))
    )(*x),
    "second forward derivative": lambda f, x, t: jax.jvp(
        lambda *x: jax.jvp(loss(f), x, t)[1], x, t
    )[1],
    "hessian by reverse over reverse": lambda f, x, t: jax.vjp(jax.grad(loss(f)), *x)[1](x[0]),
    "reverse over forward": lambda f, x, t: jax.grad(lambda *x: jax.jvp(loss(f), x, t)[1])(*x),
}  # fmt: skip
LOOPS_ARE_TRANSFORMED = ("vmap", "hessian", "second")  # those over blocks, in names of these


def values(transformation, function, dtype):
    arrays, tangents = (
        tuple(x.astype(dtype) for x in xs) for xs in ((QUERY, KEY, VALUE), TANGENTS)
    )
    run = jax.jit(transformation, static_argnums=0)
    return jax.device_get(run(function, arrays, tangents))


@cache
def exact_values(name):
    with jax.enable_x64(True):
        transformation = TRANSFORMATIONS[name]
        return values(transformation, causal_attention("exact"), "float64")


def assert_near(found, right):
    found, right = (jax.tree.leaves(jax.device_get(x)) for x in (found, right))
    size = max(np.abs(x).max() for x in right)
    for ours, theirs in zip(found, right, strict=True):
        np.testing.assert_allclose(ours / size, theirs / size, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformation_gives_the_value_of_float64(name):
    transformation = TRANSFORMATIONS[name]
    queries = 2 if any(word in name for word in LOOPS_ARE_TRANSFORMED) else T
    for implementation in IMPLEMENTATIONS:
        function = causal_attention(implementation, blocks=(queries, 3), at_once=True)
        assert_near(values(transformation, function, "float32"), exact_values(name))


@pytest.mark.parametrize("name", ["hessian by reverse over reverse", "reverse over forward"])
def test_a_gradient_of_a_derivative_is_refused_for_many_logits(name, monkeypatch):
    monkeypatch.setattr(blockwise, "MOST_STORED", B * N * T * T - 1)
    for implementation in set(IMPLEMENTATIONS) - {"reference"}:
        function = causal_attention(implementation, blocks=(T, 3), at_once=True)
        with pytest.raises(ValueError, match='pass implementation="reference"') as error:
            values(TRANSFORMATIONS[name], function, "float32")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["jvp", "jvp of a compiled function", "hessian by forward over reverse"]
)
def test_forward_mode_through_cudnn_is_one_line(name):
    with pytest.raises(ValueError, match='pass implementation="blockwise"') as error:
        values(TRANSFORMATIONS[name], causal_attention("cudnn"), "float32")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["vjp", "gradient of vmap", "remat"])
def test_reverse_mode_through_cudnn_has_its_value(name):
    right = values(TRANSFORMATIONS[name], causal_attention("reference"), "float32")
    assert_near(values(TRANSFORMATIONS[name], causal_attention("cudnn"), "float32"), right)


@pytest.mark.parametrize("implementation", WITH_SYMBOLS)
def test_export_takes_a_symbolic_batch(implementation):
    def value_and_gradients(function, *arrays):
        gradient = jax.grad(lambda *x: (function(*x) ** 2).sum(), (0, 1, 2))
        penalty = jax.grad(lambda *x: sum((y**2).sum() for y in gradient(*x)))
        return function(*arrays), gradient(*arrays), penalty(*arrays)

    function = causal_attention(implementation, blocks=(T, 3), at_once=True)
    found = exported(partial(value_and_gradients, function), QUERY, KEY, VALUE)
    right = jax.jit(partial(value_and_gradients, causal_attention("exact")))
    assert_near(found, right(QUERY, KEY, VALUE))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_eval_shape_gives_the_shape(implementation):
    found = jax.eval_shape(causal_attention(implementation), QUERY, KEY, VALUE)
    assert (found.shape, found.dtype) == (QUERY.shape, QUERY.dtype)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_over_rules_gives_each_its_result(implementation):
    real = np.stack([IS_TOKEN, ~np.asarray(IS_TOKEN)])

    def value_and_tangent(implementation, is_token):
        run = partial(attend, implementation=implementation, mask=padding(is_token))
        return jax.jvp(lambda k: run(QUERY, k, VALUE), (KEY,), TANGENTS[1:2])

    found, tangent = jax.jit(jax.vmap(partial(value_and_tangent, implementation)))(real)
    right = jax.jit(partial(value_and_tangent, "reference"))
    for i in range(2):
        assert_near((found[i], tangent[i]), right(real[i]))


def test_alibi_has_a_second_derivative_in_blocks():
    # Whose products XLA fuses with the sums, so that a logit may differ from its own maximum.
    slopes = jnp.abs(jax_normal(4, N))

    @partial(jax.jit, static_argnums=0)
    def product(implementation):
        def function(*arrays):
            return attend(*arrays, bias=tj.alibi(slopes), implementation=implementation)

        return hessian_product(function, (QUERY, KEY, VALUE), TANGENTS)

    assert_near(product("blockwise"), product("reference"))


def test_short_products_have_every_derivative():
    for name in ("jvp", "hessian by forward over reverse", "vmap of the gradient"):
        right = exact_values(name)
        for implementation in ("reference", "blockwise"):  # in one block, which has every product
            function = causal_attention(implementation, blocks=(T, T), at_once=True)
            found = values(TRANSFORMATIONS[name], function, "bfloat16")
            for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
                size = np.abs(theirs).max()
                np.testing.assert_allclose(
                    np.asarray(ours, np.float32) / size, theirs / size, rtol=0, atol=3e-2
                )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": sliding_window(1, 1)},
        {"bias": tj.alibi(tj.alibi_slopes(N))},
        {"return_logsumexp": True},
        {"dropout_rate": 0.3, "dropout_rng": jax.random.key(0)},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_export_takes_a_symbolic_length(options):
    def run(*arrays):
        return tj.dot_product_attention(*arrays, **options)

    found = exported(run, QUERY, KEY, VALUE, sizes=("b", "t"))
    right = jax.jit(run)(QUERY, KEY, VALUE)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_blocks_of_a_symbolic_length_are_refused():
    run = partial(tj.dot_product_attention, implementation="blockwise")
    with pytest.raises(ValueError, match="a symbolic length cannot be cut into blocks"):
        exported(run, QUERY, KEY, VALUE, sizes=("b", "t"))


def test_long_texts_of_a_symbolic_batch_are_computed_in_blocks():
    shape = [jax.ShapeDtypeStruct((*export.symbolic_shape("b"), 2048, 2, 4), jnp.float32)] * 3
    assert tj.attention_plan(*shape, mask=causal()).implementation == "blockwise"
    function = jax.jit(partial(tj.dot_product_attention, mask=causal()))
    x = jax_normal(0, 2, 2048, 2, 4)
    found = export.export(function)(*shape).call(x, x, x)
    np.testing.assert_allclose(found, function(x, x, x), atol=1e-5)


STACK = StackConfig(
    num_layers=1, embed_dim=12, num_heads=2, hidden_dim=16, dropout_rate=0.0,
    attention_dropout_rate=0.0,
)  # fmt: skip
# For programs that take long to compile, in tests of neither norms nor biases.
LEAN = replace(STACK, biases=False, norm_kind="rms")
MODELS = {
    "language model": lambda rngs: LanguageModel(
        LanguageModelConfig(11, 16, STACK, embedding_dropout_rate=0.0), rngs=rngs
    ),
    "classifier": lambda rngs: TextClassifier(
        ClassifierConfig(11, 16, encoder=STACK, embedding_dropout_rate=0.0), rngs=rngs
    ),
    "sequence to sequence": lambda rngs: SequenceToSequence(
        SequenceToSequenceConfig(11, 16, encoder=STACK, decoder=STACK), rngs=rngs
    ),
}


def language_model(rngs, **settings):
    config = LanguageModelConfig(11, 16, LEAN, embedding_dropout_rate=0.0, **settings)
    return LanguageModel(config, rngs=rngs)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """The model as a function of parameters and tokens, with its parameters."""
    graph, parameters = nnx.split(drawn(MODELS[request.param]), nnx.Param)

    def run(parameters, tokens, is_token):
        pair = (tokens, is_token) * (2 if request.param == "sequence to sequence" else 1)
        return nnx.merge(graph, parameters)(*pair)

    return run, parameters


TOKENS = jax.device_put(np.arange(B * T, dtype=np.int32).reshape(B, T) % 11)


def test_models_have_second_derivatives_by_forward_over_reverse():
    graph, parameters = nnx.split(drawn(language_model), nnx.Param)

    def gradient(parameters, implementation):
        def loss(parameters):
            model = nnx.merge(graph, parameters)
            return jnp.square(model(TOKENS, IS_TOKEN, implementation=implementation)).sum()

        return jax.grad(loss)(parameters)

    @partial(jax.jit, static_argnums=1)
    def product(parameters, implementation):
        return jax.jvp(lambda p: gradient(p, implementation), (parameters,), (parameters,))

    assert_near(product(parameters, "blockwise"), product(parameters, "reference"))


def test_attention_of_one_example_can_be_exported_for_any_length():
    arrays = tuple(x[0, :, :K] for x in (QUERY, KEY, VALUE))

    def run(*arrays):
        return tj.dot_product_attention(*arrays, mask=causal() & padding(arrays[0][:, 0, 0] > 0))

    assert_near(exported(run, *arrays, sizes=("t", K)), jax.jit(run)(*arrays))


def test_models_can_be_exported_and_mapped(model):
    run, parameters = model
    right = jax.jit(run)(parameters, TOKENS, IS_TOKEN)
    for sizes in (("b", T), ("b", "t")):
        assert_near(exported(partial(run, parameters), TOKENS, IS_TOKEN, sizes=sizes), right)
    each = jax.jit(jax.vmap(lambda t, i: run(parameters, t[None], i[None])[0]))
    assert_near(each(TOKENS, IS_TOKEN), right)


def translator(rngs):
    config = SequenceToSequenceConfig(11, 16, encoder=LEAN, decoder=LEAN)
    return SequenceToSequence(config, rngs=rngs)


DRAWN = {"sampling": Sampling(top_k=5, repetition_penalty=1.2), "key": jax.random.key(1)}
# The model, and the function of it, of tokens and of is_token.
GENERATION = {
    "greedy": (language_model, partial(generate, max_tokens=3)),
    "no padding": (language_model, lambda m, t, i: generate(m, t, max_tokens=3)),
    "ring": (partial(language_model, window=2), partial(generate, max_tokens=3)),
    "drawn": (language_model, partial(generate, max_tokens=3, **DRAWN)),
    "search": (language_model, partial(generate, max_tokens=3, search=BeamSearch(2), stop=(2,))),
    "next tokens": (language_model, partial(next_tokens, count=3)),
    "target": (translator, partial(generate_target, begin=1, max_tokens=3)),
}


@pytest.mark.parametrize("name", GENERATION)
def test_generation_can_be_transformed(name):
    make, function = GENERATION[name]
    graph, parameters = nnx.split(drawn(make), nnx.Param)

    def run(parameters, tokens, is_token):
        return function(nnx.merge(graph, parameters), tokens, is_token)

    def of_one(text):
        return jax.tree.map(lambda x: x[0], run(parameters, *(x[None] for x in text)))

    right = run(parameters, TOKENS, IS_TOKEN)
    assert_near(exported(partial(run, parameters), TOKENS, IS_TOKEN, sizes=("b", "t")), right)
    if name != "drawn":  # a batch of other sizes is drawn otherwise
        assert_near(jax.jit(jax.vmap(lambda *text: of_one(text)))(TOKENS, IS_TOKEN), right)
    if name == "greedy":
        assert_near(jax.lax.map(of_one, (TOKENS, IS_TOKEN)), right)


@pytest.mark.parametrize("name", ["greedy", "search", "target"])
def test_probability_of_a_text_has_a_forward_derivative(name):
    make, function = GENERATION[name]
    graph, parameters = nnx.split(drawn(make), nnx.Param)

    def log_probability(size):
        scaled = jax.tree.map(lambda x: x * size, parameters)
        return function(nnx.merge(graph, scaled), TOKENS, IS_TOKEN).log_probability

    @jax.jit
    def run(size):
        return jax.jvp(log_probability, (size,), (jnp.ones_like(size),))

    (below, _), (_, found), (above, _) = map(run, (0.999, 1.0, 1.001))
    np.testing.assert_allclose(found, (above - below) / 0.002, rtol=1e-2)
