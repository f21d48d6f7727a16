"""Training that is looked at on the way: after the steps of the schedule, on a clock that stands
still meanwhile.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bench.peers import recipe_runs
from bench.peers.recipe_runs import ends_of_epochs, fold_of, looks
from train import imdb
from train.data.dataset import Dataset
from train.data.sample_reviews import sample
from train.evaluation.metrics import score
from train.recipes.imdb import FAST
from train.tasks import classification

# Two places of dropout are enough: of the tokens, and of what the head reads.
ENCODER = replace(FAST.model.encoder, embed_dim=8, num_heads=2, hidden_dim=8, dropout_rate=0.0)
TINY = replace(
    FAST,
    model=replace(
        FAST.model,
        encoder=ENCODER,
        region_features=4,
        max_length=20,
        embedding_dropout_rate=0.0,
    ),
    tokenizer="word:50",
    fit=replace(FAST.fit, epochs=2),
    batch_examples=16,
    buckets=1,
)
SEED = 3  # the default of the program is another


@pytest.fixture(scope="module")
def data() -> Dataset:
    return sample(0, 80, 20)


@pytest.fixture(scope="module")
def fold(data):
    """The texts that `train.imdb` trains on and holds out."""
    return fold_of(data, TINY, SEED, TINY.validation_fraction)


def test_the_ends_of_epochs_are_the_sums_of_their_steps():
    assert ends_of_epochs([3, 2, 4]) == [3, 5, 9]


def test_the_fold_holds_out_a_fraction(data):
    fold = fold_of(data, TINY, seed=0, fraction=0.2)
    assert len(fold.train) == len(fold.train_labels) and fold.classes == data.classes
    assert len(fold.held_out) == len(fold.held_out_labels)
    assert len(fold.train) + len(fold.held_out) == len(data.train)
    assert 0 < len(fold.held_out) <= 0.2 * len(data.train)


@pytest.fixture(scope="module")
def every_step(fold):
    return list(looks(fold, TINY, SEED, lambda steps: range(1, sum(steps) + 1)))


def test_it_looks_after_the_steps_of_the_schedule_and_trains_the_same(fold, every_step):
    asked = []
    ends = list(looks(fold, TINY, SEED, lambda steps: asked.append(steps) or ends_of_epochs(steps)))
    assert [len(steps) for steps in asked] == [TINY.fit.epochs]
    assert [look.step for look in ends] == ends_of_epochs(asked[0])
    assert [look.step for look in every_step] == list(range(1, sum(asked[0]) + 1))
    for look in ends:
        np.testing.assert_array_equal(look.probabilities, every_step[look.step - 1].probabilities)
    first = asked[0][0]
    assert ends[0].loss == pytest.approx(np.mean([x.loss for x in every_step[:first]]))
    assert ends[1].loss == pytest.approx(np.mean([x.loss for x in every_step[first:]]))


def test_the_program_itself_has_these_scores(data, fold, every_step, tmp_path, monkeypatch):
    """train.imdb, every epoch: the same split, weights, order, dropout and average."""
    tiny = replace(TINY, fit=replace(TINY.fit, seed=SEED))
    monkeypatch.setattr(classification, "load_data", lambda _: data)
    monkeypatch.setattr(classification, "recipe_of", lambda *_: tiny)
    monkeypatch.setattr(classification, "write_mistakes", lambda *_, **__: None)
    words = ["--data", "sample", "--out", str(tmp_path / "run"), "--no-baseline"]
    words += ["--seed", str(SEED)]
    assert imdb.main(words) == 0
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    expected = [line for line in lines if "validation_loss" in line]
    assert len(expected) == TINY.fit.epochs and expected[-1]["step"] == every_step[-1].step
    for line in expected:
        look = every_step[line["step"] - 1]
        scores = score(look.probabilities, fold.held_out_labels, fold.classes)
        assert scores["accuracy"] == line["validation_accuracy"]
        assert scores["log_loss"] == pytest.approx(line["validation_loss"], rel=1e-6)


def test_what_is_scored_is_the_average_of_the_weights(fold, every_step, monkeypatch):
    """With the weights themselves in its place they say something else."""
    make = recipe_runs.make_train_step

    def without_average(*arguments):
        step = make(*arguments)

        def train_step(state, batch):
            state, value = step(state, batch)
            return state._replace(average=jax.tree.map(np.array, state.params)), value

        return SimpleNamespace(lower=lambda *_: SimpleNamespace(compile=lambda: train_step))

    monkeypatch.setattr(recipe_runs, "make_train_step", without_average)
    (last,) = looks(fold, TINY, SEED, lambda steps: [sum(steps)])
    assert last.step == every_step[-1].step
    assert np.abs(last.probabilities - every_step[-1].probabilities).max() > 1e-6


def test_the_clock_counts_steps_and_compiling_and_nothing_of_looking(fold, monkeypatch):
    """A second a step, ten to compile, a hundred to score, a thousand for the caller."""
    now = [0.0]

    def spends(seconds, result):
        def call(*_):
            now[0] += seconds
            return result

        return call

    step = spends(1, (SimpleNamespace(average=None), np.float32(0.5)))
    lowered = SimpleNamespace(compile=spends(10, step))
    monkeypatch.setattr(recipe_runs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(
        recipe_runs, "make_train_step", lambda *_: SimpleNamespace(lower=lambda *_: lowered)
    )
    monkeypatch.setattr(recipe_runs, "Scorer", lambda *_: spends(100, np.ones((1, 2))))
    monkeypatch.setattr(recipe_runs.TrainState, "first", lambda *_: None)
    found, steps_alone = [], replace(TINY, model=replace(TINY.model, ngrams=0))
    for look in looks(fold, steps_alone, 0, lambda steps: [2, 3, 5]):
        found.append((look.step, look.seconds, look.compile_seconds, look.validation_seconds))
        now[0] += 1000
    assert found == [(2, 12, 10, 100), (3, 13, 10, 1200), (5, 15, 10, 2300)]


def test_every_shape_is_compiled_once(data, monkeypatch):
    two = replace(TINY, buckets=2, model=replace(TINY.model, max_length=40, ngrams=0))
    shapes = []

    def lower(_, batch):
        shapes.append(batch.tokens.shape)
        return SimpleNamespace(compile=lambda: lambda state, batch: (state, np.float32(0.5)))

    monkeypatch.setattr(recipe_runs, "make_train_step", lambda *_: SimpleNamespace(lower=lower))
    monkeypatch.setattr(recipe_runs, "Scorer", lambda *_: lambda *_: np.ones((1, 2)))
    fold = fold_of(data, two, seed=0, fraction=0.2)
    (last,) = looks(fold, two, 0, lambda steps: [sum(steps)])
    assert len(fold.buckets) == 2 and len(shapes) == len(set(shapes)) == 2
    assert 0 < last.compile_seconds < last.seconds


def test_the_solver_counts_and_parts_are_looked_at_by_themselves(fold, monkeypatch):
    monkeypatch.setattr(
        recipe_runs.FromScratch, "make", as_if_it_took(recipe_runs.FromScratch.make, 1e6)
    )
    (look,) = looks(fold, TINY, SEED, lambda steps: [3], parts=("head", "evidence"))
    assert look.solver_seconds == 1e6 < look.seconds < 1e6 + 600
    assert set(look.alone) == {"head", "evidence"}
    sums = sum(np.log(said) for said in look.alone.values())
    together = np.exp(sums) / np.exp(sums).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(look.probabilities, together, rtol=1e-3)
    assert np.abs(look.probabilities - look.alone["evidence"]).max() > 1e-4


def as_if_it_took(make, seconds):
    def made(*arguments):
        classifier = make(*arguments)
        classifier.solver.seconds = seconds
        return classifier

    return made
