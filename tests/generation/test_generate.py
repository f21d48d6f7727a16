"""Generation: the cached loop writes what the whole text would, for any padding, batch, stop and
key.
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from tests.helpers.compiled import compiled as compiled_module
from tests.nn.test_kv_cache import MODELS, B, T, V, compiled, model_of, stack
from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import (
    _fed,
    _first,
    _generate,
    generate,
    generate_target,
    next_tokens,
    stream,
)
from transformer_jax.generation.sampling import Sampling
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.models.seq2seq import SequenceToSequence

pytestmark = pytest.mark.usefixtures("strict")

PROMPT = np.random.default_rng(4).integers(0, V, (B, 4))
NEW = T - 4


def uncached(name, prompt, new):
    """Greedy, every token from the whole text; its log-probability."""
    tokens, total = np.zeros((B, T), np.int64), np.zeros(B)
    tokens[:, : prompt.shape[1]] = prompt
    for t in range(prompt.shape[1], prompt.shape[1] + new):
        logits = jax.nn.log_softmax(compiled(name)[0](jnp.array(tokens)))
        row = np.asarray(logits)[:, t - 1]
        tokens[:, t] = row.argmax(axis=1)
        total += row.max(axis=1)
    return tokens[:, prompt.shape[1] :], total


FEW = ("learned", "llama", "window, rotary")


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_the_cached_loop_writes_what_the_whole_text_would(name):
    found = generate(model_of(name), PROMPT, max_tokens=NEW)
    tokens, log_probability = uncached(name, PROMPT, NEW)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.log_probability, log_probability, rtol=1e-4)
    assert found.lengths.tolist() == [NEW] * B


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_is_continued_as_if_it_were_alone(side):
    model = model_of("llama")
    prompt, is_token = np.zeros((B, 6), np.int64), np.zeros((B, 6), bool)
    for b, length in enumerate((2, 5)):
        where = slice(0, length) if side == "right" else slice(6 - length, 6)
        prompt[b, where], is_token[b, where] = np.resize(PROMPT[b], length), True
    found = generate(model, prompt, is_token, max_tokens=5)
    for b in range(B):
        alone = generate(model, prompt[b : b + 1, is_token[b]], max_tokens=5)
        assert found.tokens[b].tolist() == alone.tokens[0].tolist()


def test_members_stop_at_different_times():
    model = model_of("learned")
    free = np.asarray(generate(model, PROMPT, max_tokens=NEW).tokens)
    stop = int(free[0, 2])
    found = generate(model, PROMPT, max_tokens=NEW, stop=[stop], pad_id=V - 1)
    for b in range(B):
        where = np.flatnonzero(free[b] == stop)
        length = int(where[0]) + 1 if len(where) else NEW
        assert int(found.lengths[b]) == length
        assert found.tokens[b].tolist() == [*free[b, :length].tolist(), *[V - 1] * (NEW - length)]
    assert int(found.lengths[0]) <= 3


def test_a_key_is_a_text():
    model = model_of("learned")
    sampling = Sampling(temperature=2.0, top_p=0.95, repetition_penalty=1.2)
    first, again, other = (
        generate(model, PROMPT, max_tokens=NEW, sampling=sampling, key=jax.random.key(seed))
        for seed in (1, 1, 2)
    )
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.tokens.tolist() != other.tokens.tolist()


@pytest.mark.parametrize("sampling", [None, Sampling(top_k=5, repetition_penalty=1.5)], ids=str)
def test_a_stream_is_the_same_text(sampling):
    model, options = model_of("window"), {"max_tokens": NEW, "sampling": sampling, "stop": [5]}
    options["key"] = jax.random.key(3)
    whole = np.asarray(generate(model, PROMPT, **options).tokens)
    streamed = np.stack(list(stream(model, PROMPT, **options)), axis=1)
    np.testing.assert_array_equal(streamed, whole[:, : streamed.shape[1]])
    assert (whole[:, streamed.shape[1] :] == 0).all()


def test_a_stream_with_other_settings_does_not_compile_the_model_again():
    model, programs = model_of("window"), []
    for sampling, stop in ((Sampling(0.5, top_p=0.9), [5]), (Sampling(2.0, top_k=3), [])):
        tokens = stream(
            model, PROMPT, max_tokens=2, sampling=sampling, stop=stop, key=jax.random.key(3)
        )
        assert len(list(tokens)) == 2
        programs.append((_first._cache_size(), _fed._cache_size()))
    assert programs[0] == programs[1]


def test_other_numbers_and_stop_tokens_do_not_compile_generation_again():
    model, programs = model_of("window"), []
    for sampling, stop, pad_id in (
        (Sampling(0.5, 3, 0.9, 0.1, 1.2), [5, 6], 0),
        (Sampling(2.0, 3, 0.3, 0.2, 3.0), [7, 8], 1),
    ):
        options = {"sampling": sampling, "stop": stop, "pad_id": pad_id, "key": jax.random.key(3)}
        generate(model, PROMPT, max_tokens=2, **options)
        programs.append(_generate._cache_size())
    assert programs[0] == programs[1]


def test_the_penalty_knows_prompt_and_text():
    """With a huge one nothing that was used comes again while there is anything else."""
    model = model_of("learned")
    sampling = Sampling(temperature=1e-4, repetition_penalty=1e6)
    found = generate(model, PROMPT[:, :3], max_tokens=6, sampling=sampling, key=jax.random.key(0))
    for b in range(B):
        text = [*PROMPT[b, :3].tolist(), *found.tokens[b].tolist()]
        new = text[3:]
        assert len(set(new)) == len(new)
        assert not set(new) & set(text[:3])


def test_next_tokens_are_the_softmax():
    model = model_of("learned")
    is_token = np.array([[True] * 4, [True, True, False, False]])
    best, probabilities = next_tokens(model, PROMPT, is_token, 3)
    for b, length in enumerate((4, 2)):
        whole = compiled("learned")[0](jnp.array(np.pad(PROMPT, ((0, 0), (0, T - 4)))))
        row = np.asarray(jax.nn.softmax(whole))[b, length - 1]
        assert best[b].tolist() == np.argsort(-row, kind="stable")[:3].tolist()
        np.testing.assert_allclose(probabilities[b], np.sort(row)[::-1][:3], rtol=1e-5)


@pytest.mark.usefixtures("as_users_run_it")
def test_a_count_of_next_tokens_that_is_no_count_is_one_line():
    for count, error in ((-1, ValueError), (2.5, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match="count must be"):
            next_tokens(model_of("learned"), PROMPT, None, count)


@cache
def translator():
    config = SequenceToSequenceConfig(5, 6, encoder=stack(), decoder=stack())
    model = SequenceToSequence(config, rngs=nnx.Rngs(5))  # a penalty changes its best text
    graph, params = nnx.split(model, nnx.Param)
    params = jax.tree.map(lambda x: 2 * x, params)
    return nnx.merge(graph, params)


SOURCE = np.array([[1, 2, 3, 4], [4, 3, 0, 0]])
IS_SOURCE = np.array([[True] * 4, [True, True, False, False]])


@cache
def every_target(b, begin, stop, most):
    """(log-probability, tokens) of every text that ends with `stop`, or has `most` tokens without
    it.
    """
    texts = [
        text
        for length in range(1, most + 1)
        for text in itertools.product(range(5), repeat=length)
        if stop not in text[:-1] and (text[-1] == stop or length == most)
    ]
    # One batch: what pads a text stands behind it, where no token of the text sees it.
    padded = np.array([[*text, *[stop] * (most - len(text))] for text in texts])
    targets = np.insert(padded, 0, begin, axis=1)[:, :-1]
    source, is_source = (np.repeat(x[b : b + 1], len(texts), axis=0) for x in (SOURCE, IS_SOURCE))
    logits = compiled_module(translator())(source, is_source, targets, np.ones(targets.shape, bool))
    logp = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=2)
    each = np.take_along_axis(logp, padded[..., None], axis=2)[..., 0]
    return [(sum(row[: len(text)]), text) for row, text in zip(each.tolist(), texts, strict=True)]


@pytest.mark.parametrize("alpha", [0.0, pytest.param(0.6, marks=pytest.mark.slow), 2.0])
def test_a_wide_beam_finds_the_best_of_all_texts(alpha):
    """125 beams hold every beginning of up to three tokens of five."""
    model, begin, stop, most = translator(), 0, 1, 4
    search = BeamSearch(125, alpha)
    found = generate_target(
        model, SOURCE, IS_SOURCE, begin=begin, max_tokens=most, search=search, stop=[stop]
    )
    for b in range(B):
        every = every_target(b, begin, stop, most)
        _, logp, text = max(
            (logp / ((5 + len(text)) / 6) ** alpha, logp, text) for logp, text in every
        )
        length = int(found.lengths[b])
        assert found.tokens[b, :length].tolist() == list(text)
        np.testing.assert_allclose(found.log_probability[b], logp, rtol=1e-4)


def test_the_penalty_decides_between_those_texts():
    """So that the test above can fail."""
    best = {
        alpha: max((p / ((5 + len(t)) / 6) ** alpha, t) for p, t in every_target(1, 0, 1, 4))[1]
        for alpha in (0.0, 2.0)
    }
    assert best[0.0] == (1,) and len(best[2.0]) > 1


def test_one_beam_is_greedy_and_more_are_never_worse_without_a_penalty():
    model = translator()
    options = {"begin": 0, "max_tokens": 5, "stop": [1]}
    greedy = generate_target(model, SOURCE, IS_SOURCE, search=BeamSearch(1, 0.0), **options)
    found = generate_target(model, SOURCE, IS_SOURCE, search=BeamSearch(3, 0.0), **options)
    assert (np.asarray(found.log_probability) >= np.asarray(greedy.log_probability) - 1e-5).all()


def test_beams_of_a_language_model_go_on_from_one_another():
    """The log-probability that a beam reports is that of its text, read whole."""
    model = model_of("learned")
    found = generate(model, PROMPT, max_tokens=NEW, search=BeamSearch(3, 0.0))
    text = np.concatenate([PROMPT, found.tokens], axis=1)
    logp = np.asarray(jax.nn.log_softmax(compiled("learned")[0](jnp.array(text))))
    for b in range(B):
        own = sum(logp[b, t - 1, text[b, t]] for t in range(4, T))
        np.testing.assert_allclose(found.log_probability[b], own, rtol=1e-4)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": NEW + 1}, "make 12 tokens, more than the model's max_length=11"),
        ({"stop": [V]}, f"no token {V} to stop at: the vocabulary has {V}"),
        ({"sampling": Sampling()}, "sampling needs a key"),
        (
            {"search": BeamSearch(2), "sampling": Sampling(), "key": jax.random.key(0)},
            "pass search or sampling",
        ),
        ({"max_tokens": -1}, "max_tokens must be 1 or more"),
        ({"is_token": np.array([[True] * 4, [False] * 4])}, "an empty prompt"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        generate(model_of("learned"), PROMPT, **{"max_tokens": 2} | options)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 0}, "beams must be 1 or more; got 0"),
        ({"alpha": -0.1}, "alpha must be 0 or more; got -0.1"),
    ],
)
def test_a_search_that_cannot_be_says_why(settings, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(**settings)


@pytest.mark.usefixtures("as_users_run_it")
def test_what_cannot_be_streamed_is_said():
    for options, message in (({"max_tokens": 0}, "1 or more; got 0"), ({"stop": [V]}, "no token")):
        with pytest.raises(ValueError, match=message):
            next(stream(model_of("learned"), PROMPT, **{"max_tokens": 2} | options))
