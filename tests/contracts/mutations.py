"""Mistakes that a transformer can hold without crashing, one line each, and the test that must
catch it.

    python -m tests.contracts.mutations                   # all: a table, and exit code 1 if one survives
    python -m tests.contracts.mutations --only top_left   # those with this in their name

Every breakage is made in a copy of the package in a temporary folder, never in the tree. The tests
named here pass there first without any; after the breakage the one that is named must fail on an
assertion of its own, not crash.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("transformer_jax", "tests", "bench", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """In `file` the text `old` becomes `new`, and `test` must see it."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def apply(self, folder: Path) -> None:
        """Raises ValueError unless the old text is there exactly once."""
        path = folder / "transformer_jax" / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: found {count} times in {self.file}: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


ATTENTION, PARITY = "attention/test_dot_product.py::test_", "contracts/test_parity.py::test_"
CONTRACT, MASKS = "contracts/test_mask_contract.py::test_", "attention/test_masks.py::test_"
RULE = f"{MASKS}a_rule_is_its_question_asked_of_every_pair"
NORM, DROPOUT = "functional/test_normalization.py::test_", "functional/test_dropout.py::test_"
POSITIONS, POOLING = "functional/test_positions.py::test_", "functional/test_pooling.py::test_"
ROTARY = "functional/test_rotary.py::test_"
ENCODER = "nn/test_encoder.py::test_the_encoder_equals_its_equations_in_numpy"
EXAMPLE = "contracts/test_doctests.py::test_the_example_gives_what_it_shows"
BLOCKWISE = "attention/kernels/test_blockwise.py::test_value_and_gradient_equal_the_reference"
FUSED = "attention/kernels/test_blockwise.py::test_fused_value_and_gradient_equal_the_reference"
COVERAGE = "attention/test_coverage.py::test_"
PRETRAINED = (
    "pretrained/test_families.py::test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch"
)
ATTRIBUTION = "interpret/test_attribution.py::test_"
CACHE, GENERATION = "nn/test_kv_cache.py::test_", "generation/test_generate.py::test_"
UNSEEN = f"{CONTRACT}what_nobody_sees_reaches_no_output_and_no_gradient"

