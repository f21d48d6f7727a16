"""Value and gradient beside PyTorch in float64, to twelve digits; where it differs by design.

Functions take PyTorch's own parameters, so that its gradients and ours are of the same arrays. A
test with `differs` in its name asserts both sides; docs/research/differences.md is the table of
them. jax.nn and flax.nnx are in test_parity.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import normal
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal, padding
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.feed_forward import (
    ACTIVATIONS,
    GATES,
    feed_forward,
    gated_feed_forward,
)
from transformer_jax.functional.normalization import (
    BatchStatistics,
    batch_norm,
    layer_norm,
    rms_norm,
    running_statistics,
)
from transformer_jax.functional.positions import lookup
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import Encoder, EncoderLayer
from transformer_jax.nn.layers import FeedForward, LayerNorm, MultiHeadAttention

torch = pytest.importorskip("torch")

B, T, S, N, H, F, V = 2, 7, 11, 6, 5, 13, 17
D = N * H  # nn.MultiheadAttention knows no other
EXACT = {"rtol": 1e-11, "atol": 1e-12}
IS_TOKEN = np.array([[True] * T, [False, True, True, True, True, False, False]])
IN_MEMORY = np.arange(S) < np.array([[S], [4]])


def cotangents(leaves):
    return [normal(99, *leaf.shape) for leaf in leaves]


def ours_of(function, *arrays):
    """Return the value of the JAX function, and the gradient of a weighted sum by every array, in
    float64.
    """

    def with_gradient(*arrays):
        y, pull = jax.vjp(lambda *x: jax.tree.leaves(function(*x)), *arrays)
        return [*y, *pull(cotangents(y))]

    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.jit(with_gradient)(*arrays)]


def theirs_of(function, *arrays):
    """The same of a PyTorch function."""
    arrays = [torch.tensor(array, requires_grad=True) for array in arrays]
    y = function(*arrays)
    y = [y] if isinstance(y, torch.Tensor) else list(y)
    weights = [torch.tensor(weight) for weight in cotangents(y)]
    return [x.detach().numpy() for x in (*y, *torch.autograd.grad(y, arrays, weights))]


def assert_same(ours, theirs, *arrays):
    for one, other in zip(ours_of(ours, *arrays), theirs_of(theirs, *arrays), strict=True):
        assert one.dtype == other.dtype == np.float64
        np.testing.assert_allclose(one, other, **EXACT)


def drawn(module):
    """A PyTorch module as a function of its parameters and the inputs; their names, and values none
    of them 0 or 1.
    """
    names = [name for name, _ in module.named_parameters()]

    def function(*arrays, **arguments):
        parameters = dict(zip(names, arrays[: len(names)], strict=True))
        return torch.func.functional_call(module, parameters, arrays[len(names) :], arguments)

    shapes = [parameter.shape for parameter in module.parameters()]
    return function, names, [normal(i, *shape) / 4 for i, shape in enumerate(shapes)]


# Attention: the same
# ------------------------------------------------------------------------------------------


def sdpa(query, key, value, **arguments):
    """Return PyTorch's output in our order of axes."""
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(*heads_first, **arguments)
    return attended.transpose(1, 2)


def qkv(K=N, T=T, S=S):
    return normal(1, B, T, N, H), normal(2, B, S, K, H), normal(3, B, S, K, H)


def seen():
    """A mask by head, with a query that sees nothing: PyTorch gives 0 there, as we do."""
    mask = normal(4, B, N, T, S) > 0.3
    mask[0, :, 2] = False
    return mask


