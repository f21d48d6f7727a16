"""The claims of docs/research/claims.md, measured on small sizes: each as an assertion that could
fail.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from bench.claims import context, depth, masking, norms, positions, probe, scores, surface
from bench.claims.__main__ import PROGRAM, results_of
from bench.pages.claims import Claim, cell

DOCS = Path(__file__).parents[2] / "docs"


class TestScores:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return scores.statistics(0, 64, batch=16)

    def test_the_variance_of_a_score_is_d_times_the_square_of_its_scale(self, found):
        for row in found.values():
            assert math.isclose(row["variance"], row["predicted"], rel_tol=0.05)
        predicted = [row["predicted"] for row in found.values()]
        np.testing.assert_allclose(predicted, [64, 1, 1 / 64, 64 / 64**4])

    def test_unscaled_scores_choose_one_key_and_overscaled_ones_none(self, found):
        unscaled, root, linear, square = found.values()
        assert unscaled["largest"] > 0.5 > 0.2 > root["largest"] > square["largest"] > 1 / 64
        assert unscaled["entropy"] < 1 < root["entropy"] < linear["entropy"] < square["entropy"]
        assert math.isclose(square["entropy"], math.log(64), rel_tol=1e-5)

    def test_a_dot_product_is_length_times_length_times_cosine(self):
        for _, long, other, loop, product in scores.angles(1):
            assert math.isclose(loop, product, abs_tol=1e-12 * long * other, rel_tol=1e-12)

    def test_the_loop_is_the_dot_product_of_any_vectors(self):
        random = np.random.default_rng(0)
        for _ in range(20):
            a, b = random.standard_normal((2, 7)) * random.uniform(0.1, 100)
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            assert math.isclose(scores.loop_dot(a, b), a @ b, rel_tol=1e-9)
            assert math.isclose(lengths * scores.cosine(a, b), a @ b, rel_tol=1e-9)
            assert -1 <= scores.cosine(a, b) <= 1


class TestCausalLeak:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return dict(
            zip(("before", "after", "renormalised"), masking.leaks(0).values(), strict=True)
        )

    def test_zeroing_after_the_softmax_leaks_the_future(self, found):
        assert found["before"]["change"] == 0
        assert found["after"]["change"] > 0.1

    def test_the_leak_is_in_the_derivatives_right_of_the_diagonal(self, found):
        future = np.triu_indices(6, k=1)
        assert (found["before"]["influence"][future] == 0).all()
        assert (found["after"]["influence"][future] > 0).all()
        assert found["renormalised"]["influence"][future].max() < 1e-6

    def test_dividing_by_the_sum_equals_masking_before(self, found):
        assert found["renormalised"]["difference"] < 1e-6 < found["after"]["difference"]

    def test_dividing_by_the_sum_fails_where_the_future_takes_all(self, found):
        assert found["before"]["finite"] and not found["renormalised"]["finite"]


class TestPositions:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return positions.reordered(0)

    def test_without_positions_attention_is_equivariant_and_its_mean_invariant(self, found):
        changed = found["none"]
        assert changed["from P f(x)"] < 1e-5 and changed["of the mean"] < 1e-5
        assert changed["from f(x)"] > 0.5

    def test_with_positions_it_is_neither(self, found):
        assert min(found["sinusoidal"].values()) > 0.01

    @pytest.mark.parametrize("offset", [1, 7, 64])
    def test_a_shift_is_one_rotation_of_every_position(self, offset):
        turn = positions.rotation(offset, 16)
        np.testing.assert_allclose(turn @ turn.T, np.eye(16), atol=1e-12)
        right, wrong = positions.rotation_errors(offset, features=16, length=200)
        assert right < 1e-4 and wrong > 0.5

    def test_rope_scores_depend_on_the_distance_alone(self):
        for name, found in positions.score_maps(0, T=24, H=16).items():
            within, between = positions.spreads(found)
            assert between > 0.1
            assert within < 1e-5 if name.startswith("RoPE") else within > 0.1


class TestAddingPositions:
    def test_a_code_as_wide_as_the_word_costs_four_times_the_encoder(self):
        assert round(probe.encoder_parameters(128) / probe.encoder_parameters(64), 1) == 4.0

    def test_a_wide_sum_gives_back_word_and_position_of_pairs_never_seen(self):
        found = probe.accuracies(0, 128, words=40, positions=12)
        assert min(found["added"].values()) > 0.95

    def test_in_few_features_the_sum_loses_positions(self):
        found = probe.accuracies(0, 16, words=40, positions=12)
        assert found["added"]["position"] < 0.6 < found["beside"]["position"]

    def test_the_probe_cannot_read_what_is_not_there(self):
        random = np.random.default_rng(0)
        x, labels = random.standard_normal((2000, 8)), random.integers(0, 10, 2000)
        assert probe.probe(x, labels, random.random(2000) < 0.2) < 0.2


def test_batch_norm_sees_padding_and_batch_mates_and_layer_norm_does_not():
    of_batch, running, layer = norms.changes(0).values()
    assert min(of_batch.values()) > 0.1
    assert set(running.values()) == set(layer.values()) == {0.0}


@pytest.mark.optimized
@pytest.mark.slow  # stacks of sixty-four layers
class TestGradients:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return depth.first_gradients(0, (1, 4, 16), draws=3, T=6, D=16)

    def test_residual_connections_and_norms_hold_the_gradient(self, found):
        norms = found["residual and norm"]
        assert norms.max() / norms.min() < 10

    def test_without_either_it_vanishes(self, found):
        medians = np.median(found["neither"], axis=1)
        assert (np.diff(medians) < 0).all() and medians[-1] < 1e-3 * medians[0]

    def test_residual_connections_alone_let_it_explode(self, found):
        medians = np.median(found["residual alone"], axis=1)
        assert medians[-1] > 1e3 * medians[0]

    def test_norms_alone_let_it_scatter(self, found):
        spread = {name: norms[-1].max() / norms[-1].min() for name, norms in found.items()}
        assert spread["norm alone"] > spread["residual and norm"]


@pytest.mark.optimized
@pytest.mark.slow  # two trainings
class TestLossSurface:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return surface.surfaces(0, L=4, T=6, steps=250, grid=13, pairs=1)

    def test_only_the_stack_with_residual_connections_learns(self, found):
        assert found["with residual connections"]["loss"] < 0.2
        assert found["without"]["loss"] > 1.0

    def test_the_loss_is_smoother_with_residual_connections(self, found):
        smooth, rough = (row["heights"][0] for row in found.values())
        assert surface.hollows(smooth) < surface.hollows(rough)
        assert surface.bend(smooth) < surface.bend(rough)

    def test_a_trained_stack_stands_at_the_bottom(self, found):
        heights = found["with residual connections"]["heights"][0]
        assert np.unravel_index(heights.argmin(), heights.shape) == (6, 6)

    def test_each_filter_of_a_direction_is_as_long_as_the_model_s(self):
        random = np.random.default_rng(0)
        kernel = random.standard_normal((2, 5, 3, 4)).astype(np.float32)
        drawn = surface.direction(random, {"query": kernel})["query"]
        np.testing.assert_allclose(
            np.linalg.norm(drawn, axis=1), np.linalg.norm(kernel, axis=1), rtol=1e-5
        )

    def test_hollows_and_bends_of_known_surfaces(self):
        x, y = np.meshgrid(np.arange(-4, 5.0), np.arange(-4, 5.0))
        bowl = x**2 + y**2
        assert surface.hollows(bowl) == 1 and surface.hollows(x + y) == 0
        assert surface.hollows(np.minimum((x - 2) ** 2, (x + 2) ** 2) + y**2) == 2
        assert math.isclose(surface.bend(bowl), 2 / 32) and surface.bend(x + y) == 0


def test_bank_has_one_vector_in_a_table_and_two_behind_attention():
    _, found = context.banks(0, steps=150, each=3)
    table, untrained, trained = map(context.same_and_other, found.values())
    np.testing.assert_allclose(table, 1.0)
    assert untrained[1] < 1 - 1e-4  # another vector, but not another meaning
    assert trained[0] > 0.9 and trained[1] < 0.5 < untrained[1]


class TestPage:
    def test_numbers_show_three_digits(self):
        values = [0.0, 1.0, 0.12345, 123456.7, 1e-9, 12345, True, "x"]
        shown = ["0", "1", "0.123", "1.2e+05", "1.0e-09", "12,345", "yes", "x"]
        assert [cell(value) for value in values] == shown

    def test_a_page_is_written_with_its_figure_and_numbers(self, tmp_path):
        def draw(figure):
            figure.subplots().plot([1, 2])

        claim = Claim("name", "A title", "A text.", ("a",), [(1.0,)], draw)
        options = PROGRAM.parse(PROGRAM.parser(), ["--docs", str(tmp_path)])
        assert PROGRAM.run(options, lambda: results_of([claim], options)) == 0
        assert "## A title" in (tmp_path / "research/claims.md").read_text(encoding="utf-8")
        assert (tmp_path / "figures" / "claims-name.png").read_bytes().startswith(b"\x89PNG")
        numbers = json.loads((tmp_path / "results" / "claims.json").read_text(encoding="utf-8"))
        assert numbers["claims"]["name"]["rows"] == [[1.0]]

    def test_the_written_page_has_every_claim_of_its_numbers_and_every_figure(self):
        text = (DOCS / "research/claims.md").read_text(encoding="utf-8")
        numbers = json.loads((DOCS / "results" / "claims.json").read_text(encoding="utf-8"))
        assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
            claim["title"] for claim in numbers["claims"].values()
        ]
        figures = re.findall(r"\]\(\.\./(figures/.*?)\)", text)
        assert figures and all((DOCS / figure).exists() for figure in figures)