MUTATIONS = [
    # The product and the softmax
    Mutation(
        "the_scale_is_dropped", "attention/inputs.py",
        "scale=inputs.query.shape[3] ** -0.5 if inputs.scale is None else inputs.scale,",
        "scale=1.0 if inputs.scale is None else inputs.scale,",
        f"{ATTENTION}scale_is_one_over_the_root_of_the_features",
    ),
    Mutation(
        "the_mask_falls_after_the_softmax", "attention/softmax.py",
        "if mask is None else masked_softmax(logits, mask)",
        "if mask is None else jnp.where(mask, jax.nn.softmax(logits, axis=-1), 0)",
        f"{ATTENTION}weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "heads_of_a_group_are_interleaved", "attention/dot_product.py",
        "return x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])",
        "return x.reshape(x.shape[0], x.shape[1] // K, K, *x.shape[2:]).swapaxes(1, 2)",
        f"{ATTENTION}value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_bias_is_scaled", "attention/dot_product.py",
        "return logits if bias is None else logits + bias",
        "return logits if bias is None else logits + inputs.scale * bias",
        f"{ATTENTION}value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_soft_cap_falls_after_the_bias", "attention/dot_product.py",
        "    if soft_cap is not None:\n        logits = soft_cap * jnp.tanh(logits / soft_cap)\n"
        "    bias = rendered(inputs.bias, *logits.shape[2:])\n"
        "    return logits if bias is None else logits + bias",
        "    bias = rendered(inputs.bias, *logits.shape[2:])\n"
        "    logits = logits if bias is None else logits + bias\n"
        "    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)",
        f"{PARITY}a_soft_cap_stands_before_the_bias",
    ),
    Mutation(
        "logits_are_bfloat16", "attention/dot_product.py",
        "        jnp.promote_types(query.dtype, jnp.float32),",
        "        query.dtype,",
        f"{ATTENTION}logits_of_bfloat16_are_float32",
    ),
    Mutation(
        "the_logsumexp_forgets_the_mask", "attention/dot_product.py",
        "masked_logsumexp(logits, True if visible is None else visible)",
        "masked_logsumexp(logits, True)",
        f"{PARITY}logsumexp_is_the_residual_of_jax_nn",
    ),
    Mutation(
        "the_softmax_overflows", "attention/softmax.py",
        "jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))",
        "jnp.exp(logits)",
        f"{ATTENTION}huge_logits_do_not_overflow[masked]",
    ),
    Mutation(
        "the_softmax_is_not_normalised", "attention/softmax.py",
        "return exponentials / jnp.where(total == 0, 1, total)",
        "return exponentials",
        f"{ATTENTION}weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "a_query_without_keys_divides_by_zero", "attention/softmax.py",
        "return exponentials / jnp.where(total == 0, 1, total)",
        "return exponentials / total",
        f"{ATTENTION}weights_of_a_query_sum_to_one_or_to_zero",
    ),
    Mutation(
        "the_softmax_forgets_half_of_its_slope", "attention/softmax.py",
        "return weights, change - weights * change.sum(axis=-1, keepdims=True)",
        "return weights, change",
        f"{ATTENTION}value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "the_logsumexp_overflows", "attention/softmax.py",
        "highest = jnp.where(highest == -jnp.inf, 0, highest)",
        "highest = jnp.zeros_like(highest)",
        f"{PARITY}softmax_and_logsumexp_equal_jax_nn_where_something_is_seen",
    ),
    # What nobody sees
    Mutation(
        "an_unseen_value_stays", "attention/inputs.py",
        "value=None if value is None else rows.zero_keys(value)",
        "value=None if value is None else value",
        f"{PARITY}jax_nn_differs_on_nan_in_a_value_that_nobody_sees",
    ),
    Mutation(
        "a_blind_query_stays", "attention/inputs.py",
        "query=rows.zero_queries(inputs.query)",
        "query=inputs.query",
        f"{UNSEEN}[dot_product_attention-nan]",
    ),
    Mutation(
        "an_unseen_key_stays", "attention/inputs.py",
        "key=rows.zero_keys(inputs.key)",
        "key=inputs.key",
        f"{UNSEEN}[dot_product_attention-nan]",
    ),
    Mutation(
        "a_blind_input_stays", "attention/multi_head.py",
        "inputs_q, inputs_kv = rows.zero_inputs_q(inputs_q), rows.zero_inputs_kv(inputs_kv)",
        "inputs_kv = rows.zero_inputs_kv(inputs_kv)",
        f"{UNSEEN}[multi_head_attention-nan]",
    ),
    Mutation(
        "a_key_is_seen_only_by_a_whole_group", "attention/masked_rows.py",
        "visible.reshape(B, K, N // K, S).any(axis=2)",
        "visible.reshape(B, K, N // K, S).all(axis=2)",
        f"{ATTENTION}value_and_gradient_equal_the_loops[2]",
    ),
    Mutation(
        "a_lone_row_stays", "nn/encoder.py",
        "x = context.masked_rows.zero_isolated_rows(x)",
        "x = x + 0",
        f"{CONTRACT}rows_apart_from_all_others_reach_no_gradient[Encoder post]",
    ),
    # Writing
    Mutation(
        "the_ring_begins_at_its_first_slot", "nn/kv_cache.py",
        "return last - (last - slot) % C",
        "return last - last % C + slot",
        f"{CACHE}chunks_through_the_cache_are_the_whole_text[window-chunks]",
    ),
    Mutation(
        "padding_takes_a_slot", "nn/kv_cache.py",
        "count = jnp.cumsum(is_token, axis=1, dtype=jnp.int32)",
        "count = jnp.cumsum(is_token | True, axis=1, dtype=jnp.int32)",
        f"{CACHE}padding_takes_no_slot[learned-left]",
    ),
    Mutation(
        "an_overflow_is_an_answer", "nn/kv_cache.py",
        "(step.lengths > self.capacity) & (self.window is None)",
        "(step.lengths > self.capacity) & False",
        f"{CACHE}a_full_cache_answers_with_nan",
    ),
    Mutation(
        "cached_keys_are_not_turned", "nn/layers.py",
        "return key if rotary is None else rotary.turn(key), value",
        "return key, value",
        f"{CACHE}chunks_through_the_cache_are_the_whole_text[llama-chunks]",
    ),
    Mutation(
        "a_cache_counts_alibi_from_its_end", "models/language_model.py",
        "scaling=config.rope_scaling, **at\n",
        "scaling=config.rope_scaling\n",
        f"{CACHE}chunks_through_the_cache_are_the_whole_text[window, alibi-one by one]",
    ),
    Mutation(
        "the_window_is_left_out_of_a_cache", "models/language_model.py",
        "mask = causal(**at) if window is None else",
        "mask = causal(**at) if window is None or at else",
        f"{CACHE}padding_takes_no_slot[window, alibi-left]",
    ),
    Mutation(
        "the_logits_are_of_the_last_place", "nn/decoder.py",
        "return x[:, -1] if is_token is None or x.shape[1] == 1 else last_pool(x, is_token)",
        "return x[:, -1]",
        f"{GENERATION}next_tokens_are_the_softmax",
    ),
    Mutation(
        "cross_attention_sees_padding", "nn/context.py",
        "mask=self.memory_mask,",
        "mask=None,",
        "nn/test_decoder.py::test_padding_of_either_text_changes_nothing",
    ),
    Mutation(
        "a_padded_memory_is_read", "nn/decoder.py",
        "memory = jnp.where(is_memory[..., None], memory, 0)",
        "memory = memory + 0",
        "nn/test_decoder.py::test_nan_in_a_padded_memory_reaches_nothing",
    ),
    Mutation(
        "a_written_token_is_not_penalised", "generation/generate.py",
        "is_used = is_used.at[rows, token].max(is_new)",
        "is_used = is_used | False",
        f"{GENERATION}the_penalty_knows_prompt_and_text",
    ),
    Mutation(
        "top_p_stops_before_p_is_reached", "generation/sampling.py",
        "jnp.take_along_axis(before < p, rank, axis=-1)",
        "jnp.take_along_axis(before + probabilities <= p, rank, axis=-1)",
        "generation/test_sampling.py::test_top_p_keeps_the_fewest_that_reach_p",
    ),
    Mutation(
        "the_penalty_helps_unlikely_tokens", "generation/sampling.py",
        "jnp.where(logits > 0, logits / penalty, logits * penalty)",
        "logits / penalty",
        "generation/test_sampling.py::test_the_penalty_makes_used_tokens_less_likely_whatever_their_sign",
    ),
    Mutation(
        "short_texts_win_a_beam_search", "generation/beam_search.py",
        "[state.scores, log_probability / length_penalty(length, alpha)], axis=1",
        "[state.scores, log_probability], axis=1",
        f"{GENERATION}a_wide_beam_finds_the_best_of_all_texts[2.0]",
    ),
    Mutation(
        "a_beam_keeps_the_cache_of_another", "generation/beam_search.py",
        "jnp.ones((B * W, 1), bool), cache.rows(rows))",
        "jnp.ones((B * W, 1), bool), cache)",
        f"{GENERATION}beams_of_a_language_model_go_on_from_one_another",
    ),
    Mutation(
        "embeddings_are_not_scaled", "nn/position_schemes.py",
        "return x * math.sqrt(D) + sinusoidal_positions",
        "return x + sinusoidal_positions",
        "nn/test_layers.py::test_a_token_embedding_is_its_equation_and_its_table_is_the_head[sinusoidal]",
    ),
    Mutation(
        "packed_texts_count_on", "functional/positions.py",
        "jnp.where(first, index, 0)",
        "jnp.where(first, 0, 0)",
        f"{EXAMPLE}[positions.count_in_segments]",
    ),
    # Rules
    Mutation(
        "causal_is_top_left", "attention/rule.py",
        "offset = block.S - block.T + block.query_start",
        "offset = block.query_start",
        f"{MASKS}causal_with_more_keys_lets_the_last_query_see_the_last_key",
    ),
    Mutation(
        "a_token_does_not_see_itself", "attention/masks.py",
        "return distances(self, block) <= 0",
        "return distances(self, block) < 0",
        f"{RULE}[causal]",
    ),
    Mutation(
        "the_window_is_one_too_short", "attention/masks.py",
        "inside &= distance >= -self.left",
        "inside &= distance > -self.left",
        f"{RULE}[window]",
    ),
    Mutation(
        "the_prefix_is_one_too_long", "attention/masks.py",
        "return positions_of_keys(self.key_positions, block) < lengths",
        "return positions_of_keys(self.key_positions, block) <= lengths",
        f"{RULE}[prefix]",
    ),
    Mutation(
        "segments_see_the_others", "attention/masks.py",
        "return per_query(self.query_ids, block) == per_key(self.key_ids, block)",
        "return per_query(self.query_ids, block) != per_key(self.key_ids, block)",
        f"{RULE}[segments]",
    ),
    Mutation(
        "and_is_or", "attention/masks.py",
        "return self.first.render(block) & self.second.render(block)",
        "return self.first.render(block) | self.second.render(block)",
        f"{RULE}[and]",
    ),
    Mutation(
        "every_block_is_the_first", "attention/rule.py",
        "return (block.key_start + jnp.arange(block.keys))[None, None, None, :]",
        "return jnp.arange(block.keys)[None, None, None, :]",
        f"{MASKS}blocks_at_traced_starts_tile_to_the_whole[causal]",
    ),
    # Blocks
    Mutation(
        "what_came_before_is_not_shrunk", "attention/kernels/blockwise.py",
        "shrink = jnp.exp(highest - finite)",
        "shrink = jnp.where(highest == -jnp.inf, 0.0, 1.0)",
        f"{BLOCKWISE}[none, alibi]",
    ),
    Mutation(
        "the_gradient_through_the_sum_is_lost", "attention/kernels/blockwise.py",
        "d_logits = weights * (tiles.dropout(d_weights, tile) - rows.delta[..., None])",
        "d_logits = weights * tiles.dropout(d_weights, tile)",
        f"{BLOCKWISE}[none, alibi]",
    ),
    Mutation(
        "the_logsumexp_has_no_gradient", "attention/kernels/blockwise.py",
        "delta -= tiles.zero_repeated(tiles.read_queries(d_logsumexp, row), row)",
        "delta -= 0",
        f"{BLOCKWISE}[causal, none]",
    ),
    Mutation(
        "the_cap_has_a_slope_of_one", "attention/kernels/blockwise.py",
        "d_logits *= 1 - (capped / soft_cap) ** 2",
        "d_logits *= 1",
        f"{BLOCKWISE}[window, relative at positions]",
    ),
    Mutation(
        "hidden_keys_are_felt", "attention/kernels/xla_cpu.py",
        "HIDDEN = -1e37",
        "HIDDEN = -1.0",
        f"{FUSED}[causal]",
    ),
    Mutation(
        "the_gradient_of_the_keys_leaves_out_the_sum", "attention/kernels/xla_cpu.py",
        "    d_logits = weights * (d_weights - delta[:, None])\n",
        "    d_logits = weights * d_weights\n",
        f"{FUSED}[none]",
    ),
    Mutation(
        "who_sees_nothing_gets_the_mean", "attention/kernels/blockwise.py",
        "return jnp.where(sees[..., None], out, 0), total",
        "return out, total",
        "contracts/test_mask_contract.py::test_query_without_keys_gets_zeros[dot_product_attention fused]",
    ),
    Mutation(
        "every_run_is_the_first", "attention/kernels/tiles.py",
        "start = jnp.minimum(first * self.grid.keys, self.grid.S - run)",
        "start = jnp.minimum(0 * first, self.grid.S - run)",
        "attention/kernels/test_blockwise.py::test_runs_of_keys_equal_the_reference[7-8-3-4-24-apart]",
    ),
    Mutation(
        "the_last_queries_count_twice", "attention/kernels/tiles.py",
        "            return jnp.where(self._new_rows(rows, tile), rows, 0)\n",
        "            return rows\n",
        f"{BLOCKWISE}[none, alibi]",
    ),
    Mutation(
        "the_last_keys_count_twice", "attention/kernels/tiles.py",
        "return mask & new if self.grid.S % self.grid.keys else mask",
        "return mask",
        f"{BLOCKWISE}[causal, none]",
    ),
    Mutation(
        "dropout_is_counted_from_the_block", "attention/kernels/tiles.py",
        "            block.key_start + jnp.arange(block.keys),\n",
        "            jnp.arange(block.keys),\n",
        f"{BLOCKWISE}[window at positions, array 1NTS]",
    ),
    Mutation(
        "a_block_of_the_bias_forgets_the_others", "attention/biases.py",
        "lax.dynamic_update_slice(total.array, old + _sum_to(sizes, cotangent), starts)",
        "lax.dynamic_update_slice(total.array, _sum_to(sizes, cotangent), starts)",
        f"{BLOCKWISE}[padding, array B11S]",
    ),
    Mutation(
        "hidden_blocks_are_visited", "attention/kernels/tiles.py",
        "return Visits(columns, every.sum(axis=2), some.sum(axis=2), some.argmax(axis=2))",
        "return Visits(columns, every.sum(axis=2), 0 * some.sum(axis=2) + grid.columns, some.argmax(axis=2))",
        "attention/kernels/test_tile_sizes.py::test_the_loops_run_as_often_as_blocks_are_seen_and_no_more[causal-False]",
    ),
    Mutation(
        "a_block_is_hidden_where_its_first_query_sees_nothing", "attention/masks.py",
        "return Coverage(some=first_key <= last_query, every=last_key <= first_query)",
        "return Coverage(some=first_key <= first_query, every=last_key <= first_query)",
        f"{COVERAGE}at_the_default_positions_it_is_exact[size0-causal]",
    ),
    Mutation(
        "what_one_mask_shows_whole_counts_as_shown_by_both", "attention/masks.py",
        "return Coverage(first.some & second.some, first.every & second.every)",
        "return Coverage(first.some & second.some, first.every | second.every)",
        f"{COVERAGE}nothing_visible_is_skipped_and_nothing_hidden_is_taken_for_seen",
    ),
    Mutation(
        "blocks_seen_in_part_are_not_looked_through", "attention/masked_rows.py",
        "in_part = (some & ~every).any(axis=0)",
        "in_part = (some & every).any(axis=0)",
        "attention/test_masked_rows.py::test_it_equals_any_over_the_rendered_mask[padding-700-1100]",
    ),
    Mutation(
        "few_logits_are_counted_without_the_examples", "attention/kernels/dispatch.py",
        "return logits < enough and examples * logits < ALL_TOGETHER",
        "return logits < enough and logits < ALL_TOGETHER",
        "attention/kernels/test_dispatch.py::test_few_logits_are_counted_over_examples_too",
    ),
    Mutation(
        "the_kernels_own_causal_mask_is_taken_for_ours", "attention/kernels/cudnn.py",
        "if T == S and is_causal(mask):",
        "if is_causal(mask):",
        "attention/kernels/test_cudnn.py::test_value_and_gradient_equal_the_reference[causal-7]",
    ),
    Mutation(
        "the_kernel_gives_blind_queries_the_mean", "attention/kernels/cudnn.py",
        "return AttentionResult(inputs.masked_rows.zero_queries(output))",
        "return AttentionResult(output)",
        f"{CONTRACT}query_without_keys_gets_zeros[dot_product_attention cudnn]",
    ),
    Mutation(
        "the_classifier_forgets_the_implementation", "models/text_classifier.py",
        "            implementation=implementation,\n",
        "            implementation=None,\n",
        "attention/kernels/test_dispatch.py::test_a_module_gives_the_same_by_blocks[TextClassifier-training]",
    ),
    # Published weights
    Mutation(
        "linear_maps_are_read_as_they_lie", "pretrained/tensor_layout.py",
        'map(_transposed if self.layout == "linear" else np.ascontiguousarray, parts)',
        "map(np.ascontiguousarray, parts)",
        f"{PRETRAINED}[bert]",
    ),
    Mutation(
        "positions_of_roberta_begin_with_the_padding", "pretrained/tensor_layout.py",
        "tensor[self.skip :]",
        "tensor[: len(tensor) - self.skip]",
        f"{PRETRAINED}[roberta]",
    ),
    Mutation(
        "epsilon_is_that_of_every_bert", "pretrained/families/bert.py",
        'norm_epsilon=settings.number("layer_norm_eps", 1e-12)',
        "norm_epsilon=1e-12",
        f"{PRETRAINED}[bert]",
    ),
    Mutation(
        "gpt2_has_the_exact_gelu", "pretrained/families/gpt2.py",
        '"gelu_new": "gelu_tanh"',
        '"gelu_new": "gelu"',
        f"{PRETRAINED}[gpt2]",
    ),
    Mutation(
        "the_gate_of_modernbert_is_the_other_half", "pretrained/families/modernbert.py",
        'halves = (f"{network}.gate_", f"{network}.in_")',
        'halves = (f"{network}.in_", f"{network}.gate_")',
        f"{PRETRAINED}[modernbert]",
    ),
    Mutation(
        "the_window_of_modernbert_is_to_each_side", "pretrained/families/modernbert.py",
        'settings.whole("local_attention", 128) // 2',
        'settings.whole("local_attention", 128)',
        f"{PRETRAINED}[modernbert]",
    ),
    Mutation(
        "local_layers_turn_like_global_ones", "models/text_encoder.py",
        "base = POSITION_SCHEMES[config.positions], config.local_rope_base",
        "base = POSITION_SCHEMES[config.positions], config.rope_base",
        f"{PRETRAINED}[modernbert]",
    ),
    Mutation(
        "llama_turns_neighbouring_features", "nn/position_schemes.py",
        "rope_frequencies(head_dim, base=base, **options))",
        'rope_frequencies(head_dim, base=base, **options), "interleaved")',
        f"{PRETRAINED}[llama]",
    ),
    Mutation(
        "llama3_scales_the_fast_pairs_too", "functional/rotary.py",
        "return frequencies * kept + frequencies / factor * (1 - kept)",
        "return frequencies / factor",
        f"{PRETRAINED}[llama-scaled]",
    ),
    Mutation(
        "heads_are_not_normed", "attention/multi_head.py",
        "query = rms_norm(query, query_scale, epsilon=norm_epsilon)",
        "query = query * query_scale",
        f"{PRETRAINED}[qwen3]",
    ),
    Mutation(
        "the_head_of_distilbert_is_that_of_bert", "pretrained/families/distilbert.py",
        'activation="relu", head',
        'activation="tanh", head',
        f"{PRETRAINED}[distilbert-classifier]",
    ),
    # Norms
    Mutation(
        "the_kernel_counts_one_key_too_few", "attention/kernels/cudnn.py",
        "lengths = is_token.sum(axis=1, dtype=jnp.int32)",
        "lengths = is_token.sum(axis=1, dtype=jnp.int32) - 1",
        "attention/kernels/test_cudnn.py::test_value_and_gradient_equal_the_reference[padding-7]",
    ),
    Mutation(
        "the_gradient_of_a_row_is_summed_short", "functional/positions.py",
        "wide(table)",
        "table",
        "nn/test_layers.py::test_bfloat16_loses_no_gradient_of_what_many_tokens_share[token]",
    ),
    Mutation(
        "epsilon_stands_outside_the_root", "functional/normalization.py",
        "centred * lax.rsqrt(variance + epsilon)",
        "centred / (jnp.sqrt(variance) + epsilon)",
        f"{NORM}value_and_gradient_equal_the_loops",
    ),
    Mutation(
        "the_variance_takes_one_pass", "functional/normalization.py",
        "variance = jnp.square(centred).mean(axis=-1, keepdims=True)",
        "variance = jnp.square(x_wide).mean(-1, keepdims=True)"
        " - jnp.square(x_wide.mean(-1, keepdims=True))",
        f"{NORM}a_large_mean_costs_no_digits",
    ),
    Mutation(
        "statistics_are_bfloat16", "functional/precision.py",
        "return x.astype(jnp.promote_types(x.dtype, jnp.float32))",
        "return x",
        f"{NORM}statistics_of_bfloat16_are_float32",
    ),
    Mutation(
        "the_rms_norm_centres", "functional/normalization.py",
        "power = jnp.square(x_wide).mean(axis=-1, keepdims=True)",
        "power = x_wide.var(axis=-1, keepdims=True)",
        f"{PARITY}rms_norm_equals_nnx",
    ),
    Mutation(
        "the_batch_norm_divides_by_the_unbiased_variance", "functional/normalization.py",
        "return BatchStatistics(mean, jnp.square(rows - mean).mean(axis=0))",
        "return BatchStatistics(mean, jnp.var(rows, axis=0, ddof=1))",
        f"{PARITY}batch_norm_equals_nnx[of the batch]",
    ),
    Mutation(
        "the_running_variance_is_biased", "functional/normalization.py",
        "variance = variance * (rows / (rows - 1))",
        "variance = variance * 1.0",
        f"{PARITY}nnx_differs_on_the_running_variance_of_batch_norm",
    ),
    # Feed-forward and dropout
    Mutation(
        "gelu_is_its_approximation", "functional/feed_forward.py",
        '"gelu": gelu,',
        '"gelu": partial(jax.nn.gelu, approximate=True),',
        "functional/test_feed_forward.py::test_value_and_gradient_equal_the_formula[gelu]",
    ),
    Mutation(
        "the_gate_adds", "functional/feed_forward.py",
        "opened * linear(x, in_kernel, in_bias)",
        "opened + linear(x, in_kernel, in_bias)",
        f"{PARITY}gates_equal_jax_nn",
    ),
    Mutation(
        "dropout_does_not_scale_up", "functional/dropout.py",
        "jnp.where(keep(rng, rate, x.shape), x / (1.0 - rate), ",
        "jnp.where(keep(rng, rate, x.shape), x, ",
        f"{DROPOUT}kept_elements_are_scaled_up_and_the_mean_is_kept",
    ),
    Mutation(
        "dropout_counts_without_the_head", "functional/dropout.py",
        "*jnp.broadcast_arrays(batch[:, None], heads[None])",
        "*jnp.broadcast_arrays(batch[:, None], 0 * heads[None])",
        f"{PARITY}nnx_differs_on_dropout_across_heads_and_examples",
    ),
    Mutation(
        "dropout_comes_before_the_softmax", "attention/dot_product.py",
        "    weights = softmax_over_visible(logits, visible)\n"
        "    weights = dropout_weights(weights, inputs.dropout_rate, inputs.dropout_rng)\n",
        "    weights = dropout_weights(logits, inputs.dropout_rate, inputs.dropout_rng)\n"
        "    weights = softmax_over_visible(weights, visible)\n",
        f"{PARITY}nnx_differs_on_dropout_across_heads_and_examples",
    ),
    # Positions
    Mutation(
        "sine_and_cosine_are_swapped", "functional/positions.py",
        "jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)",
        "jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)",
        f"{POSITIONS}sinusoids_equal_the_loops",
    ),
    Mutation(
        "padding_takes_positions", "functional/positions.py",
        "jnp.cumsum(is_token, axis=-1, dtype=jnp.int32)",
        "jnp.cumsum(is_token | True, axis=-1, dtype=jnp.int32)",
        f"{POSITIONS}positions_are_counted_over_the_real_tokens",
    ),
    Mutation(
        "an_index_outside_is_clipped", "functional/positions.py",
        'mode="fill", fill_value=jnp.nan,',
        'mode="clip",',
        f"{PARITY}nnx_differs_on_a_negative_index",
    ),
    Mutation(
        "the_layouts_of_rope_are_swapped", "functional/rotary.py",
        'half = layout == "half"',
        'half = layout != "half"',
        f"{PARITY}rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "rope_starts_at_one", "functional/rotary.py",
        "jnp.atleast_2d(positions).astype(",
        "jnp.atleast_2d(positions + 1).astype(",
        f"{PARITY}rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "rope_turns_back", "functional/rotary.py",
        "a, b = a * cos - b * sin, a * sin + b * cos",
        "a, b = a * cos + b * sin, b * cos - a * sin",
        f"{PARITY}rope_is_a_product_of_complex_numbers",
    ),
    Mutation(
        "yarn_slows_the_fast", "functional/rotary.py",
        "frequencies * (1 - share) + frequencies / factor * share",
        "frequencies * share + frequencies / factor * (1 - share)",
        f"{ROTARY}yarn_keeps_the_fast_divides_the_slow_and_ramps_between",
    ),
    Mutation(
        "ntk_divides_the_base_alone", "functional/rotary.py",
        "base = base * factor ** (features / (features - 2))",
        "base = base * factor",
        f"{ROTARY}ntk_keeps_the_fastest_and_divides_the_slowest",
    ),
    Mutation(
        "alignment_without_tanh", "attention/additive.py",
        "aligned = jnp.tanh(aligned if score_bias is None else aligned + score_bias)",
        "aligned = aligned if score_bias is None else aligned + score_bias",
        f"{EXAMPLE}[additive.additive_attention]",
    ),
    Mutation(
        "alibi_rewards_distance", "attention/biases.py",
        "return -slopes[:, None, None]",
        "return slopes[:, None, None]",
        f"{EXAMPLE}[biases.alibi]",
    ),
    Mutation(
        "a_long_distance_is_one_bucket_off", "attention/biases.py",
        "far = exact + jnp.searchsorted(",
        "far = exact + 1 + jnp.searchsorted(",
        f"{EXAMPLE}[biases.relative_buckets]",
    ),
    Mutation(
        "buckets_of_past_and_future_are_swapped", "attention/biases.py",
        "jnp.where(distance > 0, side, 0)",
        "jnp.where(distance < 0, side, 0)",
        f"{EXAMPLE}[biases.relative_buckets]",
    ),
    # Layers and pooling
    Mutation(
        "layers_are_summed_unweighted", "functional/pooling.py",
        "share = jax.nn.softmax(logits.astype(wide))",
        "share = jnp.ones_like(logits.astype(wide)) / len(logits)",
        f"{POOLING}layers_are_pooled_and_weighted_value_and_gradient",
    ),
    Mutation(
        "pre_and_post_norm_are_swapped", "nn/encoder.py",
        'if config.norm == "pre" else',
        'if config.norm != "pre" else',
        f"{ENCODER}[post]",
    ),
    Mutation(
        "the_residual_is_dropped", "nn/encoder.py",
        "return x + dropout(y, ",
        "return dropout(y, ",
        f"{ENCODER}[post]",
    ),
    Mutation(
        "the_last_norm_is_dropped", "nn/encoder.py",
        "if self.final_norm is not None:",
        "if False:",
        f"{ENCODER}[pre]",
    ),
    Mutation(
        "cls_takes_the_first_place", "functional/pooling.py",
        "first = is_token & (count_positions(is_token) == 0)",
        "first = is_token & (jnp.arange(x.shape[1]) == 0)",
        f"{POOLING}value_and_gradient_equal_the_loops[cls]",
    ),
    Mutation(
        "last_takes_the_one_before", "functional/pooling.py",
        "count_positions(is_token) == count - 1",
        "count_positions(is_token) == count - 2",
        f"{POOLING}value_and_gradient_equal_the_loops[last]",
    ),
    Mutation(
        "padding_counts_in_the_mean", "functional/pooling.py",
        "count = jnp.maximum(is_token.sum(axis=-1, keepdims=True), 1)",
        "count = jnp.full((len(x), 1), x.shape[1])",
        f"{POOLING}value_and_gradient_equal_the_loops[mean]",
    ),
    Mutation(
        "padding_takes_part_in_the_maximum", "functional/pooling.py",
        "visible = jnp.where(is_token[..., None], x, jnp.finfo(x.dtype).min)",
        "visible = x",
        f"{POOLING}value_and_gradient_equal_the_loops[max]",
    ),
    Mutation(
        "gradient_of_a_short_product_is_long", "functional/precision.py",
        "cotangent = cotangent.astype(one.dtype)",
        "cotangent = cotangent.astype(dtype)",
        "functional/test_precision.py::test_both_gradients_of_a_short_product_are_short_products",
    ),
    # Attribution
    Mutation(
        "neighbours_share_the_presence_of_one", "functional/regions.py",
        "rows = weaken(rows, is_token[:, here], presence[:, here])",
        "rows = weaken(rows, is_token[:, here], presence[:, reach : reach + length])",
        f"{ATTRIBUTION}in_a_region_each_neighbour_has_its_own_presence",
    ),
    Mutation(
        "a_presence_stays_behind_its_token", "models/text_classifier.py",
        "(presence,) = moved or (None,)",
        "presence = presence",
        f"{ATTRIBUTION}a_presence_of_one_is_the_model_and_of_nothing_knows_no_word[patches]",
    ),
    Mutation(
        "gradients_are_taken_at_the_end_of_the_way", "interpret/attribution.py",
        "nodes, weights = nodes_and_weights(count)",
        "nodes, weights = np.ones(count), np.full(count, 1 / count)",
        f"{ATTRIBUTION}the_shares_of_a_sigmoid_are_its_rise_by_the_terms_of_its_sum",
    ),
    Mutation(
        "the_gap_is_spread_over_the_shares", "interpret/attribution.py",
        "values = x.astype(np.float64) * (weights @ gradients)",
        "values = (values := x * (weights @ gradients)) * (all_ - nothing) / values.sum()",
        f"{ATTRIBUTION}nodes_are_doubled_until_the_gap_is_closed_and_not_beyond",
    ),
]  # fmt: skip


