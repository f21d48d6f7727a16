"""A user's mistake is an error that names the argument, what was expected and what came: every
public function has a row.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj

pytestmark = pytest.mark.usefixtures("as_users_run_it")

B, T, S, N, K, H, D, E, F, A, V = 2, 3, 5, 6, 2, 4, 7, 8, 9, 10, 11
KEY = jax.random.key(0)


def ones(*shape):
    return np.ones(shape, np.float32)


def integers(*shape):
    return np.ones(shape, np.int32)


def booleans(*shape):
    return np.ones(shape, bool)


QUERY, KEYS, TEXT, OTHER = ones(B, T, N, H), ones(B, S, K, H), ones(B, T, D), ones(B, S, E)
KERNELS = ones(D, N, H), ones(E, K, H), ones(E, K, H), ones(N, H, D)
ADDED = TEXT, OTHER, OTHER, ones(D, A), ones(E, A), ones(A)
IS_TOKEN = booleans(B, T)
ROW = ones(D)
STATISTICS = tj.BatchStatistics(ROW, ROW)


def attend(query=QUERY, key=KEYS, value=KEYS, **options):
    return tj.dot_product_attention(query, key, value, **options)


def heads(inputs_q=TEXT, inputs_kv=OTHER, kernels=KERNELS, **options):
    return tj.multi_head_attention(inputs_q, inputs_kv, *kernels, **options)


def network(x=TEXT, kernel=None, back=None, **options):
    kernel = ones(D, F) if kernel is None else kernel
    return tj.feed_forward(x, kernel, None, ones(F, D) if back is None else back, None, **options)


def gated(**options):
    return tj.gated_feed_forward(TEXT, ones(D, F), ones(D, F), ones(F, D), **options)


VALUE, TYPE = ValueError, TypeError
# The function, the call, the error, and what its message says.
MISTAKES = [
    # attention
    ("attention_plan", lambda: tj.attention_plan(QUERY[0], KEYS, KEYS), VALUE, r"key must have the axes \[S, K, H\] \(no batch axis, as query\) with H=4 of query; got the shape \(2, 5, 2, 4\)"),
    ("attention_plan", lambda: tj.attention_plan(QUERY, KEYS, KEYS, implementation="flash"), VALUE, "implementation must be one of reference, blockwise, cpu, triton, cudnn, or None .*; got 'flash'"),
    ("visited_blocks", lambda: tj.visited_blocks(None, 0), VALUE, "T and S must be 1 or more; got 0 and 0"),
    ("visited_blocks", lambda: tj.visited_blocks(booleans(1, 1, T, S), S), VALUE, "mask and bias must broadcast .* with T=5 and S=5; got 3 queries"),
    ("dot_product_attention", lambda: attend(implementation="blockwise", return_weights=True), VALUE, '"blockwise" cannot be had: weights are asked for.*pass None'),
    ("attention_weights", lambda: tj.attention_weights(QUERY[0, 0], KEYS), VALUE, r"query must have the axes \[B, T, N, H\] or \[T, N, H\]; got the shape \(6, 4\)"),
    ("attention_weights", lambda: tj.attention_weights(QUERY, KEYS[0]), VALUE, r"key must have the axes \[B, S, K, H\] with B=2 of query, .*; got the shape \(5, 2, 4\)"),
    ("attention_weights", lambda: tj.attention_weights(QUERY[0], KEYS[0], mask=booleans(B, 1, T, S)), VALUE, r"mask must broadcast to \[N, T, S\] = \(6, 3, 5\), as the queries have no batch axis; got the shape \(2, 1, 3, 5\)"),
    ("dot_product_attention", lambda: attend(QUERY[0], KEYS[0], KEYS), VALUE, r"value must have the axes \[S, K, O\] \(no batch axis, as query\)"),
    ("dot_product_attention", lambda: attend(QUERY[0], KEYS[0], KEYS[0], bias=tj.alibi(ones(N - 1))), VALUE, r"bias must broadcast to \[N, T, S\]"),
    ("attention_weights", lambda: tj.attention_weights(QUERY, KEYS[..., :3]), VALUE, r"key must have .* H=4 of query; got"),
    ("attention_weights", lambda: tj.attention_weights(QUERY, [1.0]), TYPE, r"key must be an array .*; got list"),
    ("attention_weights", lambda: tj.attention_weights(QUERY, KEYS, soft_cap=0.0), VALUE, "soft_cap must be above 0, or None for no cap; got 0.0"),
    ("attention_weights", lambda: tj.attention_weights(QUERY, KEYS, mask=booleans(T + 1, S)), VALUE, r"mask .* T=3 and S=5; got 4 queries"),
    ("dot_product_attention", lambda: attend(value=KEYS[:, 1:]), VALUE, r"value must have .* S=5 of key, .*; got the shape \(2, 4, 2, 4\)"),
    ("dot_product_attention", lambda: attend(query=QUERY[:1]), VALUE, r"key must have .* B=1 of query"),
    ("dot_product_attention", lambda: attend(QUERY[:, :, :5]), VALUE, "the key heads must divide the query heads; got 2 and 5"),
    ("dot_product_attention", lambda: attend(key=KEYS[:, :, :0], value=KEYS[:, :, :0]), VALUE, "a head and a feature at least"),
    ("dot_product_attention", lambda: attend(query=QUERY[..., :0], key=KEYS[..., :0]), VALUE, "a head and a feature at least"),
    ("dot_product_attention", lambda: attend(query=QUERY.astype(int)), TYPE, "query must be floating point; got int64; convert it with .astype"),
    ("dot_product_attention", lambda: attend(value=KEYS.tolist()), TYPE, "value must be an array .*; got list"),
    ("dot_product_attention", lambda: attend(mask=ones(T, S)), TYPE, "mask must be boolean .*; got float32. Pass an additive term as bias="),
    ("dot_product_attention", lambda: attend(mask=integers(T, S)), TYPE, "mask must be boolean .*; got int32"),
    ("dot_product_attention", lambda: attend(mask=tj.causal), TYPE, r"mask must be a rule, such as causal\(\), or a boolean array; got function"),
    ("dot_product_attention", lambda: attend(mask="causal"), TYPE, "mask must be a rule, .*; got str"),
    ("dot_product_attention", lambda: attend(mask=tj.alibi(ones(N))), TYPE, "mask must be a rule, .*; got _Alibi. Pass an additive term as bias="),
    ("dot_product_attention", lambda: attend(mask=booleans(B + 1, 1, T, S)), VALUE, r"mask must broadcast to \[B, N, T, S\] = \(2, 6, 3, 5\); got the shape \(3, 1, 3, 5\)"),
    ("dot_product_attention", lambda: attend(mask=booleans(N - 1, T, S)), VALUE, "mask must broadcast to"),
    ("dot_product_attention", lambda: attend(mask=booleans(T, S - 1)), VALUE, "mask and bias must broadcast .*; got 4 keys; pass padding.is_token. to hide padding"),
    ("dot_product_attention", lambda: attend(bias=ones(N + 1, T, S)), VALUE, "bias must broadcast to"),
    ("dot_product_attention", lambda: attend(bias=ones(S, T)), VALUE, "mask and bias must broadcast .*; got 5 queries"),
    ("dot_product_attention", lambda: attend(bias=ones(1, 1, 1, T, S)), VALUE, r"bias must broadcast to .*; got the shape \(1, 1, 1, 3, 5\)"),
    ("dot_product_attention", lambda: attend(bias=booleans(T, S)), TYPE, "bias must be floating point; got bool. Pass a mask as mask="),
    ("dot_product_attention", lambda: attend(bias=tj.causal()), TYPE, "bias must be .*; got _Causal, a mask: pass mask="),
    ("dot_product_attention", lambda: attend(soft_cap=-1.0), VALUE, "soft_cap must be above 0"),
    ("dot_product_attention", lambda: attend(soft_cap=float("nan")), VALUE, "soft_cap must be above 0"),
    ("dot_product_attention", lambda: attend(dropout_rate=1.0), VALUE, r"rate must be in \[0, 1\); got 1.0"),
    ("dot_product_attention", lambda: attend(dropout_rng=KEY), VALUE, "a key for dropout was given and the dropout rate is 0"),
    ("dot_product_attention", lambda: attend(dropout_rate=0.1, dropout_rng=0), TYPE, r"a key for dropout must be an array, such as jax.random.key\(0\); got int"),
    ("multi_head_attention", lambda: heads(inputs_kv=TEXT), VALUE, r"key_kernel must have .* E=7 of inputs_kv, .*; got the shape \(8, 2, 4\)"),
    ("multi_head_attention", lambda: heads(inputs_q=TEXT[0]), VALUE, r"inputs_kv must have the axes \[S, E\] \(no batch axis, as inputs_q\); got"),
    ("multi_head_attention", lambda: heads(inputs_q=TEXT.tolist()), TYPE, "inputs_q must be an array"),
    ("multi_head_attention", lambda: heads(kernels=(*KERNELS[:3], ones(N * H, D))), VALUE, "out_kernel must have the axes"),
    ("multi_head_attention", lambda: heads(kernels=(KERNELS[0][:, :5], *KERNELS[1:3], ones(5, H, D))), VALUE, "the key heads must divide the query heads; got 2 and 5"),
    ("multi_head_attention", lambda: heads(query_bias=ones(N * H)), VALUE, "query_bias must have the axes"),
    ("multi_head_attention", lambda: heads(mask=ones(T, S)), TYPE, "mask must be boolean"),
    ("multi_head_attention", lambda: heads(mask=booleans(B + 1, 1, T, S)), VALUE, "mask must broadcast to"),
    ("multi_head_attention", lambda: heads(mask=booleans(N - 1, T, S)), VALUE, "mask must broadcast to"),
    ("multi_head_attention", lambda: heads(bias=ones(S, T)), VALUE, "mask and bias must broadcast"),
    ("multi_head_attention", lambda: heads(soft_cap=0), VALUE, "soft_cap must be above 0"),
    ("multi_head_attention", lambda: heads(dropout_rate=-0.1), VALUE, r"rate must be in \[0, 1\)"),
    ("multi_head_attention", lambda: heads(dropout_rng=KEY), VALUE, "a key for dropout was given"),
    ("additive_attention", lambda: tj.additive_attention(TEXT[0], *ADDED[1:]), VALUE, r"key must have the axes \[S, E\] \(no batch axis, as query\)"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED[:2], OTHER[:, 1:], *ADDED[3:]), VALUE, "value must have .* S=5 of key"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED[:5], ones(A, 1)), VALUE, "score_kernel must have the axes"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED[:4], ones(E, A + 1), ones(A)), VALUE, "key_kernel must have .* A=10 of query_kernel"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED, score_bias=ones(1)), VALUE, "score_bias must have"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED, mask=booleans(N, T, S)), VALUE, r"mask must broadcast to \[B, N, T, S\] = \(2, 1, 3, 5\)"),
    ("additive_attention", lambda: tj.additive_attention(*ADDED, mask=ones(T, S)), TYPE, "mask must be boolean"),
    ("additive_attention", lambda: tj.additive_attention([1.0], *ADDED[1:]), TYPE, "query must be an array"),
    # masks
    ("causal", lambda: tj.causal(query_positions=[0, 1]), TYPE, "query_positions must be an array .*; got list"),
    ("causal", lambda: tj.causal(key_positions=ones(S)), TYPE, "key_positions must be integers; got float32"),
    ("causal", lambda: tj.causal(query_positions=integers(B, 1, T)), VALUE, "query_positions must have the axes"),
    ("causal", lambda: attend(mask=tj.causal(key_positions=integers(S + 1))), VALUE, "got 6 keys"),
    ("causal", lambda: tj.causal() & ones(T, S), TYPE, "mask must be boolean"),
    ("causal", lambda: tj.causal() | tj.alibi(ones(N)), TYPE, "mask must be a rule"),
    ("causal", lambda: tj.causal(5), TYPE, r"causal\(\): too many positional arguments; a rule has no length: causal\(\).show\(5\) draws it"),
    ("causal", lambda: tj.causal() and tj.padding(IS_TOKEN), TYPE, "a mask rule is neither true nor false; combine rules with & .*instead of and, or, not"),
    ("sliding_window", lambda: tj.sliding_window(4), TYPE, r"sliding_window\(\): missing a required argument: 'right'; sliding_window\(4, 0\) sees 4 tokens before"),
    ("sliding_window", lambda: not tj.sliding_window(4, 0), TYPE, "a mask rule is neither true nor false"),
    ("sliding_window", lambda: tj.sliding_window(-1, 0), VALUE, "left must be 0 or more, or None for no bound; got -1"),
    ("sliding_window", lambda: tj.sliding_window(0, -1), VALUE, "right must be 0 or more"),
    ("sliding_window", lambda: tj.sliding_window(0.5, 0), TYPE, "left must be a whole number, or None for no bound; got float"),
    ("sliding_window", lambda: tj.sliding_window(1, 0, query_positions=ones(T)), TYPE, "query_positions must be integers"),
    ("prefix", lambda: tj.prefix(2.0), TYPE, "lengths must be integers; got float32"),
    ("prefix", lambda: tj.prefix(integers(B, 1)), VALUE, r"lengths must be one number or have the shape \[B\]; got \(2, 1\)"),
    ("prefix", lambda: tj.prefix(2, key_positions=ones(S)), TYPE, "key_positions must be integers"),
    ("prefix", lambda: attend(mask=tj.prefix(integers(B + 1))), VALUE, "mask must broadcast to"),
    ("padding", lambda: tj.padding(integers(B, S)), TYPE, "is_token must be boolean .*; got int32"),
    ("padding", lambda: tj.padding("text"), TYPE, "is_token must be a boolean array; got str"),
    ("padding", lambda: tj.padding(booleans(B, 1, S)), VALUE, r"is_token must have the shape \[B, S\] or \[S\]; got \(2, 1, 5\)"),
    ("padding", lambda: attend(mask=tj.padding(booleans(B, T))), VALUE, "got 3 keys"),
    ("padding", lambda: attend(mask=tj.padding(booleans(B + 1, S))), VALUE, "mask must broadcast to"),
    ("segments", lambda: tj.segments(ones(B, T)), TYPE, "query_ids must be integers; got float32"),
    ("segments", lambda: tj.segments(integers()), VALUE, r"query_ids must have the axes \[B, T\] or \[T\]"),
    ("segments", lambda: tj.segments(integers(B, T), integers(B + 1, S)), VALUE, r"key_ids must have .* B=2 of query_ids; got"),
    ("segments", lambda: tj.segments(integers(B, T), ones(B, S)), TYPE, "key_ids must be integers"),
    ("segments", lambda: attend(mask=tj.segments(integers(B, T))), VALUE, "got 3 keys"),
    ("dense", lambda: tj.dense(ones(T, S)), TYPE, "mask must be boolean"),
    ("dense", lambda: tj.dense(booleans(1, 1, 1, T, S)), VALUE, "mask must broadcast to .*; got the shape"),
    # biases
    ("alibi", lambda: tj.alibi(ones(N, 1)), VALUE, "slopes must have the axes"),
    ("alibi", lambda: tj.alibi(0.5), TYPE, "slopes must be an array .*; got float"),
    ("alibi", lambda: tj.alibi(ones(N), query_positions=ones(T)), TYPE, "query_positions must be integers"),
    ("alibi", lambda: tj.alibi(ones(N)) + booleans(T, S), TYPE, "bias must be floating point; got bool"),
    ("alibi", lambda: tj.alibi(ones(N)) + tj.causal(), TYPE, "bias must be .*; got _Causal"),
    ("alibi", lambda: attend(bias=tj.alibi(ones(N - 1))), VALUE, "bias must broadcast to"),
    ("alibi_slopes", lambda: tj.alibi_slopes(0), VALUE, "num_heads must be 1 or more; got 0"),
    ("relative_bias", lambda: tj.relative_bias(ones(8)), VALUE, "table must have the axes"),
    ("relative_bias", lambda: tj.relative_bias(ones(6, N)), VALUE, "the number of buckets must be a multiple of 4; got 6"),
    ("relative_bias", lambda: tj.relative_bias(ones(8, N), max_distance=2), VALUE, "max_distance must be more than 2 for 8 buckets; got 2"),
    ("relative_bias", lambda: tj.relative_bias(ones(8, N), key_positions=[1]), TYPE, "key_positions must be an array"),
    ("relative_bias", lambda: attend(bias=tj.relative_bias(ones(8, N - 1))), VALUE, "bias must broadcast to"),
    ("relative_buckets", lambda: tj.relative_buckets(ones(T), 32), TYPE, "distance must be integers; got float32"),
    ("relative_buckets", lambda: tj.relative_buckets(integers(T), 0), VALUE, "the number of buckets must be a multiple of 4; got 0"),
    ("relative_buckets", lambda: tj.relative_buckets(integers(T), 3, bidirectional=False), VALUE, "must be a multiple of 2; got 3"),
    # dropout, feed-forward, linear
    ("dropout", lambda: tj.dropout(ROW, 1.0, KEY), VALUE, r"rate must be in \[0, 1\); got 1.0"),
    ("dropout", lambda: tj.dropout(ROW, -0.1, None), VALUE, r"rate must be in \[0, 1\); got -0.1"),
    ("dropout", lambda: tj.dropout(ROW, float("nan"), KEY), VALUE, r"rate must be in \[0, 1\); got nan"),
    ("dropout", lambda: tj.dropout(ROW, 0.0, KEY), VALUE, "a key for dropout was given and the dropout rate is 0"),
    ("dropout", lambda: tj.dropout(ROW, 0.5, 1), TYPE, "a key for dropout must be an array, .*; got int"),
    ("dropout", lambda: tj.dropout([1.0], 0.5, KEY), TYPE, "x must be an array .*; got list"),
    ("dropout", lambda: tj.dropout(integers(D), 0.5, KEY), TYPE, "x must be floating point; got int32"),
    ("feed_forward", lambda: network(activation="swish"), VALUE, "activation must be one of relu, gelu, gelu_tanh; got 'swish'"),
    ("feed_forward", lambda: network(kernel=ones(D + 1, F)), VALUE, r"in_kernel must have .* D=7 of x; got the shape \(8, 9\)"),
    ("feed_forward", lambda: network(back=ones(D, F)), VALUE, "out_kernel must have .* F=9 of in_kernel"),
    ("feed_forward", lambda: network(x=integers(B, T, D)), TYPE, "x must be floating point"),
    ("feed_forward", lambda: network(x=[1.0]), TYPE, "x must be an array"),
    ("feed_forward", lambda: network(dropout_rate=1.5), VALUE, r"rate must be in \[0, 1\)"),
    ("feed_forward", lambda: network(dropout_rng=KEY), VALUE, "a key for dropout was given"),
    ("gated_feed_forward", lambda: gated(gate="gelu"), VALUE, "gate must be one of swiglu, geglu, geglu_tanh; got 'gelu'"),
    ("gated_feed_forward", lambda: gated(gate_bias=ones(F + 1)), VALUE, "gate_bias must have .* F=9 of gate_kernel"),
    ("gated_feed_forward", lambda: tj.gated_feed_forward(TEXT, ones(D, F), ones(D, F + 1), ones(F, D)), VALUE, "in_kernel must have .* F=9 of gate_kernel"),
    ("gated_feed_forward", lambda: gated(dropout_rate=1.0), VALUE, r"rate must be in \[0, 1\)"),
    ("linear", lambda: tj.linear(TEXT, ones(E, F)), VALUE, r"the last 1 of the axes of x, \(2, 3, 7\), must equal the first of the kernel's, \(8, 9\)"),
    ("linear", lambda: tj.linear(QUERY, ones(N, D, H), axes=2), VALUE, "the last 2 of the axes of x"),
    ("linear", lambda: tj.linear(ones(D), ones(D), axes=2), VALUE, "the last 2 of the axes of x"),
    ("linear", lambda: tj.linear(TEXT, ones(D, F), axes=0), VALUE, "axes must be 1 or more; got 0"),
    ("linear", lambda: tj.linear(TEXT, ones(D, F), ones(D)), VALUE, r"bias must have the shape \(9,\) of the kernel's other axes; got \(7,\)"),
    ("linear", lambda: tj.linear([1.0], ones(1, F)), TYPE, "x must be an array .*; got list"),
    ("linear", lambda: tj.linear(integers(B, D), ones(D, F)), TYPE, "x must be floating point"),
    # normalization
    ("gelu", lambda: tj.gelu(integers(B, D)), TYPE, "x must be floating point"),
    ("layer_norm", lambda: tj.layer_norm(TEXT, ones(D + 1)), VALUE, r"scale must have .* D=7 of x; got the shape \(8,\)"),
    ("layer_norm", lambda: tj.layer_norm(TEXT, ROW, ones(1)), VALUE, "bias must have .* D=7 of x"),
    ("layer_norm", lambda: tj.layer_norm(TEXT, ROW, epsilon=-1e-5), VALUE, "epsilon must be 0 or more; got -1e-05"),
    ("layer_norm", lambda: tj.layer_norm(TEXT, ROW, epsilon=float("nan")), VALUE, "epsilon must be 0 or more; got nan"),
    ("layer_norm", lambda: tj.layer_norm(integers(B, D), ROW), TYPE, "x must be floating point"),
    ("layer_norm", lambda: tj.layer_norm(1.0, ROW), TYPE, "x must be an array .*; got float"),
    ("rms_norm", lambda: tj.rms_norm(TEXT, ones(1, D)), VALUE, "scale must have the axes"),
    ("rms_norm", lambda: tj.rms_norm(TEXT, ROW, epsilon=-1.0), VALUE, "epsilon must be 0 or more"),
    ("batch_norm", lambda: tj.batch_norm(TEXT, ones(1)), VALUE, "scale must have .* D=7 of x"),
    ("batch_norm", lambda: tj.batch_norm(TEXT, ROW, epsilon=-1.0), VALUE, "epsilon must be 0 or more"),
    ("batch_norm", lambda: tj.batch_norm(TEXT[:0], ROW), VALUE, "x must hold a row and a feature at least; got"),
    ("batch_norm", lambda: tj.batch_norm(TEXT, ROW, statistics=ROW), TYPE, "statistics must be a pair of a mean and a variance; got ndarray"),
    ("BatchStatistics", lambda: tj.batch_norm(TEXT, ROW, statistics=tj.BatchStatistics(ones(1), ROW)), VALUE, "mean must have .* D=7 of x"),
    ("BatchStatistics", lambda: tj.batch_norm(TEXT, ROW, statistics=tj.BatchStatistics(ROW, ones(T, D))), VALUE, "variance must have the axes"),
    ("batch_statistics", lambda: tj.batch_statistics(ones(0, D)), VALUE, "x must hold a row and a feature at least"),
    ("batch_statistics", lambda: tj.batch_statistics(integers(B, D)), TYPE, "x must be floating point"),
    ("running_statistics", lambda: tj.running_statistics(STATISTICS, TEXT, momentum=1.1), VALUE, r"momentum must be in \[0, 1\]; got 1.1"),
    ("running_statistics", lambda: tj.running_statistics(STATISTICS, TEXT, momentum=-0.1), VALUE, "momentum must be in"),
    ("running_statistics", lambda: tj.running_statistics(STATISTICS, ones(1, D)), VALUE, "a variance needs at least two rows; got"),
    ("running_statistics", lambda: tj.running_statistics(STATISTICS, ones(T, D + 1)), VALUE, "mean must have .* D=8 of x"),
    ("running_statistics", lambda: tj.running_statistics(None, TEXT), TYPE, "running must be a pair of a mean and a variance; got NoneType"),
    # positions
    ("sinusoidal_positions", lambda: tj.sinusoidal_positions(ones(T), 4), TYPE, "positions must be integers; got float32"),
    ("sinusoidal_positions", lambda: tj.sinusoidal_positions(integers(T), 0), VALUE, "features must be 1 or more; got 0"),
    ("sinusoidal_positions", lambda: tj.sinusoidal_positions(integers(T), 4, base=0.0), VALUE, "base must be above 0; got 0.0"),
    ("sinusoidal_positions", lambda: tj.sinusoidal_positions([0, 1], 4), TYPE, "positions must be an array"),
    ("lookup", lambda: tj.lookup(ones(V, D), ones(T)), TYPE, "positions must be integers"),
    ("lookup", lambda: tj.lookup(ones(V), integers(T)), VALUE, "table must have the axes"),
    ("lookup", lambda: tj.lookup(ones(V, D), 3), TYPE, "positions must be an array .*; got int"),
    ("count_positions", lambda: tj.count_positions(integers(B, T)), TYPE, "is_token must be boolean; got int32"),
    ("count_positions", lambda: tj.count_positions(booleans(B, 1, T)), VALUE, "is_token must have the axes"),
    ("count_in_segments", lambda: tj.count_in_segments(booleans(B, T)), TYPE, "segment_ids must be integers"),
    ("count_in_segments", lambda: tj.count_in_segments(integers(B, 1, T)), VALUE, "segment_ids must have the axes"),
    ("integer_positions", lambda: tj.integer_positions(ones(T)), TYPE, "positions must be integers"),
    ("normalised_positions", lambda: tj.normalised_positions(integers(T), 0), VALUE, "length must be 1 or more; got 0"),
    ("normalised_positions", lambda: tj.normalised_positions([1], 3), TYPE, "positions must be an array"),
    ("one_hot_positions", lambda: tj.one_hot_positions(integers(T), 0), VALUE, "length must be 1 or more"),
    ("one_hot_positions", lambda: tj.one_hot_positions(ones(T), 3), TYPE, "positions must be integers"),
    ("binary_positions", lambda: tj.binary_positions(integers(T), 0), VALUE, "bits must be 1 or more; got 0"),
    ("binary_positions", lambda: tj.binary_positions(ones(T), 3), TYPE, "positions must be integers"),
    # rotary
    ("rope", lambda: tj.rope(QUERY, np.arange(T), layout="paired"), VALUE, "layout must be one of half, interleaved; got 'paired'"),
    ("rope", lambda: tj.rope(QUERY, np.arange(S)), VALUE, r"positions must have .* T=3 of x; got the shape \(5,\)"),
    ("rope", lambda: tj.rope(QUERY, ones(T)), TYPE, "positions must be integers"),
    ("rope", lambda: tj.rope(QUERY, integers(B + 1, T)), VALUE, "positions must have"),
    ("rope", lambda: tj.rope(QUERY, [0, 1, 2]), TYPE, "positions must be an array .*; got list"),
    ("rope", lambda: tj.rope(QUERY[..., :3], np.arange(T)), VALUE, "features must be even and 2 or more: they turn in pairs; got 3"),
    ("rope", lambda: tj.rope(QUERY, np.arange(T), frequencies=ones(H)), VALUE, "4 frequencies turn 8 features; x has 4"),
    ("rope", lambda: tj.rope(ROW, np.arange(T)), VALUE, r"x must have the axes \[B, T, N, H\] or \[T, N, H\]"),
    ("rope", lambda: tj.rope(QUERY[0], integers(B, T)), VALUE, r"positions must have the axes \[T\] with T=3 of x"),
    ("Rotary", lambda: tj.Rotary(np.arange(S)[None], ones(2)).turn(QUERY), VALUE, "positions must have"),
    ("rope_frequencies", lambda: tj.rope_frequencies(5), VALUE, "features must be even"),
    ("rope_frequencies", lambda: tj.rope_frequencies(0), VALUE, "features must be even and 2 or more"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, base=1.0), VALUE, "base must be above 1; got 1.0"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="dynamic", factor=2.0), VALUE, "scaling must be one of linear, ntk, yarn, llama3, or None; got 'dynamic'"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, factor=2.0), VALUE, "factor=2.0 needs a scaling, one of linear, ntk, yarn, llama3"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="linear", factor=0.5), VALUE, "factor must be 1 or more; got 0.5"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="yarn", factor=2.0), VALUE, 'scaling="yarn" needs original_length'),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="llama3", factor=2.0), VALUE, 'scaling="llama3" needs original_length'),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="llama3", factor=2.0, original_length=8, low=4.0), VALUE, "low and high must be 0 < low < high; got 4.0 and 4.0"),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="yarn", factor=2.0, original_length=-1), VALUE, 'scaling="yarn" needs original_length'),
    ("rope_frequencies", lambda: tj.rope_frequencies(4, scaling="yarn", factor=2.0, original_length=8, beta_slow=32.0), VALUE, "beta_slow and beta_fast must be 0 < beta_slow < beta_fast; got 32.0 and 32.0"),
    ("yarn_temperature", lambda: tj.yarn_temperature(0.5), VALUE, "factor must be 1 or more; got 0.5"),
    # pooling
    ("cls_pool", lambda: tj.cls_pool(TEXT, integers(B, T)), TYPE, "is_token must be boolean; got int32 .turn 0/1 into a mask"),
    ("cls_pool", lambda: tj.cls_pool(TEXT, booleans(B, S)), VALUE, r"is_token must have .* T=3 of x; got the shape \(2, 5\)"),
    ("last_pool", lambda: tj.last_pool(TEXT[0], IS_TOKEN), VALUE, r"is_token must have the axes \[T\] \(no batch axis, as x\)"),
    ("mean_pool", lambda: tj.mean_pool(TEXT, IS_TOKEN.tolist()), TYPE, "is_token must be an array .*; got list"),
    ("max_pool", lambda: tj.max_pool(integers(B, T, D), IS_TOKEN), TYPE, "x must be floating point"),
    ("layer_weighted_pool", lambda: tj.layer_weighted_pool(TEXT, IS_TOKEN, ones(B)), VALUE, "layers must have the axes"),
    ("layer_weighted_pool", lambda: tj.layer_weighted_pool(TEXT[None], IS_TOKEN, ones(2)), VALUE, "logits must have .* L=1 of layers"),
    ("layer_weighted_pool", lambda: tj.layer_weighted_pool([TEXT], IS_TOKEN, ones(1)), TYPE, "layers must be an array .*; got list"),
    # regions
    ("region_embedding", lambda: tj.region_embedding(ones(V, D), integers(B, T), IS_TOKEN), VALUE, "table must have the axes"),
    ("region_embedding", lambda: tj.region_embedding(ones(3, V, D), ones(B, T), IS_TOKEN), TYPE, "tokens must be integers"),
    ("region_embedding", lambda: tj.region_embedding(ones(3, V, D), integers(B, T), booleans(B, S)), VALUE, "is_token must have .* T=3 of tokens"),
    ("region_embedding", lambda: tj.region_embedding(ones(0, V, D), integers(B, T), IS_TOKEN), VALUE, r"table must hold a place at least; got the shape \(0, 11, 7\)"),
    ("region_embedding", lambda: tj.region_embedding(ones(3, V, D), integers(B, T), IS_TOKEN, ones(B, S)), VALUE, "presence must have .* T=3 of tokens"),
    ("region_embedding", lambda: tj.region_embedding(ones(3, V, D), integers(B, T), IS_TOKEN, IS_TOKEN), TYPE, "presence must be floating point"),
    # n-grams
    ("ngram_rows", lambda: tj.ngram_rows(integers(B, T), IS_TOKEN, 0, 4), VALUE, "longest must be 1 or more; got 0"),
    ("ngram_rows", lambda: tj.ngram_rows(integers(B, T), IS_TOKEN, 2, 32), VALUE, "bits must be from 1 to 31; got 32"),
    ("ngram_rows", lambda: tj.ngram_rows(ones(B, T), IS_TOKEN, 2, 4), TYPE, "tokens must be integers"),
    ("ngram_rows", lambda: tj.ngram_rows(integers(B, T), booleans(B, S), 2, 4), VALUE, "is_token must have .* T=3 of tokens"),
    ("ngram_evidence", lambda: tj.ngram_evidence(ones(8, 1), ones(4, 1), integers(B, T, 2), ones(B, T, 2)), VALUE, "square must have .* R=8 of weight"),
    ("ngram_evidence", lambda: tj.ngram_evidence(ones(8, 1), ones(8, 1), ones(B, T, 2), ones(B, T, 2)), TYPE, "rows must be integers"),
    ("ngram_evidence", lambda: tj.ngram_evidence(ones(8, 1), ones(8, 1), integers(B, T, 2), ones(B, T, 2), ones(B, S)), VALUE, "presence must have .* T=3 of rows"),
    ("ngram_evidence", lambda: tj.ngram_evidence(ones(8, 1), ones(8, 1), integers(B, T, 2), booleans(B, T, 2)), TYPE, "share must be floating point"),
    ("ngram_shares", lambda: tj.ngram_shares(integers(B, T, 2), ones(B, T, 2)), TYPE, "is_ngram must be boolean"),
    # regions, moved and pooled
    ("to_front", lambda: tj.to_front(integers(B, T), IS_TOKEN, ones(T)), VALUE, "presence must have the axes"),
    ("to_front", lambda: tj.to_front(integers(B, T), integers(B, T)), TYPE, "is_token must be boolean"),
    ("to_front", lambda: tj.to_front(integers(), booleans(T)), VALUE, "tokens must have the axes"),
    ("to_front", lambda: tj.to_front([[1]], IS_TOKEN), TYPE, "tokens must be an array"),
    ("max_patches", lambda: tj.max_patches(TEXT, IS_TOKEN, 0), VALUE, "width must be 1 or more; got 0"),
    ("max_patches", lambda: tj.max_patches(TEXT[0], IS_TOKEN, 2), VALUE, "is_token must have the axes"),
    ("max_patches", lambda: tj.max_patches(TEXT, integers(B, T), 1), TYPE, "is_token must be boolean"),
    ("load", lambda: tj.load("runs/NAME", "classifier?"), VALUE, "kind must be one of"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [pytest.param(*row, id=f"{name} {i}") for i, (name, *row) in enumerate(MISTAKES)],
)
def test_a_mistake_is_named(call, error, message):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert type(raised.value) is error
    text = str(raised.value)
    assert re.search(message, text), text
    assert len(text) < 300 and "\n" not in text


@pytest.mark.parametrize("name", tj.__all__)
def test_every_public_function_has_a_mistake(name):
    assert name in {row[0] for row in MISTAKES}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tj.dot_product_attention(x, x, x, mask=jnp.ones((B + 1, 1, 1, S), bool)),
        lambda x: tj.layer_norm(x, jnp.ones(H + 1)),
        lambda x: tj.dot_product_attention(x, x, x, soft_cap=-1.0),
    ],
)
def test_a_mistake_is_named_inside_jit_too(call):
    with pytest.raises(ValueError, match=r"mask must broadcast|scale must have|soft_cap must be"):
        jax.jit(call)(jnp.ones((B, S, N, H)))