# name: (key heads, queries, our arguments, PyTorch's)
CASES = {
    "plain": (N, T, {}, {}),
    "mask": (N, T, {"mask": seen()}, {"attn_mask": torch.tensor(seen())}),
    "causal": (N, S, {"mask": causal()}, {"is_causal": True}),
    "groups of 3": (2, T, {}, {"enable_gqa": True}),
    "groups of 2 and a scale": (3, T, {"scale": 0.3}, {"enable_gqa": True, "scale": 0.3}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_torch(name):
    K, queries, ours, theirs = CASES[name]
    assert_same(
        lambda q, k, v: dot_product_attention(q, k, v, **ours),
        lambda q, k, v: sdpa(q, k, v, **theirs),
        *qkv(K, queries),
    )


def test_a_bias_and_its_gradient_equal_a_float_mask_of_torch():
    assert_same(
        lambda q, k, v, bias: dot_product_attention(q, k, v, bias=bias),
        lambda q, k, v, bias: sdpa(q, k, v, attn_mask=bias),
        *qkv(),
        normal(5, B, N, T, S),
    )


def attention_of(in_weight, in_bias, out_weight, out_bias):
    """PyTorch's four parameters of attention by our names: one kernel for all three there, heads
    inside an axis.
    """
    kernels = jnp.moveaxis(in_weight.reshape(3, N, H, D), 3, 1)
    parameters = {
        f"{name}_{part}": array
        for part, stacked in (("kernel", kernels), ("bias", in_bias.reshape(3, N, H)))
        for name, array in zip(("query", "key", "value"), stacked, strict=True)
    }
    return parameters | {"out_kernel": out_weight.T.reshape(N, H, D), "out_bias": out_bias}


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
def test_multi_head_attention_equals_torch(need_weights):
    theirs, names, parameters = drawn(
        torch.nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    )
    assert names == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    mask = normal(4, T, S) > 0.3
    mask[:, 0] = True

    def ours(*arrays):
        *parameters, x, y = arrays
        both = padding(IN_MEMORY) & mask
        return multi_head_attention(
            x, y, mask=both, return_weights=need_weights, **attention_of(*parameters)
        )

    def peer(*arrays):
        output, weights = theirs(
            *arrays,
            arrays[-1],
            key_padding_mask=torch.tensor(~IN_MEMORY),
            attn_mask=torch.tensor(~mask),
            need_weights=need_weights,
            average_attn_weights=False,
        )
        return (output, weights) if need_weights else output

    assert_same(ours, peer, *parameters, normal(7, B, T, D), normal(8, B, S, D))


# Layers: the same
# ---------------------------------------------------------------------------------------------


def merged(make, **parts):
    """One of our modules with the parameters that are given as {attribute: {name: array}}."""
    structure, _ = nnx.split(nnx.eval_shape(make))
    return nnx.merge(structure, nnx.State(jax.tree.map(nnx.Param, parts)))


def norm_of(weight, bias):
    return {"scale": weight, "bias": bias}


def network_of(in_weight, in_bias, out_weight, out_bias):
    return {
        "in_kernel": in_weight.T,
        "in_bias": in_bias,
        "out_kernel": out_weight.T,
        "out_bias": out_bias,
    }


def encoder_config(norm, activation="gelu", layers=1):
    return StackConfig(layers, D, N, F, norm=norm, activation=activation)


def encoder_layer_of(x, attention, network, attention_norm, network_norm):
    """Our names and PyTorch's parameters, in PyTorch's order."""
    return {
        "attention": attention_of(*x[attention]),
        "feed_forward": network_of(*x[network]),
        "attention_norm": norm_of(*x[attention_norm]),
        "feed_forward_norm": norm_of(*x[network_norm]),
    }


ENCODER_PARTS = slice(0, 4), slice(4, 8), slice(8, 10), slice(10, 12)


def torch_encoder_layer(norm, activation="gelu"):
    return torch.nn.TransformerEncoderLayer(
        D, N, F, 0.0, activation, norm_first=norm == "pre", batch_first=True, dtype=torch.float64
    )


@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
def test_the_encoder_layer_equals_torch(norm, activation):
    theirs, names, parameters = drawn(torch_encoder_layer(norm, activation))
    assert len(names) == 12

    def ours(*arrays):
        layer = merged(
            lambda: EncoderLayer(encoder_config(norm, activation), rngs=nnx.Rngs(0)),
            **encoder_layer_of(arrays, *ENCODER_PARTS),
        )
        return layer(arrays[12], LayerContext(mask=padding(IS_TOKEN)))

    assert_same(
        ours,
        lambda *arrays: theirs(*arrays, src_key_padding_mask=torch.tensor(~IS_TOKEN)),
        *parameters,
        normal(9, B, T, D),
    )


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention to the memory, a network, each in a residual connection."""

    def __init__(self, norm):
        rngs = nnx.Rngs(0)
        self.self_attention = MultiHeadAttention(D, N, rngs=rngs)
        self.cross_attention = MultiHeadAttention(D, N, rngs=rngs)
        self.feed_forward = FeedForward(D, F, rngs=rngs)
        self.norm1, self.norm2, self.norm3 = LayerNorm(D), LayerNorm(D), LayerNorm(D)
        self.norm = norm

    def __call__(self, x, memory, in_memory):
        sublayers = (
            (self.norm1, lambda y: self.self_attention(y, y, LayerContext(mask=causal()))),
            (
                self.norm2,
                lambda y: self.cross_attention(y, memory, LayerContext(mask=padding(in_memory))),
            ),
            (self.norm3, self.feed_forward),
        )
        for norm, sublayer in sublayers:
            x = x + sublayer(norm(x)) if self.norm == "pre" else norm(x + sublayer(x))
        return x


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_decoder_layer_of_our_modules_equals_torch(norm):
    theirs, names, parameters = drawn(
        torch.nn.TransformerDecoderLayer(
            D, N, F, 0.0, "gelu", norm_first=norm == "pre", batch_first=True, dtype=torch.float64
        )
    )
    assert len(names) == 18

    def ours(*x):
        layer = merged(
            lambda: DecoderLayer(norm),
            self_attention=attention_of(*x[:4]),
            cross_attention=attention_of(*x[4:8]),
            feed_forward=network_of(*x[8:12]),
            norm1=norm_of(*x[12:14]),
            norm2=norm_of(*x[14:16]),
            norm3=norm_of(*x[16:18]),
        )
        return layer(*x[18:], jnp.array(IN_MEMORY))

    assert_same(
        ours,
        lambda *arrays: theirs(
            *arrays,
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            tgt_is_causal=True,
            memory_key_padding_mask=torch.tensor(~IN_MEMORY),
        ),
        *parameters,
        normal(9, B, T, D),
        normal(8, B, S, D),
    )


# Norms, activations, tables: the same
# ---------------------------------------------------------------------------


def test_layer_norm_equals_torch_with_its_default_epsilon():
    assert_same(
        layer_norm,
        lambda x, scale, bias: torch.nn.functional.layer_norm(x, (D,), scale, bias),
        3 * normal(1, B, T, D),
        normal(2, D),
        normal(3, D),
    )


def test_layer_norm_at_a_large_mean_equals_torch():
    """A mean at which one-pass variance has no digit left in float32."""
    x = (normal(1, B, T, D) + 5000).astype(np.float32)
    ours = jax.jit(lambda x: layer_norm(x, jnp.ones(D)))(x)
    theirs = torch.nn.functional.layer_norm(torch.tensor(x), (D,))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)


def test_rms_norm_equals_torch():
    assert_same(
        lambda x, scale: rms_norm(x, scale, epsilon=1e-3),
        lambda x, scale: torch.nn.functional.rms_norm(x, (D,), scale, eps=1e-3),
        3 * normal(1, B, T, D),
        normal(2, D),
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_equals_torch(training):
    x, scale, bias = 3 * normal(1, B * T, D), normal(2, D), normal(3, D)
    mean, variance = normal(4, D), np.exp(normal(5, D))
    running = [torch.tensor(mean), torch.tensor(variance)]

    def ours(x, scale, bias):
        statistics = None if training else BatchStatistics(jnp.array(mean), jnp.array(variance))
        return batch_norm(x, scale, bias, statistics=statistics)

    def theirs(x, scale, bias):
        return torch.nn.functional.batch_norm(x, *running, scale, bias, training)

    assert_same(ours, theirs, x, scale, bias)
    if training:
        with jax.enable_x64(True):
            after = jax.jit(running_statistics)(
                BatchStatistics(jnp.array(mean), jnp.array(variance)), jnp.array(x)
            )
        for one, other in zip(after, running, strict=True):
            np.testing.assert_allclose(one, other, **EXACT)


def test_activations_equal_torch():
    functional, x = torch.nn.functional, 3 * normal(1, B, T, D)
    theirs = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "swiglu": functional.silu,
        "geglu": functional.gelu,
        "geglu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    assert theirs.keys() == ACTIVATIONS.keys() | GATES.keys()

    def ours(x):
        same, none = jnp.eye(D), jnp.zeros((D, D))
        plain = [feed_forward(x, same, None, same, None, activation=name) for name in ACTIVATIONS]
        return plain + [
            gated_feed_forward(x, same, none, same, gate=name, in_bias=jnp.ones(D))
            for name in GATES
        ]

    assert_same(ours, lambda x: [theirs[name](x) for name in (*ACTIVATIONS, *GATES)], x)


def test_lookup_equals_torch_embedding():
    tokens = np.array([[3, 0, 3], [1, 2, 16]])
    assert_same(
        lambda table: lookup(table, jnp.array(tokens)),
        lambda table: torch.nn.functional.embedding(torch.tensor(tokens), table),
        normal(1, V, D),
    )


# Different
# --------------------------------------------------------------------------------------------------


def on_ours(function, *arrays):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*arrays))


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
def test_torch_differs_on_a_query_without_keys(need_weights):
    """NaN there with weights, the bias of the projection without; here the bias, and weights 0, in
    both.
    """
    theirs, _, parameters = drawn(
        torch.nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    )
    x = normal(7, B, T, D)
    is_token = np.array([[True] * T, [False] * T])
    output, _ = theirs(
        *map(torch.tensor, (*parameters, x, x, x)),
        key_padding_mask=torch.tensor(~is_token),
        need_weights=need_weights,
    )
    expected = np.full((T, D), np.nan) if need_weights else np.tile(parameters[3], (T, 1))
    np.testing.assert_array_equal(output[1], expected)
    ours, weights = on_ours(
        lambda x, *p: multi_head_attention(
            x, x, mask=padding(is_token), return_weights=True, **attention_of(*p)
        ),
        x,
        *parameters,
    )
    np.testing.assert_array_equal(ours[1], np.tile(parameters[3], (T, 1)))
    np.testing.assert_allclose(ours[0], output[0], **EXACT)
    assert not weights[1].any()


def test_torch_differs_on_nan_in_a_value_that_nobody_sees():
    """0 * NaN is NaN there, everywhere; nothing here."""
    query, key, value = qkv()
    value[:, 4] = np.nan
    mask = np.arange(S) != 4
    theirs = sdpa(*map(torch.tensor, (query, key, value)), attn_mask=torch.tensor(mask)[None])
    ours = on_ours(lambda *x: dot_product_attention(*x, mask=mask), query, key, value)
    assert theirs.isnan().all()
    clean = np.where(np.isnan(value), 0, value)
    np.testing.assert_array_equal(
        ours, on_ours(lambda *x: dot_product_attention(*x, mask=mask), query, key, clean)
    )


def test_torch_differs_on_causal_with_more_keys_than_queries():
    """Top-left there unless told otherwise; bottom-right here, as `causal_lower_right` there."""
    from torch.nn.attention.bias import causal_lower_right

    arrays = qkv()
    theirs = sdpa(*map(torch.tensor, arrays), is_causal=True)
    told = sdpa(*map(torch.tensor, arrays), attn_mask=causal_lower_right(T, S))
    ours = on_ours(lambda *x: dot_product_attention(*x, mask=causal()), *arrays)
    top_left = causal(query_positions=jnp.arange(T))
    first = on_ours(lambda *x: dot_product_attention(*x, mask=top_left), *arrays)
    np.testing.assert_allclose(first, theirs, **EXACT)
    np.testing.assert_allclose(ours, told, **EXACT)
    assert np.abs(ours - theirs.numpy()).max() > 0.1


def test_torch_differs_on_what_true_means():
    """True in nn.MultiheadAttention: do not attend. In scaled_dot_product_attention, as here:
    attend.
    """
    theirs, _, parameters = drawn(
        torch.nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    )
    x, mask = normal(7, B, T, D), np.arange(T) < 4
    arrays = [torch.tensor(array) for array in (*parameters, x, x, x)]
    padded, _ = theirs(*arrays, key_padding_mask=torch.tensor(mask).expand(B, T))
    masked, _ = theirs(*arrays, attn_mask=torch.tensor(mask).expand(T, T))

    def ours(mask):
        return on_ours(
            lambda x, *p: multi_head_attention(x, x, mask=mask, **attention_of(*p)), x, *parameters
        )

    np.testing.assert_allclose(padded, ours(~mask), **EXACT)
    np.testing.assert_allclose(masked, ours(~mask), **EXACT)
    assert np.abs(ours(mask) - padded.numpy()).max() > 0.01


@pytest.mark.usefixtures("as_users_run_it")
def test_torch_differs_on_masks_of_numbers():
    """Added to the logits there, so that 0 and 1 hide nothing, without a word; refused here."""
    arrays, mask = qkv(), (np.arange(S) < 4).astype(np.float64)
    theirs = sdpa(*map(torch.tensor, arrays), attn_mask=torch.tensor(mask).expand(T, S))
    added = on_ours(lambda *x: dot_product_attention(*x, bias=mask), *arrays)
    np.testing.assert_allclose(added, theirs, **EXACT)
    with pytest.raises(TypeError, match="mask must be boolean"):
        dot_product_attention(*arrays, mask=mask)


def test_torch_differs_on_the_weights_that_are_returned():
    """Their mean over the heads there unless told otherwise; those of every head here."""
    theirs, _, parameters = drawn(
        torch.nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    )
    x = normal(7, B, T, D)
    _, average = theirs(*map(torch.tensor, (*parameters, x, x, x)))
    _, weights = on_ours(
        lambda x, *p: multi_head_attention(x, x, return_weights=True, **attention_of(*p)),
        x,
        *parameters,
    )
    assert weights.shape == (B, N, T, T)
    np.testing.assert_allclose(weights.mean(axis=1), average, **EXACT)


def evaluated(is_token):
    """Return the output of an encoder of one layer, and a function that computes PyTorch's in
    evaluation.
    """
    module = torch.nn.TransformerEncoder(torch_encoder_layer("post"), 1).eval()
    parameters = [parameter.detach().numpy() for parameter in module.parameters()]
    x = normal(9, B, T, D)

    def ours(x, *arrays):
        encoder = merged(
            lambda: Encoder(encoder_config("post"), rngs=nnx.Rngs(0)),
            layers={0: encoder_layer_of(arrays, *ENCODER_PARTS)},
        )
        return encoder(x, LayerContext(mask=padding(is_token)))

    def theirs():
        with torch.no_grad():
            return module(torch.tensor(x), src_key_padding_mask=torch.tensor(~is_token)).numpy()

    return on_ours(ours, x, *parameters), theirs


nested = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


@nested
def test_torch_differs_on_the_rows_of_the_padding_in_evaluation():
    """0 there, in evaluation and after the text alone; what the equations give here. Real tokens
    are equal.
    """
    is_token = np.arange(T) < np.array([[T], [4]])
    ours, theirs = evaluated(is_token)
    theirs = theirs()
    np.testing.assert_allclose(ours[is_token], theirs[is_token], **EXACT)
    assert not theirs[~is_token].any()
    assert np.abs(ours[~is_token]).min() > 0


@nested
def test_torch_differs_on_a_batch_of_padding_alone():
    """An error in evaluation there; finite numbers here."""
    ours, theirs = evaluated(np.zeros((B, T), bool))
    with pytest.raises(RuntimeError, match="non-zero numel"):
        theirs()
    assert np.isfinite(ours).all()


def test_torch_differs_on_the_default_epsilon_of_rms_norm():
    """The machine epsilon of the dtype there; 1e-6 here, as in LLaMA."""
    x = 1e-4 * normal(1, B, T, D)
    theirs = torch.nn.functional.rms_norm(torch.tensor(x), (D,))
    machine = np.finfo(np.float64).eps
    np.testing.assert_allclose(
        on_ours(lambda x: rms_norm(x, jnp.ones(D), epsilon=float(machine)), x), theirs, **EXACT
    )
    assert np.abs(on_ours(lambda x: rms_norm(x, jnp.ones(D)), x) - theirs.numpy()).max() > 0.5


def test_torch_differs_on_what_momentum_means():
    """The share of the new there (0.1), the share of the old here (0.9), as in Flax."""
    x = normal(1, B * T, D)
    mean = torch.zeros(D, dtype=torch.float64)
    torch.nn.functional.batch_norm(torch.tensor(x), mean, mean + 1, training=True, momentum=0.3)
    running = BatchStatistics(np.zeros(D), np.ones(D))
    after = on_ours(lambda *given: running_statistics(*given, momentum=0.7), running, x)
    np.testing.assert_allclose(after.mean, mean, **EXACT)


def test_torch_differs_on_an_index_outside_the_table():
    """An error there; NaN here, since what is traced cannot raise."""
    table = normal(1, V, D)
    for index in (-1, V):
        with pytest.raises(IndexError, match="out of range"):
            torch.nn.functional.embedding(torch.tensor([index]), torch.tensor(table))
        assert np.isnan(on_ours(lambda table, i=index: lookup(table, jnp.array([i])), table)).all()
