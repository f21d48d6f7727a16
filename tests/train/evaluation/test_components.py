"""What the parts of a model say by themselves, beside what the whole says."""

import numpy as np

from train.evaluation.components import compare_with_parts


def test_each_part_is_judged_on_the_same_texts_as_the_whole():
    # right: the whole in 0, 1, 2 of five texts, "a" in 0, 1, "b" in 2, 3, 4
    labels = np.array([0, 1, 2, 0, 1])
    whole, a, b = (np.eye(3)[said] for said in ([0, 1, 2, 1, 2], [0, 1, 0, 1, 2], [1, 2, 2, 0, 1]))
    found = compare_with_parts(whole, {"a": a, "b": b}, labels, ("x", "y", "z"))["alone"]
    assert [found[part]["test_accuracy"] for part in "ab"] == [0.4, 0.6]
    assert found["a"]["mcnemar"] == {"b": 1, "c": 0, "p_value": 1.0}
    assert (found["b"]["mcnemar"]["b"], found["b"]["mcnemar"]["c"]) == (2, 2)
    low, high = found["b"]["test_accuracy_interval"]
    assert 0 < low < 0.6 < high < 1
