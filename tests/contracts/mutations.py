"""Faults that a transformer can hold without crashing, and for each the test that must catch it.

    python -m tests.contracts.mutations                   # all; exit code 1 if one survives
    python -m tests.contracts.mutations --only top_left   # those with this in their name

Each is made in a copy of the project in a temporary folder, never in the tree. Its test must pass
without the mutation, and with it fail on an assertion of its own instead of crashing.
"""

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.helpers.mutation import Mutation, caught, failure_without_mutation

MUTATIONS = [
    # The product and the softmax
    Mutation(
        "the_scale_is_dropped", "validate",
        "scale=inputs.query.shape[3] ** -0.5 if inputs.scale is None else inputs.scale,",
        "scale=1.0 if inputs.scale is None else inputs.scale,",
        "test_scale_is_one_over_the_root_of_the_features",
    ),
    Mutation(
        "the_mask_falls_after_the_softmax", "softmax_over_visible",
        "if mask is None else masked_softmax(logits, mask)",
        "if mask is None else jnp.where(mask, jax.nn.softmax(logits, axis=-1), 0)",
        "test_weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "heads_of_a_group_are_interleaved", "_group",
        "return x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])",
        "return x.reshape(x.shape[0], x.shape[1] // K, K, *x.shape[2:]).swapaxes(1, 2)",
        "test_dot_product.py::test_value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_bias_is_scaled", "_logits",
        "return logits if bias is None else logits + bias",
        "return logits if bias is None else logits + inputs.scale * bias",
        "test_dot_product.py::test_value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_soft_cap_falls_after_the_bias", "_logits",
        "    if soft_cap is not None:\n        logits = soft_cap * jnp.tanh(logits / soft_cap)\n"
        "    bias = rendered(inputs.bias, *logits.shape[2:])\n"
        "    return logits if bias is None else logits + bias",
        "    bias = rendered(inputs.bias, *logits.shape[2:])\n"
        "    logits = logits if bias is None else logits + bias\n"
        "    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)",
        "test_a_soft_cap_stands_before_the_bias",
    ),
    Mutation(
        "logits_are_bfloat16", "_logits",
        "key.swapaxes(1, 2), inputs.accumulated)",
        "key.swapaxes(1, 2), inputs.query.dtype)",
        "test_logits_of_bfloat16_are_float32",
    ),
    Mutation(
        "the_logsumexp_forgets_the_mask", "reference_attention",
        "masked_logsumexp(logits, True if visible is None else visible)",
        "masked_logsumexp(logits, True)",
        "test_logsumexp_is_the_residual_of_jax_nn",
    ),
    Mutation(
        "the_softmax_overflows", "masked_softmax",
        "jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))",
        "jnp.exp(logits)",
        "test_dot_product.py::test_huge_logits_do_not_overflow[masked]",
    ),
    Mutation(
        "the_softmax_is_not_normalised", "masked_softmax",
        "return exponentials / jnp.where(total == 0, 1, total)",
        "return exponentials",
        "test_weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "a_query_without_keys_divides_by_zero", "masked_softmax",
        "return exponentials / jnp.where(total == 0, 1, total)",
        "return exponentials / total",
        "test_weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "the_softmax_forgets_half_of_its_slope", "_masked_softmax_jvp",
        "return weights, change - weights * change.sum(axis=-1, keepdims=True)",
        "return weights, change",
        "test_dot_product.py::test_value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_logsumexp_overflows", "masked_logsumexp",
        "highest = jnp.where(highest == -jnp.inf, 0, highest)",
        "highest = jnp.zeros_like(highest)",
        "test_softmax_and_logsumexp_equal_jax_nn_where_something_is_seen",
    ),
    # What nobody sees
    Mutation(
        "an_unseen_value_stays", "AttentionInputs.zero_masked_rows",
        "value=None if value is None else rows.zero_keys(value)",
        "value=None if value is None else value",
        "test_jax_nn_differs_on_nan_in_a_value_that_nobody_sees",
    ),
    Mutation(
        "a_blind_query_stays", "AttentionInputs.zero_masked_rows",
        "query=rows.zero_queries(inputs.query)",
        "query=inputs.query",
        "test_what_nobody_sees_reaches_no_output_and_no_gradient[dot_product_attention-nan]",
    ),
    Mutation(
        "an_unseen_key_stays", "AttentionInputs.zero_masked_rows",
        "key=rows.zero_keys(inputs.key)",
        "key=inputs.key",
        "test_what_nobody_sees_reaches_no_output_and_no_gradient[dot_product_attention-nan]",
    ),
    Mutation(
        "a_blind_input_stays", "multi_head_attention",
        "inputs_q = rows.zero_inputs_q(with_batch(inputs_q, 3))",
        "inputs_q = with_batch(inputs_q, 3)",
        "test_what_nobody_sees_reaches_no_output_and_no_gradient[multi_head_attention-nan]",
    ),
    Mutation(
        "a_key_is_seen_only_by_a_whole_group", "MaskedRows.zero_keys",
        "visible.reshape(B, K, N // K, S).any(axis=2)",
        "visible.reshape(B, K, N // K, S).all(axis=2)",
        "test_dot_product.py::test_value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "a_lone_row_stays", "EncoderLayer.__call__",
        "x = context.masked_rows.zero_isolated_rows(x)",
        "x = x + 0",
        "test_rows_apart_from_all_others_reach_no_gradient[Encoder post]",
    ),
    # Writing
    Mutation(
        "the_ring_begins_at_its_first_slot", "_in_ring",
        "return last - (last - slot) % C",
        "return last - last % C + slot",
        "test_chunks_through_the_cache_are_the_whole_text[window-chunks]",
    ),
    Mutation(
        "padding_takes_a_slot", "Cache.step",
        "count = jnp.cumsum(is_token, axis=1, dtype=jnp.int32)",
        "count = jnp.cumsum(is_token | True, axis=1, dtype=jnp.int32)",
        "test_padding_takes_no_slot[learned-left]",
    ),
    Mutation(
        "an_overflow_is_an_answer", "Cache.overflows",
        "(step.lengths > self.capacity) & (self.window is None)",
        "(step.lengths > self.capacity) & False",
        "test_a_full_cache_answers_with_nan",
    ),
    Mutation(
        "cached_keys_are_not_turned", "MultiHeadAttention.keys_and_values",
        "return key if rotary is None else rotary.turn(key), value",
        "return key, value",
        "test_chunks_through_the_cache_are_the_whole_text[llama-chunks]",
    ),
    Mutation(
        "a_cache_counts_alibi_from_its_end", "LanguageModel.__call__",
        "scaling=config.rope_scaling, **at\n",
        "scaling=config.rope_scaling\n",
        "test_chunks_through_the_cache_are_the_whole_text[window, alibi-one by one]",
    ),
    Mutation(
        "the_window_is_left_out_of_a_cache", "LanguageModel._mask",
        "mask = causal(**at) if window is None else",
        "mask = causal(**at) if window is None or at else",
        "test_padding_takes_no_slot[window, alibi-left]",
    ),
    Mutation(
        "the_logits_are_of_the_last_place", "last_token",
        "return x[:, -1] if is_token is None or x.shape[1] == 1 else last_pool(x, is_token)",
        "return x[:, -1]",
        "test_next_tokens_are_the_softmax",
    ),
    Mutation(
        "cross_attention_sees_padding", "LayerContext.of_memory",
        "mask=self.memory_mask,",
        "mask=None,",
        "test_padding_of_either_text_changes_nothing",
    ),
    Mutation(
        "a_padded_memory_is_read", "Decoder.memory_of",
        "memory = jnp.where(is_memory[..., None], memory, 0)",
        "memory = memory + 0",
        "test_nan_in_a_padded_memory_reaches_nothing",
    ),
    Mutation(
        "a_written_token_is_not_penalised", "_draw",
        "is_used = is_used.at[rows, token].max(is_new)",
        "is_used = is_used | False",
        "test_the_penalty_knows_prompt_and_text",
    ),
    Mutation(
        "top_p_stops_before_p_is_reached", "_nucleus",
        "before * rest >= after * p",
        "(before + weights) * rest > (after - weights) * p",
        "test_top_p_keeps_the_fewest_that_reach_p",
    ),
    Mutation(
        "the_penalty_helps_unlikely_tokens", "_penalised",
        "jnp.where(logits > 0, logits / penalty, logits * penalty)",
        "logits / penalty",
        "test_the_penalty_makes_used_tokens_less_likely_whatever_their_sign",
    ),
    Mutation(
        "short_texts_win_a_beam_search", "_complete",
        "[state.scores, _scores(log_probability, length, alpha)], axis=1",
        "[state.scores, log_probability], axis=1",
        "test_a_wide_beam_finds_the_best_of_all_texts[2.0]",
    ),
    Mutation(
        "a_beam_keeps_the_cache_of_another", "beam_search.step",
        "jnp.ones((B * W, 1), bool), cache.rows(beam))",
        "jnp.ones((B * W, 1), bool), cache)",
        "test_beams_of_a_language_model_go_on_from_one_another",
    ),
    Mutation(
        "embeddings_are_not_scaled", "Sinusoidal.embed",
        "return x * math.sqrt(D) + sinusoidal_positions",
        "return x + sinusoidal_positions",
        "test_a_token_embedding_is_its_equation_and_its_table_is_the_head[sinusoidal]",
    ),
    Mutation(
        "packed_texts_count_on", "count_in_segments",
        "jnp.where(first, index, 0)",
        "jnp.where(first, 0, 0)",
        "test_the_example_gives_what_it_shows[positions.count_in_segments]",
    ),
    # Rules
    Mutation(
        "causal_is_top_left", "positions_of_queries",
        "offset = block.S - block.T + block.query_start",
        "offset = block.query_start",
        "test_causal_with_more_keys_lets_the_last_query_see_the_last_key",
    ),
    Mutation(
        "a_token_does_not_see_itself", "_Causal.block",
        "return distances(self, block) <= 0",
        "return distances(self, block) < 0",
        "test_a_rule_is_its_question_asked_of_every_pair[causal]",
    ),
    Mutation(
        "the_window_is_one_too_short", "_Window.block",
        "inside &= distance >= -self.left",
        "inside &= distance > -self.left",
        "test_a_rule_is_its_question_asked_of_every_pair[window]",
    ),
    Mutation(
        "the_prefix_is_one_too_long", "_Prefix.block",
        "return positions_of_keys(self.key_positions, block) < lengths",
        "return positions_of_keys(self.key_positions, block) <= lengths",
        "test_a_rule_is_its_question_asked_of_every_pair[prefix]",
    ),
    Mutation(
        "segments_see_the_others", "_Segments.block",
        "return per_query(self.query_ids, block) == per_key(self.ids_of_keys, block)",
        "return per_query(self.query_ids, block) != per_key(self.ids_of_keys, block)",
        "test_a_rule_is_its_question_asked_of_every_pair[segments]",
    ),
    Mutation(
        "and_is_or", "_Both.block",
        "return self.first.render(block) & self.second.render(block)",
        "return self.first.render(block) | self.second.render(block)",
        "test_a_rule_is_its_question_asked_of_every_pair[and]",
    ),
    Mutation(
        "every_block_is_the_first", "positions_of_keys",
        "return (block.key_start + jnp.arange(block.keys))[None, None, None, :]",
        "return jnp.arange(block.keys)[None, None, None, :]",
        "test_blocks_at_traced_starts_tile_to_the_whole[causal]",
    ),
    # Blocks
    Mutation(
        "what_came_before_is_not_shrunk", "_attend_in_blocks.block_of_keys",
        "shrink = jnp.exp(highest - finite)",
        "shrink = jnp.where(highest == -jnp.inf, 0.0, 1.0)",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[none, alibi]",
    ),
    Mutation(
        "the_gradient_through_the_sum_is_lost", "_gradient_of_block",
        "d_logits = weights * (tiles.dropout(d_weights, tile) - rows.delta[..., None])",
        "d_logits = weights * tiles.dropout(d_weights, tile)",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[none, alibi]",
    ),
    Mutation(
        "the_logsumexp_has_no_gradient", "compute_delta",
        "delta -= d_logsumexp",
        "delta -= 0",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[causal, none]",
    ),
    Mutation(
        "the_cap_has_a_slope_of_one", "_gradient_of_block",
        "d_logits *= 1 - (capped / soft_cap) ** 2",
        "d_logits *= 1",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference"
        "[window, relative at positions]",
    ),
    Mutation(
        "hidden_keys_are_felt", "_attend_in_blocks.block_of_keys",
        "logits = jnp.where(mask, logits, -jnp.inf)",
        "logits = jnp.where(mask, logits, -1.0)",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[causal, none]",
    ),
    Mutation(
        "who_sees_nothing_gets_the_mean", "_attend_in_blocks.block_of_keys",
        "logits = jnp.where(mask, logits, -jnp.inf)",
        "logits = jnp.where(mask, logits, -1e37)",
        "test_mask_contract.py::test_query_without_keys_gets_zeros"
        "[dot_product_attention blockwise]",
    ),
    Mutation(
        "the_first_blocks_are_visited_whatever_is_seen", "Tiles.over_keys.tile",
        "new_key = self.visits.columns[*at, j] * self.grid.keys",
        "new_key = j * self.grid.keys",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference"
        "[window, relative at positions]",
    ),
    Mutation(
        "the_last_queries_count_twice", "Tiles.zero_repeated",
        "            return jnp.where(self._new_rows(rows, tile), rows, 0)\n",
        "            return rows\n",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[none, alibi]",
    ),
    Mutation(
        "the_last_keys_count_twice", "Tiles._mask",
        "return mask & new if self.grid.S % self.grid.keys else mask",
        "return mask",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[causal, none]",
    ),
    Mutation(
        "dropout_is_counted_from_the_block", "Tiles.dropout",
        "starts = block.example_start, block.head_start, block.query_start, block.key_start",
        "starts = block.example_start, block.head_start, block.query_start, 0",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference"
        "[window at positions, array 1NTS]",
    ),
    Mutation(
        "a_block_of_the_bias_forgets_the_others", "_Dense.add_gradient",
        "new += _sum_to(sizes, cotangent).astype(new.dtype)",
        "new = _sum_to(sizes, cotangent).astype(new.dtype)",
        "test_blockwise.py::test_value_and_gradient_equal_the_reference[padding, array B11S]",
    ),
    Mutation(
        "hidden_blocks_are_visited", "visits",
        "return Visits(columns, every.sum(axis=2), some.sum(axis=2))",
        "return Visits(columns, every.sum(axis=2), 0 * some.sum(axis=2) + grid.columns)",
        "test_the_loops_run_as_often_as_blocks_are_seen_and_no_more[causal-False]",
    ),
    Mutation(
        "a_block_is_hidden_where_its_first_query_sees_nothing", "_Causal.coverage",
        "return Coverage(some=first_key <= last_query, every=last_key <= first_query)",
        "return Coverage(some=first_key <= first_query, every=last_key <= first_query)",
        "test_at_the_default_positions_it_is_exact[size0-causal]",
    ),
    Mutation(
        "what_one_mask_shows_whole_counts_as_shown_by_both", "_Both.coverage",
        "return Coverage(first.some & second.some, first.every & second.every)",
        "return Coverage(first.some & second.some, first.every | second.every)",
        "test_nothing_visible_is_skipped_and_nothing_hidden_is_taken_for_seen",
    ),
    Mutation(
        "a_complement_shows_blocks_that_its_rule_may_show_whole", "_Complement.coverage",
        "return Coverage(some=~every, every=~some)",
        "return Coverage(some=~some, every=~every)",
        "test_nothing_visible_is_skipped_and_nothing_hidden_is_taken_for_seen",
    ),
    Mutation(
        "one_example_comes_back_as_a_batch", "dot_product_attention",
        "if np.ndim(query) == 3:",
        "if np.ndim(query) == 2:",
        "test_every_implementation_gives_the_loops_of_one_example[reference]",
    ),
    Mutation(
        "blocks_seen_in_part_are_not_looked_through", "_search_blocks",
        "in_part = (some & ~every).any(axis=0)",
        "in_part = (some & every).any(axis=0)",
        "test_it_equals_any_over_the_rendered_mask[padding-700-1100]",
    ),
    Mutation(
        "few_logits_are_counted_without_the_examples", "choose_on_cpu",
        "fits = logits < enough and B * logits < limits.together",
        "fits = logits < enough and logits < limits.together",
        "test_few_logits_are_counted_over_examples_too",
    ),
    Mutation(
        "the_kernels_own_causal_mask_is_taken_for_ours", "mask_name",
        "if T == S and is_causal(mask):",
        "if is_causal(mask):",
        "test_cudnn.py::test_value_and_gradient_equal_the_reference[causal-7]",
    ),
    Mutation(
        "the_kernel_gives_blind_queries_the_mean", "cudnn_attention",
        "output = inputs.masked_rows.zero_queries(output)",
        "output = output",
        "test_mask_contract.py::test_query_without_keys_gets_zeros[dot_product_attention cudnn]",
    ),
    Mutation(
        "the_classifier_forgets_the_implementation", "TextClassifier.__call__",
        "            implementation=implementation,\n",
        "            implementation=None,\n",
        "test_a_module_gives_the_same_by_blocks[TextClassifier-training]",
    ),
    # Published weights
    Mutation(
        "linear_maps_are_read_as_they_lie", "Tensor.read",
        'map(_transposed if self.layout == "linear" else np.ascontiguousarray, parts)',
        "map(np.ascontiguousarray, parts)",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[bert]",
    ),
    Mutation(
        "positions_of_roberta_begin_with_the_padding", "Tensor.read",
        "tensor[self.skip :]",
        "tensor[: len(tensor) - self.skip]",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[roberta]",
    ),
    Mutation(
        "epsilon_is_that_of_every_bert", "text_config",
        'norm_epsilon=settings.number("layer_norm_eps", 1e-12)',
        "norm_epsilon=1e-12",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[bert]",
    ),
    Mutation(
        "gpt2_has_the_exact_gelu", "activations.PLAIN",
        '**dict.fromkeys(_TANH, "gelu_tanh")',
        '**dict.fromkeys(_TANH, "gelu")',
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[gpt2]",
    ),
    Mutation(
        "the_gate_of_modernbert_is_the_other_half", "tensors",
        'halves = (f"{network}.gate_", f"{network}.in_")',
        'halves = (f"{network}.in_", f"{network}.gate_")',
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[modernbert]",
    ),
    Mutation(
        "the_window_of_modernbert_is_to_each_side", "read_config",
        'settings.whole("local_attention", 128) // 2',
        'settings.whole("local_attention", 128)',
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[modernbert]",
    ),
    Mutation(
        "local_layers_turn_like_global_ones", "TextEncoder._layer_contexts",
        "base = POSITION_SCHEMES[config.positions], config.local_rope_base",
        "base = POSITION_SCHEMES[config.positions], config.rope_base",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[modernbert]",
    ),
    Mutation(
        "llama_turns_neighbouring_features", "RotaryPositions.rotary",
        "rope_frequencies(head_dim, base=base))",
        'rope_frequencies(head_dim, base=base), "interleaved")',
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[llama]",
    ),
    Mutation(
        "llama3_scales_the_fast_pairs_too", "rope_frequencies",
        "return frequencies * kept + frequencies / factor * (1 - kept)",
        "return frequencies / factor",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[llama-scaled]",
    ),
    Mutation(
        "heads_are_not_normed", "multi_head_attention",
        "query = rms_norm(query, query_scale, epsilon=norm_epsilon)",
        "query = query * query_scale",
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[qwen3]",
    ),
    Mutation(
        "the_head_of_distilbert_is_that_of_bert", "read_config",
        'activation="relu", head',
        'activation="tanh", head',
        "test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch[distilbert-classifier]",
    ),
    # Norms
    Mutation(
        "the_kernel_counts_one_key_too_few", "_tokens_first",
        "lengths = is_token.sum(axis=1, dtype=jnp.int32)",
        "lengths = is_token.sum(axis=1, dtype=jnp.int32) - 1",
        "test_cudnn.py::test_value_and_gradient_equal_the_reference[padding-7]",
    ),
    Mutation(
        "the_gradient_of_a_row_is_summed_short", "lookup",
        "wide(table)",
        "table",
        "test_bfloat16_loses_no_gradient_of_what_many_tokens_share[token]",
    ),
    Mutation(
        "epsilon_stands_outside_the_root", "layer_norm",
        "centred * lax.rsqrt(variance + epsilon)",
        "centred / (jnp.sqrt(variance) + epsilon)",
        "test_normalization.py::test_value_and_gradient_equal_the_loops",
    ),
    Mutation(
        "the_variance_takes_one_pass", "layer_norm",
        "variance = jnp.square(centred).mean(axis=-1, keepdims=True)",
        "variance = jnp.square(x_wide).mean(-1, keepdims=True)"
        " - jnp.square(x_wide.mean(-1, keepdims=True))",
        "test_a_large_mean_costs_no_digits",
    ),
    Mutation(
        "statistics_are_bfloat16", "wide",
        "return x.astype(wide_dtype(x.dtype))",
        "return x",
        "test_statistics_of_bfloat16_are_float32",
    ),
    Mutation(
        "the_rms_norm_centres", "rms_norm",
        "power = jnp.square(x_wide).mean(axis=-1, keepdims=True)",
        "power = x_wide.var(axis=-1, keepdims=True)",
        "test_rms_norm_equals_nnx",
    ),
    Mutation(
        "the_batch_norm_divides_by_the_unbiased_variance", "batch_statistics",
        "return BatchStatistics(mean, jnp.square(rows - mean).mean(axis=0))",
        "return BatchStatistics(mean, jnp.var(rows, axis=0, ddof=1))",
        "test_batch_norm_equals_nnx[of the batch]",
    ),
    Mutation(
        "the_running_variance_is_biased", "running_statistics",
        "variance = variance * (rows / (rows - 1))",
        "variance = variance * 1.0",
        "test_nnx_differs_on_the_running_variance_of_batch_norm",
    ),
    # Feed-forward and dropout
    Mutation(
        "gelu_is_its_approximation", "ACTIVATIONS",
        '"gelu": gelu,',
        '"gelu": partial(jax.nn.gelu, approximate=True),',
        "test_value_and_gradient_equal_the_formula[gelu]",
    ),
    Mutation(
        "the_gate_adds", "gated_feed_forward",
        "opened * linear(x, in_kernel, in_bias)",
        "opened + linear(x, in_kernel, in_bias)",
        "test_gates_equal_jax_nn",
    ),
    Mutation(
        "dropout_does_not_scale_up", "dropout",
        "jnp.where(keep(rng, rate, x.shape), x / (1.0 - rate), ",
        "jnp.where(keep(rng, rate, x.shape), x, ",
        "test_kept_elements_are_scaled_up_and_the_mean_is_kept",
    ),
    Mutation(
        "a_product_of_few_rows_has_no_gradient_of_the_weights", "_skinny_product_jvp",
        "terms.append(_by_xla(x, d_weights, **params))",
        "terms.append(0 * _by_xla(x, d_weights, **params))",
        "test_weight_product.py::test_derivatives_are_those_of_the_product[float32-W]",
    ),
    Mutation(
        "the_cache_of_a_short_model_is_short_on_a_cpu", "cache_dtype",
        "return returned_dtype(jnp.dtype(dtype))",
        "return jnp.dtype(dtype)",
        "test_kv_cache.py::"
        "test_a_model_of_bfloat16_with_caches_of_either_dtype[default-llama-sizes1]",
    ),
    Mutation(
        "two_blocks_of_keys_share_the_bits_of_dropout", "kept_bits",
        ".astype(jnp.uint8) << (j + k)",
        ".astype(jnp.uint8) << j",
        "test_triton.py::test_value_and_gradient_equal_the_reference[none-sizes1-0.3]",
    ),
    Mutation(
        "the_gpu_gives_the_gradient_of_keys_without_dropout", "_gradient_of_keys",
        "(_dropped(x, kept, index) for x in (weights, d_weights))",
        "(_dropped(weights, kept, index), d_weights)",
        "test_triton.py::test_value_and_gradient_equal_the_reference[none-sizes1-0.3]",
    ),
    Mutation(
        "the_gpu_visits_a_block_too_few", "_visited",
        "jnp.where(some.any(axis=2), behind, 0)",
        "jnp.where(some.any(axis=2), behind - 1, 0)",
        "test_triton.py::test_value_and_gradient_equal_the_reference[causal-sizes2-0.0]",
    ),
    Mutation(
        "the_gpu_puts_the_last_query_at_the_same_position", "Problem.shift",
        "return self.S - self.T",
        "return 0",
        "test_triton.py::test_value_and_gradient_equal_the_reference[causal-sizes2-0.0]",
    ),
    Mutation(
        "dropout_counts_without_the_head", "_head_words",
        "*jnp.broadcast_arrays(batch[:, None], heads[None])",
        "*jnp.broadcast_arrays(batch[:, None], 0 * heads[None])",
        "test_nnx_differs_on_dropout_across_heads_and_examples",
    ),
    Mutation(
        "dropout_comes_before_the_softmax", "reference_attention",
        "    weights = softmax_over_visible(logits, visible)\n"
        "    weights = dropout_weights(weights, inputs.dropout_rate, inputs.dropout_rng)\n",
        "    weights = dropout_weights(logits, inputs.dropout_rate, inputs.dropout_rng)\n"
        "    weights = softmax_over_visible(weights, visible)\n",
        "test_nnx_differs_on_dropout_across_heads_and_examples",
    ),
    # Positions
    Mutation(
        "sine_and_cosine_are_swapped", "sinusoidal_positions",
        "jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)",
        "jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)",
        "test_sinusoids_equal_the_loops",
    ),
    Mutation(
        "padding_takes_positions", "count_positions",
        "jnp.cumsum(is_token, axis=-1, dtype=jnp.int32)",
        "jnp.cumsum(is_token | True, axis=-1, dtype=jnp.int32)",
        "test_positions_are_counted_over_the_real_tokens",
    ),
    Mutation(
        "an_index_outside_is_clipped", "lookup",
        'mode="fill", fill_value=jnp.nan,',
        'mode="clip",',
        "test_nnx_differs_on_a_negative_index",
    ),
    Mutation(
        "the_layouts_of_rope_are_swapped", "_rotate",
        'half = layout == "half"',
        'half = layout != "half"',
        "test_rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "rope_starts_at_one", "_cos_and_sin",
        "jnp.asarray(positions).astype(",
        "jnp.asarray(positions + 1).astype(",
        "test_rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "rope_turns_back", "_rotate",
        "a, b = a * cos - b * sin, a * sin + b * cos",
        "a, b = a * cos + b * sin, b * cos - a * sin",
        "test_rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "yarn_slows_the_fast", "rope_frequencies",
        "frequencies * (1 - share) + frequencies / factor * share",
        "frequencies * share + frequencies / factor * (1 - share)",
        "test_yarn_keeps_the_fast_divides_the_slow_and_ramps_between",
    ),
    Mutation(
        "yarn_has_no_temperature", "RotaryPositions.rotary",
        "Rotary(positions, frequencies, scale=scaling.temperature)",
        "Rotary(positions, frequencies)",
        "test_a_changed_checkpoint_gives_the_logits_of_pytorch_and_is_saved_as_it_is[yarn]",
    ),
    Mutation(
        "a_stored_output_matrix_is_dropped", "resolve_output",
        "config = replace(config, tied_head=False)",
        "del entries[layer.matrix]",
        "test_a_changed_checkpoint_gives_the_logits_of_pytorch_and_is_saved_as_it_is"
        "[gpt2-own_head-tied-true]",
    ),
    Mutation(
        "ntk_divides_the_base_alone", "rope_frequencies",
        "base = base * factor ** (features / (features - 2))",
        "base = base * factor",
        "test_ntk_keeps_the_fastest_and_divides_the_slowest",
    ),
    Mutation(
        "alignment_without_tanh", "additive_attention",
        "logits = (jnp.tanh(aligned) @",
        "logits = (aligned @",
        "test_the_example_gives_what_it_shows[additive.additive_attention]",
    ),
    Mutation(
        "alibi_rewards_distance", "_Alibi.block",
        "return -slopes[:, None, None]",
        "return slopes[:, None, None]",
        "test_the_example_gives_what_it_shows[biases.alibi]",
    ),
    Mutation(
        "a_long_distance_is_one_bucket_off", "relative_buckets",
        "far = exact + jnp.searchsorted(",
        "far = exact + 1 + jnp.searchsorted(",
        "test_the_example_gives_what_it_shows[biases.relative_buckets]",
    ),
    Mutation(
        "buckets_of_past_and_future_are_swapped", "relative_buckets",
        "jnp.where(distance > 0, side, 0)",
        "jnp.where(distance < 0, side, 0)",
        "test_the_example_gives_what_it_shows[biases.relative_buckets]",
    ),
    # Layers and pooling
    Mutation(
        "layers_are_summed_unweighted", "layer_weighted_pool",
        "share = jax.nn.softmax(logits.astype(pooled.dtype))",
        "share = jnp.ones_like(logits.astype(pooled.dtype)) / len(logits)",
        "test_layers_are_pooled_and_weighted_value_and_gradient",
    ),
    Mutation(
        "pre_and_post_norm_are_swapped", "residual",
        'if config.norm == "pre" else',
        'if config.norm != "pre" else',
        "test_the_encoder_equals_its_equations_in_numpy[post]",
    ),
    Mutation(
        "the_residual_is_dropped", "residual.add",
        "return x + dropout(y, ",
        "return dropout(y, ",
        "test_the_encoder_equals_its_equations_in_numpy[post]",
    ),
    Mutation(
        "the_last_norm_is_dropped", "Encoder.__call__",
        "if self.final_norm is not None:",
        "if False:",
        "test_the_encoder_equals_its_equations_in_numpy[pre]",
    ),
    Mutation(
        "cls_takes_the_first_place", "cls_pool",
        "first = is_token & (count_positions(is_token) == 0)",
        "first = is_token & (jnp.arange(x.shape[1]) == 0)",
        "test_pooling.py::test_value_and_gradient_equal_the_loops[cls]",
    ),
    Mutation(
        "last_takes_the_one_before", "last_pool",
        "count_positions(is_token) == count - 1",
        "count_positions(is_token) == count - 2",
        "test_pooling.py::test_value_and_gradient_equal_the_loops[last]",
    ),
    Mutation(
        "padding_counts_in_the_mean", "mean_pool",
        "count = jnp.maximum(is_token.sum(axis=-1, keepdims=True), 1)",
        "count = jnp.full((len(x), 1), x.shape[1])",
        "test_pooling.py::test_value_and_gradient_equal_the_loops[mean]",
    ),
    Mutation(
        "padding_takes_part_in_the_maximum", "max_pool",
        "visible = jnp.where(is_token[..., None], seen, -jnp.inf)",
        "visible = seen",
        "test_pooling.py::test_value_and_gradient_equal_the_loops[max]",
    ),
    Mutation(
        "gradient_of_a_short_product_is_long", "_short_product_transpose",
        "cotangents[0].astype(operands[0].dtype)",
        "cotangents[0]",
        "test_both_gradients_of_a_short_product_are_short_products",
    ),
    # Attribution
    Mutation(
        "neighbours_share_the_presence_of_one", "region_embedding.place",
        "rows = weaken(rows, is_token[..., here], presence[..., here])",
        "rows = weaken(rows, is_token[..., here], presence[..., reach : reach + length])",
        "test_in_a_region_each_neighbour_has_its_own_presence",
    ),
    Mutation(
        "a_presence_stays_behind_its_token", "TextClassifier.__call__",
        "(presence,) = moved or (None,)",
        "presence = presence",
        "test_a_presence_of_one_is_the_model_and_of_nothing_knows_no_word[patches]",
    ),
    Mutation(
        "gradients_are_taken_at_the_end_of_the_way", "integrated_gradients",
        "nodes, weights = nodes_and_weights(count)",
        "nodes, weights = np.ones(count), np.full(count, 1 / count)",
        "test_the_shares_of_a_sigmoid_are_its_rise_by_the_terms_of_its_sum",
    ),
    Mutation(
        "the_gap_is_spread_over_the_shares", "integrated_gradients",
        "values = x.astype(np.float64) * (weights @ gradients)",
        "values = (values := x * (weights @ gradients)) * (all_ - nothing) / values.sum()",
        "test_nodes_are_doubled_until_the_gap_is_closed_and_not_beyond",
    ),
    # Models that take texts
    Mutation(
        "each_length_of_a_text_is_compiled", "round_lengths",
        "steps = np.maximum(1 << np.maximum(bits - 3, 0), 16)",
        "steps = 1",
        "test_lengths_are_rounded_up_to_few_with_little_padding",
    ),
    Mutation(
        "a_label_is_of_the_least_likely_class", "Classifier.predict",
        "probabilities.argmax(axis=1)",
        "probabilities.argmin(axis=1)",
        "test_a_classifier_predicts_labels_and_probabilities_in_the_order_of_its_classes",
    ),
    Mutation(
        "each_prompt_is_compiled", "TextGenerator._padded",
        "max(len(ids), int(round_lengths([len(ids)], room)[0]))",
        "len(ids)",
        "test_prompts_of_one_padded_length_share_what_is_compiled",
    ),
    Mutation(
        "a_layer_keeps_what_it_computes_again", "rematerialised",
        "return nnx.remat(again, graph_updates=False)(module, x, rngs)",
        "return again(module, x, rngs)",
        "test_each_layer_keeps_its_input_alone[Decoder]",
    ),
    # What programs say
    Mutation(
        "the_time_left_counts_compilation", "ProgressBar.uncounted",
        "self.last_print_t += spent",
        "self.last_print_t += 0 * spent",
        "test_the_time_left_does_not_count_what_is_uncounted",
    ),
    Mutation(
        "a_stopped_run_passes_for_a_finished_one", "steps_taken",
        "return step, steps",
        "return None",
        "test_a_command_says_that_training_was_stopped",
    ),
    # The cost of training on a mesh
    Mutation(
        "a_tied_table_has_one_gradient", "Work",
        "return self.lookups + self.tied_head if", "return self.lookups if",
        "test_fsdp_gathers_each_matrix_once_and_scatters_its_gradient",
    ),
    Mutation(
        "a_ring_moves_all_of_an_array", "Collective",
        "(n - 1) / n * self.size", "self.size",
        "test_a_ring_moves_its_share_by_the_slowest_of_its_links",
    ),
    Mutation(
        "a_device_computes_all_heads", "share_of_device",
        'divided("attention.query_kernel", 1, N)', "N",
        "test_heads_that_do_not_divide_are_computed_on_every_device",
    ),
]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print a line for every mutation; return 1 if one survives or a test fails without any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", default="", metavar="NAME", help="those with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args(arguments)
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    if not chosen:
        parser.error(f"no mutation has {options.only!r} in its name")

    with tempfile.TemporaryDirectory() as cache:
        cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", cache))
        if failure := failure_without_mutation(chosen, cache):
            print(failure[-6000:])
            print("the tests fail without any mutation")
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda mutation: caught(mutation, cache), chosen)
            survivors = 0
            for mutation, (is_caught, message) in zip(chosen, results, strict=True):
                survivors += not is_caught
                verdict = "caught by" if is_caught else "SURVIVES "
                print(f"{mutation.name:48} {verdict} {mutation.test}", flush=True)
                if not is_caught:
                    print(f"    {message}")
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
