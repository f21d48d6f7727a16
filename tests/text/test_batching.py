"""Claims about transformer_jax/text/batching.py."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.text.batching import (
    Batches,
    bucket_lengths,
    epoch_plans,
    evaluation_plans,
    in_order,
    make_batch,
    round_lengths,
)

PAD = 7
MAX_LENGTH = 90
LENGTHS = st.lists(st.integers(2, MAX_LENGTH), min_size=1, max_size=120)


def imdb_like(n: int = 20_000) -> np.ndarray:
    """Log-normal, cut at 512: median 215, mean about 265, as IMDb has with bpe:16384."""
    rng = np.random.default_rng(0)
    return np.clip(np.exp(rng.normal(np.log(215), 0.65, n)), 12, 512).astype(int)


def examples_of(lengths) -> list[np.ndarray]:
    return [np.full(n, 100 + i, np.int32) for i, n in enumerate(lengths)]


def every_example_once(plans, n: int) -> bool:
    return sorted(i for plan in plans for i in plan.index.tolist()) == list(range(n))


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(1, 6), st.integers(MAX_LENGTH, 1000), st.integers(0, 9))
def test_every_example_comes_once_in_few_shapes(lengths, num_buckets, batch_tokens, epoch):
    buckets = bucket_lengths(lengths, MAX_LENGTH, num_buckets)
    lengths = np.array(lengths)
    for plans in (
        epoch_plans(lengths, buckets, batch_tokens, seed=3, epoch=epoch),
        evaluation_plans(lengths, buckets, batch_tokens),
    ):
        assert every_example_once(plans, len(lengths))
        shapes = {(plan.rows, plan.length) for plan in plans}
        assert len(shapes) <= len(buckets) <= num_buckets
        assert {length for _, length in shapes} <= set(buckets)
        assert all(plan.rows * plan.length <= batch_tokens for plan in plans)
        assert all(lengths[plan.index].max() <= plan.length for plan in plans)
        assert sum(len(plan.index) < plan.rows for plan in plans) <= 1  # the last alone


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(1, 5), st.sampled_from([1, 8, 16]))
def test_buckets_have_the_least_padding_of_all_choices(lengths, num_buckets, multiple):
    needed = {min(-(-n // multiple) * multiple, MAX_LENGTH) for n in lengths[:12]}
    buckets = bucket_lengths(lengths[:12], MAX_LENGTH, num_buckets, multiple)

    def tokens(choice):
        return sum(min(b for b in choice if b >= n) for n in lengths[:12])

    others = itertools.combinations(sorted(needed), min(num_buckets, len(needed)))
    assert tokens(buckets) == min(tokens(c) for c in others if c[-1] == max(needed))
    assert buckets == tuple(sorted(set(buckets))) and len(buckets) <= num_buckets
    assert buckets[-1] == max(needed)


def test_buckets_are_multiples_up_to_the_longest_needed():
    lengths = imdb_like(2000)
    buckets = bucket_lengths(lengths, 512, 6)
    assert len(buckets) == 6 and buckets[-1] == 512
    assert all(b % 16 == 0 for b in buckets)
    assert bucket_lengths([3, 40], 512, 6) == (16, 48)  # the data's longest, not max_length
    assert bucket_lengths([3, 99], 100, 1) == (100,)  # a model has no positions beyond
    assert bucket_lengths([9] * 5, 512, 4) == (16,)


def test_order_depends_on_seed_and_epoch_alone():
    lengths = imdb_like(500)
    buckets = bucket_lengths(lengths, 512, 4)

    def order(seed, epoch):
        plans = epoch_plans(lengths, buckets, 2048, seed=seed, epoch=epoch)
        return [plan.index.tolist() for plan in plans]

    np.random.seed(1)
    first = order(0, 1)
    np.random.seed(2)
    assert order(0, 1) == first
    assert len({str(order(*key)) for key in ((0, 1), (0, 2), (1, 1), (1, 0))}) == 4


def test_buckets_and_neighbours_are_mixed_anew_each_epoch():
    lengths = imdb_like(2000)
    buckets = bucket_lengths(lengths, 512, 4)
    epochs = [epoch_plans(lengths, buckets, 2048, seed=0, epoch=e) for e in range(2)]
    turns = [plan.length for plan in epochs[0]]
    changes = sum(a != b for a, b in itertools.pairwise(turns))
    assert changes > len(turns) / 2  # sorted, it would be 3
    neighbours = [{frozenset(plan.index.tolist()) for plan in plans} for plans in epochs]
    assert len(neighbours[0] & neighbours[1]) <= 1


def test_starting_at_batch_k_equals_skipping_k():
    lengths = imdb_like(300)
    examples, labels = examples_of(lengths), np.arange(300, dtype=np.int32) % 2
    buckets = bucket_lengths(lengths, 512, 3)

    def epoch():
        plans = epoch_plans(lengths, buckets, 2048, seed=5, epoch=2)
        return Batches(plans, examples, labels, PAD)

    whole, k = list(epoch()), 11
    assert len(whole) == len(epoch()) > k
    resumed = epoch()[k:]
    assert len(resumed) == len(whole) - k
    for a, b in zip(whole[k:], resumed, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_batch_holds_its_examples_and_empty_rows_say_so():
    lengths = [5, 20, 3, 31, 8]
    examples, labels = examples_of(lengths), np.array([1, 0, 1, 1, 0], np.int32)
    plans = epoch_plans(lengths, (16, 32), 96, seed=0, epoch=0)
    seen = 0
    for plan in plans:
        batch = make_batch(plan, examples, labels, PAD)
        assert batch.tokens.shape == (plan.rows, plan.length)
        assert [a.dtype for a in batch] == [np.int32, bool, np.int32, bool, np.int32]
        for tokens, is_token, label, real, i in zip(*batch, strict=True):
            length = lengths[i] if real else 0
            np.testing.assert_array_equal(is_token, np.arange(plan.length) < length)
            if real:
                seen += 1
                assert label == labels[i]
                np.testing.assert_array_equal(tokens[: lengths[i]], examples[i])
                assert (tokens[lengths[i] :] == PAD).all()
            else:
                assert i == -1 and label == 0 and (tokens == PAD).all()
    assert seen == 5
    assert make_batch(plans[0], examples, None, PAD).labels.tolist() == [0] * plans[0].rows


def test_evaluation_gives_results_back_in_order():
    lengths = imdb_like(97)
    examples = examples_of(lengths)
    buckets = bucket_lengths(lengths, 512, 4)
    batches = Batches(evaluation_plans(lengths, buckets, 2048), examples, None, PAD)
    pairs = [(b, np.stack([b.tokens[:, 0], b.is_example], axis=1)) for b in batches]
    np.testing.assert_array_equal(in_order(pairs, 97)[:, 0], 100 + np.arange(97))
    for wrong in (pairs[1:], pairs + pairs[:1]):
        with pytest.raises(ValueError, match="once"):
            in_order(wrong, 97)
    assert len(in_order([], 0)) == 0


def test_one_bucket_is_the_fixed_shape_of_the_tutorial():
    lengths = np.minimum(imdb_like(100), 256)
    plans = epoch_plans(lengths, (256,), 16 * 256, seed=0, epoch=0)
    assert {(plan.rows, plan.length) for plan in plans} == {(16, 256)}
    assert len(plans) == 7 and every_example_once(plans, 100)


def test_a_single_text_is_a_single_row():
    (plan,) = evaluation_plans([21], bucket_lengths([21], 512, 6), 8192)
    assert (plan.rows, plan.length) == (1, 32)
    assert evaluation_plans([], (16,), 8192) == []


def test_six_buckets_save_most_of_the_padding():
    lengths = imdb_like()
    everything = len(lengths) * 512
    plans = epoch_plans(lengths, bucket_lengths(lengths, 512, 6), 8192, seed=0, epoch=0)
    computed = sum(plan.rows * plan.length for plan in plans)
    assert everything / computed > 1.7
    assert 1 - lengths.sum() / computed < 0.15  # of all tokens


def test_mistakes_name_their_argument():
    with pytest.raises(ValueError, match="batch_tokens"):
        epoch_plans([3, 40], (16, 48), 47, seed=0, epoch=0)
    with pytest.raises(ValueError, match="longest bucket"):
        evaluation_plans([3, 40], (16,), 64)
    with pytest.raises(ValueError, match="empty"):
        bucket_lengths([], 512, 3)
    with pytest.raises(ValueError, match="max_length"):
        bucket_lengths([513], 512, 3)
    with pytest.raises(ValueError, match="num_buckets"):
        bucket_lengths([3], 512, 0)


def test_any_number_of_texts_makes_few_shapes():
    """A service that embeds one text, then two, then three must not compile each time."""
    shapes = set()
    for number in range(1, 65):
        plans = evaluation_plans([5] * number, (16,), 16 * 64)
        assert sorted(i for plan in plans for i in plan.index) == list(range(number))
        shapes |= {(plan.rows, plan.length) for plan in plans}
    assert len(shapes) == 7


def test_a_text_of_no_tokens_has_a_place():
    """Some tokenizers have no frame."""
    buckets = bucket_lengths([0, 0], 32, 2)
    (plan,) = evaluation_plans([0, 0], buckets, 64)
    assert plan.length == 16 and sorted(plan.index) == [0, 1]


def test_lengths_are_rounded_up_to_few_with_little_padding():
    lengths = np.arange(1, 8193)
    rounded = round_lengths(lengths, 8192)
    assert (rounded >= lengths).all() and (rounded % 16 == 0).all()
    assert len(np.unique(rounded)) == 8 + 4 * 6  # up to 128, then for each doubling
    np.testing.assert_array_equal(round_lengths(rounded, 8192), rounded)
    padding = (rounded - lengths) / lengths
    assert padding[64:].max() < 0.25
    assert (np.diff(rounded) >= 0).all()


def test_rounded_lengths_fit_the_model_and_hold_an_empty_text():
    np.testing.assert_array_equal(round_lengths([0, 3, 24], 24), [16, 16, 24])
