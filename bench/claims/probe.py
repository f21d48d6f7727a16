"""Positions added to words or concatenated with them: their cost, and what a probe can read."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from bench.claims.layers import normal
from bench.pages.claims import COLOURS, Claim, plain
from transformer_jax.functional.positions import sinusoidal_positions
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.parameters import AbstractRngs


def encoder_parameters(width: int) -> int:
    """Count the parameters of the base encoder of 2017 at another width.

    The feed-forward network is four times as wide.
    """
    config = StackConfig(embed_dim=width, hidden_dim=4 * width)
    encoder = nnx.eval_shape(lambda: Encoder(config, rngs=AbstractRngs()))
    return sum(x.size for x in jax.tree.leaves(nnx.state(encoder, nnx.Param)))


def codes(random: np.random.Generator, words: int, positions: int, D: int) -> dict[str, np.ndarray]:
    """Return random words and sinusoids [words, positions, D], added or concatenated.

    Concatenated, each has half of the D features.
    """

    def both(width):
        word = normal(random, (words, 1, width))
        place = np.asarray(sinusoidal_positions(jnp.arange(positions), width))
        return np.broadcast_arrays(word, place[None])

    return {"added": sum(both(D)), "beside": np.concatenate(both(D // 2), axis=-1)}


def probe(x: np.ndarray, labels: np.ndarray, held_out: np.ndarray, ridge: float = 1e-3) -> float:
    """Return the held-out accuracy of a linear probe.

    The probe is fitted to the one-hot labels of the other rows by ridge regression.
    """
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float64)
    known, targets = x[~held_out], np.eye(labels.max() + 1)[labels[~held_out]]
    kernel = np.linalg.solve(known.T @ known + ridge * np.eye(x.shape[1]), known.T @ targets)
    return float(((x[held_out] @ kernel).argmax(-1) == labels[held_out]).mean())


def accuracies(seed: int, D: int, *, words: int = 200, positions: int = 50) -> dict[str, dict]:
    """Return the accuracy of linear probes for word and position.

    A fifth of the pairs of word and position is held out.
    """
    random = np.random.default_rng(seed)
    word, place = (grid.ravel() for grid in np.mgrid[:words, :positions])
    held_out = random.random(words * positions) < 0.2
    return {
        name: {
            what: probe(x.reshape(-1, x.shape[-1]), labels, held_out)
            for what, labels in (("word", word), ("position", place))
        }
        for name, x in codes(random, words, positions, D).items()
    }


def claims(seed: int) -> list[Claim]:
    found = {D: accuracies(seed, D) for D in (8, 16, 32, 64, 128, 256)}
    base = encoder_parameters(512)
    widths = [("added", "512", 512), ("beside", "512 + 512", 1024), ("beside", "448 + 64", 512)]

    def draw(drawing: Figure) -> None:
        panels = drawing.subplots(1, 2, sharey=True)
        for axes, what in zip(panels, ("word", "position"), strict=True):
            for colour, name in zip(COLOURS, ("added", "beside"), strict=False):
                heights = [found[D][name][what] for D in found]
                axes.semilogx(list(found), heights, "o-", color=colour, label=name, base=2)
            plain(axes, f"The {what}, read by a linear probe", "features D", "accuracy")
        panels[0].legend(frameon=False)

    return [
        Claim(
            "adding-cost",
            "Concatenating positions as wide as the words costs four times the encoder",
            "Parameters of the six-layer base encoder, counted on the model. *Beside* means that "
            "word and position are concatenated. A position code as wide as the word doubles the "
            "width of every layer. The kernels have two axes of that width, so the encoder has "
            "four times as many parameters, not twice as many as one tutorial says. "
            "Concatenation at the same total width costs no parameters, but leaves fewer "
            "features for the words.",
            ("positions", "width", "parameters of the encoder", "against adding"),
            [
                (how, width, n := encoder_parameters(total), n / base)
                for how, width, total in widths
            ],
        ),
        Claim(
            "adding-probe",
            "Word and position can be read back from their sum, given the width",
            "200 random words at 50 sinusoidal positions. A linear probe (least squares to "
            "one-hot labels) is fitted on four fifths of the pairs and reads the word and the "
            "position of the others. *Beside* means concatenated, with half of the features for "
            "each. A sum loses nothing if the width leaves word and position nearly orthogonal "
            "subspaces; with few features it does lose.",
            ("features D", "word, added", "word, beside", "position, added", "position, beside"),
            [
                (
                    D,
                    *(
                        rows[name][what]
                        for what in ("word", "position")
                        for name in ("added", "beside")
                    ),
                )
                for D, rows in found.items()
            ],
            draw,
        ),
    ]
