"""Hidden words: which and how many, the loss of them alone, and no leak between the passages of a
row.
"""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.data.packing import make_passages
from train.objectives.masked_lm import (
    Masking,
    make_evaluation,
    make_masked_batch,
    masked_batches,
    summed_loss,
    unigram_loss,
)
from train.trainer.step import mean
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import as_published

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "klmn"]
LENGTH = 32
STACK = StackConfig(1, 12, 6, 17, num_kv_heads=2, norm="pre", final_norm=True, activation="gelu")


def some_texts(number, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 45))) + " zzz" for _ in range(number)]


TEXTS = some_texts(150)


def tokenizer_of(spec):
    # The last word is not among those that it is learned from: unknown, or letters.
    return as_published(train_tokenizer(spec, [text.removesuffix("zzz") for text in TEXTS]))


@pytest.fixture(scope="module")
def by_spec():
    """Two vocabularies: letters and a few pairs, so that words have several pieces; and words."""
    return {spec: tokenizer_of(spec) for spec in ("bpe:290", "word:70")}


def batches_of(tokenizer, rate, *, texts=TEXTS, epoch=0, seed=0, rows=4):
    passages = make_passages(tokenizer, texts, LENGTH)
    masking = Masking.of(tokenizer, rate)
    return masked_batches(passages, LENGTH, rows, masking, seed=seed, epoch=epoch)


def restored(batch):
    """The rows as they were before anything was hidden."""
    tokens = batch.tokens.copy()
    for b, m in zip(*np.nonzero(batch.is_target), strict=True):
        tokens[b, batch.places[b, m]] = batch.targets[b, m]
    return tokens