def copy_of_the_tree(folder: Path) -> Path:
    """What the tests need, and nothing that was compiled from it."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, tests: list[str], cache: Path) -> subprocess.CompletedProcess:
    """pytest in the folder, on its own copy of the package; compiled programs are shared between
    the runs.
    """
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "1000",  # else the summary is cut
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "-p", "no:cacheprovider"]
        + [f"tests/{test}" for test in tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def caught(mutation: Mutation, cache: Path) -> tuple[bool, str]:
    """Whether the test failed on an assertion, and what it said."""
    with tempfile.TemporaryDirectory() as name:
        folder = copy_of_the_tree(Path(name))
        mutation.apply(folder)
        done = run_tests(folder, [mutation.test], cache)
    failed = re.search(r"^FAILED (\S.*?) - (.*)$", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return False, "the test passes"
    if done.returncode != 1 or failed is None:
        return False, f"the test did not run: {(done.stdout + done.stderr)[-300:]}"
    message = failed[2]
    # A crash says that the breakage was no quiet one, not that the test looks at the numbers.
    return message.startswith(("AssertionError", "assert ", "Failed: DID NOT")), message


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for every mutation; 1 if one survives or if the tests fail without any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", default="", metavar="NAME", help="those with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args(arguments)
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    if not chosen:
        parser.error(f"no mutation has {options.only!r} in its name")

    with tempfile.TemporaryDirectory() as cache:
        cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", cache))
        with tempfile.TemporaryDirectory() as name:
            tests = sorted({mutation.test for mutation in chosen})
            unbroken = run_tests(copy_of_the_tree(Path(name)), tests, cache)
        if unbroken.returncode:
            print(unbroken.stdout[-3000:] + unbroken.stderr[-3000:])
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
