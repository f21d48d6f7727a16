"""What the parts of a classifier say of the test texts by themselves: whether a network adds to its
n-grams is seen, not believed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from train.evaluation.metrics import mcnemar, score


def compare_with_parts(
    whole: Float[np.ndarray, "n C"],
    parts: Mapping[str, Float[np.ndarray, "n C"]],
    labels: Int[np.ndarray, " n"],
    classes: Sequence[str],
) -> dict:
    """The parts' share of the report, from the probabilities that each gives alone.

    McNemar's b are the texts that the whole alone has right, its c those that the part alone has.
    """
    right = whole.argmax(axis=1) == labels
    found = {name: score(probabilities, labels, classes) for name, probabilities in parts.items()}
    return {
        "alone": {
            name: {
                "test_accuracy": found[name]["accuracy"],
                "test_accuracy_interval": found[name]["accuracy_interval"],
                "mcnemar": mcnemar(right, probabilities.argmax(axis=1) == labels),
            }
            for name, probabilities in parts.items()
        }
    }
