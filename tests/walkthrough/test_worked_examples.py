"""The worked examples of the source documents come out as they should, and as printed where that is
right.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from train.recipes.imdb import TUTORIAL
from transformer_jax.walkthrough import worked
from transformer_jax.walkthrough.worked import EXAMPLES, WORKED
from transformer_jax.walkthrough.worked.compare import (
    NOT_COMPUTED,
    as_number,
    compare,
    find,
    flat,
    is_labels,
    unit,
)

steps = cache(worked.steps)
compared = cache(compare)


def array(name, step):
    return find(steps(name), step)[1]


def test_there_are_33_examples_and_this_folder_shows_the_same_file():
    examples = json.loads(
        (Path(__file__).parents[1] / "data" / "worked_examples.json").read_text("utf-8")
    )
    assert {example["id"]: example for example in examples} == EXAMPLES
    assert len(examples) == len(WORKED) == 33


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_steps_with_fitting_names_axes_and_labels(name):
    told = steps(name)
    assert len(told) >= 2
    assert len({step.name for step in told}) == len(told)
    for step in told:
        assert isinstance(step.array, np.ndarray), step.name
        assert step.array.dtype.kind in "biuf", step.name
        assert len(step.axes.split()) == step.array.ndim, step.name
        assert step.equation, step.name
        assert not step.rows or len(step.rows) == step.array.shape[-2], step.name
        assert not step.columns or len(step.columns) == step.array.shape[-1], step.name


@pytest.mark.parametrize("name", EXAMPLES)
def test_ours_is_the_recomputed(name):
    example = EXAMPLES[name]
    recomputed = {k: v for k, v in flat(example["recomputed"]).items() if k not in NOT_COMPUTED}
    assert recomputed
    for key, expected in recomputed.items():
        np.testing.assert_allclose(
            array(name, key), expected, **example["tolerance"]["recomputed"], err_msg=key
        )


@pytest.mark.parametrize("name", [name for name, one in EXAMPLES.items() if one["agrees"]])
def test_ours_is_the_printed_where_that_is_right(name):
    tolerance = EXAMPLES[name]["tolerance"]["printed"]
    assert compared(name)
    for key, one in compared(name).items():
        assert not one.wrong.any(), key
        if is_labels(one.printed):
            assert list(one.step.columns[: len(one.printed)]) == one.printed
        elif isinstance(tolerance, dict):
            printed = [as_number(x) for x in one.printed]
            np.testing.assert_allclose(one.computed, printed, **tolerance, err_msg=key)
        else:
            rounded = (
                0.0005 if (name, key) == ("artist_softmax", "scaled") else 0.0
            )  # 3.0615 is 3.062
            np.testing.assert_allclose(
                one.computed, one.printed, rtol=0, atol=max(tolerance, rounded * 1.001), err_msg=key
            )


@pytest.mark.parametrize("name", [name for name, one in EXAMPLES.items() if not one["agrees"]])
def test_the_printed_differs_from_ours_where_it_is_wrong(name):
    if name == "layer_norm_eps":  # it prints a formula
        wrong = np.abs(array(name, "file") - array(name, "definition")).max() > 0.1
    else:
        wrong = any(one.wrong.any() for one in compared(name).values())
    assert wrong


def test_nothing_that_is_printed_is_passed_over():
    for name, example in EXAMPLES.items():
        assert set(flat(example["printed"])) - NOT_COMPUTED == set(compared(name)), name
    printed_or_recomputed = (
        key for one in EXAMPLES.values() for part in ("printed", "recomputed") for key in one[part]
    )
    assert set(printed_or_recomputed) >= NOT_COMPUTED


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("bank_scaled", {"scaled"}),
        ("batch_norm_layer", {"mean"}),
        ("sinusoid_d512", {"dim0", "dim1", "dim128"}),
        ("sinusoid_table", {"dim0"}),
        ("cat_sat", {"scores"}),
        ("bread_table", {"Q"}),
        ("bright_qkv", set()),
        ("artist_qkv", set()),
        ("numpy_multiply", {"matmul"}),
    ],
)
def test_what_the_notes_call_right_is_right_and_nothing_else(name, right):
    assert {key for key, one in compared(name).items() if not one.wrong.any()} == right


def test_of_the_wrong_arrays_only_the_rows_that_the_notes_name_are_wrong():
    for key in ("weights", "output"):
        assert compared("cat_sat")[key].wrong.any(axis=1).tolist() == [False, False, True]
    wrong = compared("bread_table")["scores"].wrong
    assert np.argwhere(wrong).tolist() == [[1, 2]]
    assert compared("sinusoid_bounded")["sin"].wrong.tolist() == [False, True, True]
    assert compared("variance_table")["variance"].wrong.tolist() == [False, False, False, True]


# What single examples claim beside their numbers
# -----------------------------------------------------------


def test_the_measured_variance_is_that_of_the_formula():
    np.testing.assert_allclose(
        array("variance_table", "measured"), array("variance_table", "variance"), rtol=0.03
    )


def test_masking_after_the_softmax_leaks_until_the_rows_are_renormalised():
    sums = array("causal_weights", "row_sums")
    assert (sums[:-1] < 0.9).all() and abs(sums[-1] - 1) < 1e-9
    np.testing.assert_allclose(
        array("causal_weights", "renormalised"), array("causal_weights", "weights"), atol=1e-9
    )


def test_a_kid_that_smiles_contradicts_itself_whatever_the_weights():
    # Two printed digits of the weights leave 0.2 and 24 of doubt.
    assert np.abs(array("kid_smiles", "excess_scores")).max() > 3
    assert np.abs(array("kid_smiles", "excess_values")).max() > 100
    assert not array("kid_smiles", "excess_x").any()
    # Of honest numbers for the same tokens both are 0: the argument holds.
    x = np.array(EXAMPLES["kid_smiles"]["inputs"]["X"], float)
    rng = np.random.default_rng(0)
    query, key, value = (x @ rng.standard_normal((6, 3)) / 9 for _ in range(3))
    scores = query @ key.T / 3**0.5
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    context = weights @ value
    honest = {
        "weights_head1": weights.tolist(),
        "context_head1": context.tolist(),
        "final": np.concatenate([context, context], axis=1).tolist(),
    }
    told = WORKED["kid_smiles"](EXAMPLES["kid_smiles"] | {"printed": honest})
    assert find(told, "consistent")[1]


def test_the_ids_of_bert_do_not_hang_on_the_rest_of_the_vocabulary():
    """The published one holds 30,522 pieces; a whole word that it holds is one token, whatever its
    pieces.
    """
    example = json.loads(json.dumps(EXAMPLES["bert_encode"]))
    pieces = {"math": 8785, "##ematics": 17898, "lin": 11409, "##ear": 14644, "a": 1037, "l": 1048}
    example["inputs"]["vocabulary"] |= pieces
    assert find(WORKED["bert_encode"](example), "same")[1]
    del example["inputs"]["vocabulary"]["mathematics"]
    assert not find(WORKED["bert_encode"](example), "same")[1]


def test_the_model_of_the_listings_is_the_tutorial_recipe():
    inputs, model = EXAMPLES["imdb_model"]["inputs"], TUTORIAL.model
    assert (model.vocab_size, model.max_length) == (inputs["vocab"], inputs["max_len"])
    encoder = model.encoder
    assert (encoder.embed_dim, encoder.hidden_dim) == (inputs["dim"], inputs["ff"])
    assert encoder.num_layers == inputs["layers_constructor"]
    assert encoder.num_heads == array("imdb_model", "heads")
    assert array("imdb_special_tokens", "vocab") == model.vocab_size


# How printed numbers are read
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "number", "last_place"),
    [
        (0.46, 0.46, 0.01),
        (1.0, 1.0, 0.1),
        (3, 3.0, 0.0),
        (0.000502, 0.000502, 1e-6),
        ("-inf", -np.inf, 0.0),
        ("110M", 110e6, 0.0),
        ("1.5B", 1.5e9, 0.0),
        ("2pi*2.15", 2 * np.pi * 2.15, 2 * np.pi * 0.01),
    ],
)
def test_a_printed_number_is_read_with_its_last_place(printed, number, last_place):
    assert as_number(printed) == pytest.approx(number)
    assert unit(printed) == pytest.approx(last_place)


def test_zeros_at_the_end_count_as_places_where_they_are_known():
    assert unit(0.5, 4) == pytest.approx(1e-4)


@pytest.mark.usefixtures("as_users_run_it")
def test_an_unknown_example_or_step_is_named():
    with pytest.raises(ValueError, match=r"no worked example 'cat'; there are artist_qkv, "):
        worked.steps("cat")
    with pytest.raises(ValueError, match="no step, column or row is called 'nothing'"):
        find(steps("cat_sat"), "nothing")