@pytest.mark.parametrize("spec", ["bpe:290", "word:70"])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_an_epoch_holds_every_token_once_and_its_targets_are_what_stood_there(by_spec, spec, rate):
    batches = batches_of(by_spec[spec], rate)
    found = []
    for batch in batches:
        assert batch.tokens.shape == (4, LENGTH) and batch.places.shape == (4, -(-rate * 32 // 1))
        rows = restored(batch)
        for row, ids in zip(rows, batch.text_ids, strict=True):
            assert (row[ids == 0] == by_spec[spec].pad_id).all()
            found += [tuple(row[ids == k].tolist()) for k in range(1, ids.max() + 1)]
    passages = make_passages(by_spec[spec], TEXTS, LENGTH)
    ends = passages.starts
    wanted = [tuple(passages.tokens[a:b].tolist()) for a, b in pairwise(ends)]  # fmt: skip
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("spec", ["bpe:290", "word:70"])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_as_many_are_hidden_as_the_rate_says_and_never_a_special_one(by_spec, spec, rate):
    tokenizer = by_spec[spec]
    special = {
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    }
    hidden, ordinary = 0, 0
    for epoch in range(3):
        for batch in batches_of(tokenizer, rate, epoch=epoch):
            hidden += batch.is_target.sum()
            rows = restored(batch)
            ordinary += (~np.isin(rows, list(special))).sum()
            assert not special & set(batch.targets[batch.is_target].tolist())
            # Nor does one come in instead, but the mask.
            changed = batch.tokens[batch.tokens != rows]
            assert not (special - {tokenizer.mask_id}) & set(changed.tolist())
            row_of, place_of = np.nonzero(batch.is_target)[0], batch.places[batch.is_target]
            assert len(set(zip(row_of, place_of, strict=True))) == batch.is_target.sum()
    # Of pieces fewer: a row of 30 has a word of three less than it might.
    low = 0.97 if spec.startswith("word") else 0.75
    assert low * rate < hidden / ordinary <= 1.03 * rate


def test_a_word_is_hidden_whole_and_shares_one_fate(by_spec):
    tokenizer = by_spec["bpe:290"]
    passages = make_passages(tokenizer, TEXTS, 200)
    masking = Masking.of(tokenizer, 0.3)
    rng, several = np.random.default_rng(0), 0
    for start, end in pairwise(passages.starts):
        tokens, is_first = passages.tokens[start:end], passages.is_first[start:end]
        hidden, places = masking.hide(tokens, is_first, rng)
        words = np.cumsum(is_first)
        chosen = np.isin(np.arange(len(tokens)), places)
        for word in np.unique(words):
            of_word = words == word
            assert chosen[of_word].all() or not chosen[of_word].any()
            if chosen[of_word].any() and of_word.sum() > 1:
                several += 1
                is_mask = hidden[of_word] == tokenizer.mask_id
                assert is_mask.all() or not is_mask.any()
        np.testing.assert_array_equal(hidden[~chosen], tokens[~chosen])
    assert several > 300


def test_of_ten_hidden_words_eight_are_masks_one_is_another_and_one_stays(by_spec):
    tokenizer = by_spec["word:70"]
    masks = others = kept = 0
    for epoch in range(12):
        for batch in batches_of(tokenizer, 0.3, epoch=epoch):
            now = np.take_along_axis(batch.tokens, batch.places, 1)[batch.is_target]
            was = batch.targets[batch.is_target]
            masks += (now == tokenizer.mask_id).sum()
            kept += (now == was).sum()
            others += ((now != was) & (now != tokenizer.mask_id)).sum()
    shares = np.array([masks, others, kept]) / (masks + others + kept)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.015)  # of 10,000


def test_every_ordinary_word_is_hidden_some_time_and_drawn_some_time(by_spec):
    tokenizer = by_spec["word:70"]
    hidden, drawn = set(), set()
    for epoch in range(12):
        for batch in batches_of(tokenizer, 0.3, epoch=epoch):
            hidden |= set(batch.targets[batch.is_target].tolist())
            drawn |= set(batch.tokens[batch.tokens != restored(batch)].tolist())
    assert hidden == set(range(5, 70))  # the special tokens are 0 to 4
    assert drawn == {tokenizer.mask_id, *range(5, 70)}


def test_what_is_hidden_comes_from_seed_epoch_and_batch(by_spec):
    tokenizer = by_spec["word:70"]
    whole = batches_of(tokenizer, 0.15)
    for k, batch in enumerate(batches_of(tokenizer, 0.15)[3:]):  # as a run that goes on has it
        for one, other in zip(batch, whole[k + 3], strict=True):
            np.testing.assert_array_equal(one, other)
    for changes in ({"epoch": 1}, {"seed": 1}):
        other = batches_of(tokenizer, 0.15, **changes)
        assert len(other) == len(whole)
        assert not np.array_equal(other[0].tokens, whole[0].tokens)
    # Of equal texts, so that nothing but what is hidden can differ.
    alike = [batches_of(tokenizer, 0.3, texts=[" ".join(WORDS[:30])] * 8, epoch=e) for e in (0, 1)]
    first, behind, later = alike[0][0], alike[0][1], alike[1][0]
    for other in (behind, later):
        np.testing.assert_array_equal(first.text_ids, other.text_ids)
        assert not np.array_equal(first.places, other.places)


@pytest.mark.parametrize("rate", [0.001, 0.999])
def test_one_word_at_least_is_hidden_and_all_at_most(by_spec, rate):
    for batch in batches_of(by_spec["word:70"], rate, texts=["bak dal", "fem gin zzz"]):
        count = batch.is_target.sum(1)
        assert count[0] == (1 if rate < 0.5 else 4)
        assert not count[1:].any()  # rows that fill up the batch


def of(batch):
    """Tokens and which of them are real, on the device."""
    return jnp.asarray(batch.tokens), jnp.asarray(batch.text_ids > 0)


def model_of(V, positions="rotary", layers=1, **changes):
    stack = replace(STACK, num_layers=layers)
    config = TextEncoderConfig(
        V, LENGTH, stack, num_segments=0, positions=positions, embedding_dropout_rate=0.0, **changes
    )
    return MaskedLanguageModel(config, rngs=nnx.Rngs(0))


# The first layer attends to all tokens of a text, and the second to a window of them.
WINDOW = {"window": 2, "global_every": 2, "layers": 2}


@pytest.mark.parametrize(
    ("positions", "changes"),
    [("learned", {}), ("rotary", {}), ("rotary", WINDOW)],
    ids=["learned-all", "rotary-all", "rotary-window"],
)
def test_a_packed_text_has_the_vectors_that_it_has_alone(by_spec, positions, changes):
    model = model_of(70, positions, **changes)
    vectors = nnx.jit(lambda model, *args, **options: model.text(*args, **options))
    batch = batches_of(by_spec["word:70"], 0.15, texts=[text[:30] for text in TEXTS[:20]])[0]
    rows = zip(*batch[:2], strict=True)
    texts = [row[ids == k] for row, ids in rows for k in range(1, ids.max() + 1)]
    assert len(texts) > 2 * len(batch.tokens)
    lengths = np.array([len(text) for text in texts])
    is_token = np.arange(LENGTH) < lengths[:, None]
    alone = np.zeros(is_token.shape, np.int32)
    alone[is_token] = np.concatenate(texts)
    packed = np.asarray(vectors(model, *of(batch), text_ids=jnp.asarray(batch.text_ids)))
    wanted = np.asarray(vectors(model, jnp.asarray(alone), jnp.asarray(is_token)))
    # In either the texts stand in the same order.
    np.testing.assert_allclose(packed[batch.text_ids > 0], wanted[is_token], atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_nothing_of_a_text_reaches_another_of_its_row(positions):
    model = model_of(70, positions)
    vectors = nnx.jit(lambda model, tokens, ids: model.text(tokens, ids > 0, text_ids=ids))
    ids = np.array([[1] * 9 + [2] * 12 + [0] * 11], np.int32)
    tokens = np.random.default_rng(0).integers(5, 70, (1, LENGTH)).astype(np.int32)
    first = np.arange(LENGTH) == 3
    one, other = (
        np.asarray(vectors(model, np.where(first, token, tokens).astype(np.int32), ids))[0]
        for token in (6, 7)
    )
    np.testing.assert_array_equal(one[9:], other[9:])
    assert (np.abs(one[:9] - other[:9]).max(-1) > 0).all()


def test_the_loss_is_that_of_a_loop_over_all_words_of_the_vocabulary(by_spec):
    """Each passage alone, the logits of every token, and the targets one by one."""
    V, batch = 70, batches_of(by_spec["word:70"], 0.3)[1]
    model = model_of(V)
    logits_of = nnx.jit(lambda model, *args: model(*args))
    nats, right, number = 0.0, 0, 0
    for b, k in [(b, k) for b, ids in enumerate(batch.text_ids) for k in range(1, ids.max() + 1)]:
        at = np.flatnonzero(batch.text_ids[b] == k)
        alone = np.zeros((1, LENGTH), np.int32)
        alone[0, : len(at)] = batch.tokens[b, at]
        is_token = np.arange(LENGTH)[None] < len(at)
        (logits,) = np.asarray(logits_of(model, jnp.asarray(alone), jnp.asarray(is_token)))
        for place, target, counts in zip(*(x[b] for x in batch[2:]), strict=True):
            if counts and place in at:
                row = logits[place - at[0]].astype(np.float64)
                nats += -(row[target] - np.log(sum(np.exp(row[v]) for v in range(V))))
                right += max(range(V), key=row.__getitem__) == target
                number += 1
    assert number == batch.is_target.sum() > 20
    loss = mean(*nnx.jit(summed_loss)(model, batch, None))
    assert float(loss) == pytest.approx(nats / number, rel=1e-5)
    graph, params = nnx.split(model, nnx.Param)
    found = make_evaluation(graph, [batch, batch])(params)
    assert found[0] == pytest.approx(2 * nats, rel=1e-5)
    assert found[1:] == (2 * right, 2 * number)


def test_places_that_only_fill_the_shape_move_no_loss_and_no_gradient(by_spec):
    model, batch = model_of(70), batches_of(by_spec["word:70"], 0.15)[0]
    more = [np.pad(x, ((0, 0), (0, 3)), constant_values=9) for x in batch[2:4]]
    padded = batch._replace(
        places=more[0], targets=more[1], is_target=np.pad(batch.is_target, ((0, 0), (0, 3)))
    )
    gradient = nnx.jit(nnx.value_and_grad(lambda model, batch: summed_loss(model, batch, None)[0]))
    (one, of_one), (other, of_other) = gradient(model, batch), gradient(model, padded)
    np.testing.assert_allclose(one, other, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(of_one), jax.tree.leaves(of_other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_loss_of_frequencies_is_their_entropy(by_spec):
    tokenizer = by_spec["word:70"]
    masking = Masking.of(tokenizer, 0.15)
    learn = make_passages(tokenizer, ["bak " * 30 + "dal " * 9], 99)
    held_out = make_passages(tokenizer, ["bak bak dal zzz"], 99)
    total = 39 + 65  # one for each of the ordinary tokens
    wanted = -(2 * np.log(31 / total) + np.log(10 / total)) / 3
    assert unigram_loss(learn, held_out, masking) == pytest.approx(wanted)


def test_a_batch_without_any_target_is_no_nan(by_spec):
    model, batch = model_of(70), batches_of(by_spec["word:70"], 0.3)[0]
    empty = batch._replace(is_target=np.zeros_like(batch.is_target))
    loss = nnx.jit(summed_loss)
    assert float(mean(*loss(model, empty, None))) == 0.0
    tokenizer = by_spec["word:70"]
    passages, masking = make_passages(tokenizer, TEXTS, LENGTH), Masking.of(tokenizer, 0.3)
    blank = make_masked_batch(passages, [], (4, LENGTH), masking, np.random.default_rng(0))
    assert np.isfinite(float(mean(*loss(model, blank, None))))
