"""One word with two meanings: the vector of "bank" in an embedding table and after attention.

A small masked language model is trained on sentences from two worlds. All it can learn about
meaning is which words occur together.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from bench.claims.layers import cross_entropy, fit, init_layers, layers, normal
from bench.pages.claims import Claim
from transformer_jax.functional.positions import lookup, sinusoidal_positions

WORLDS = {
    "river": ("boat duck reed stone", "lay stood rested stayed", "river lake stream pond"),
    "money": ("clerk loan client cheque", "paid waited called closed", "town city county state"),
}
WORDS = ["[MASK]", "the", "bank", "at", "of"]
WORDS += [word for lists in WORLDS.values() for words in lists for word in words.split()]
IDS = {word: index for index, word in enumerate(WORDS)}
BANK = 5  # its place in the sentence
D, L = 32, 2


def sentence(world: str, random: np.random.Generator) -> list[str]:
    """Draw a sentence such as: the boat lay at the bank of the river.

    Three of its words depend on the world.
    """
    who, does, where = (random.choice(words.split()) for words in WORLDS[world])
    return ["the", who, does, "at", "the", "bank", "of", "the", where]


@jax.jit
def encode(parameters, tokens):
    """Return the vector of every token after the attention layers."""
    x = lookup(parameters["embed"], tokens) + sinusoidal_positions(jnp.arange(tokens.shape[1]), D)
    return layers({name: p for name, p in parameters.items() if name != "embed"}, x)


def loss(parameters, batch):
    """Compute the cross-entropy of the masked words; the embedding also reads out, as in BERT."""
    tokens, asked = batch["tokens"], (jnp.arange(len(batch["tokens"])), batch["places"])
    output = encode(parameters, tokens.at[asked].set(IDS["[MASK]"]))[asked]
    return cross_entropy(output @ parameters["embed"].T, tokens[asked])


def batches(random: np.random.Generator, steps: int, rows: int = 32) -> dict[str, np.ndarray]:
    """Draw sentences of both worlds, and the place of the word to predict."""
    drawn = [sentence(random.choice(list(WORLDS)), random) for _ in range(steps * rows)]
    tokens = np.array([[IDS[word] for word in words] for words in drawn])
    return {
        "tokens": tokens.reshape(steps, rows, -1),
        "places": random.choice([1, 2, 8], (steps, rows)),
    }


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the matrix [i, j] of cosines of the angles between vectors i and j."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit @ unit.T


def banks(seed: int, *, steps: int = 300, each: int = 4) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return sentences, and the cosines between their vectors of "bank".

    There are `each` sentences of the first world and as many of the second.
    """
    random = np.random.default_rng(seed)
    start = init_layers(random, L, D, 4, 2 * D) | {"embed": normal(random, (len(WORDS), D), D)}
    trained, _ = fit(loss, start, batches(random, steps))
    sentences = [sentence(world, random) for world in WORLDS for _ in range(each)]
    tokens = jnp.array([[IDS[word] for word in words] for words in sentences])
    vectors = {
        "in the table": lookup(trained["embed"], tokens),
        "behind untrained layers": encode(start, tokens),
        "behind trained layers": encode(trained, tokens),
    }
    found = {name: cosines(np.asarray(x, np.float64)[:, BANK]) for name, x in vectors.items()}
    return [" ".join(words) for words in sentences], found


def same_and_other(found: np.ndarray) -> tuple[float, float]:
    """Return the mean cosine of two different sentences of one world, and of two worlds."""
    half = len(found) // 2
    others = ~np.eye(half, dtype=bool)
    same = (found[:half, :half][others].mean() + found[half:, half:][others].mean()) / 2
    return float(same), float(found[:half, half:].mean())


def _draw(sentences: list[str], found: dict[str, np.ndarray], drawing: Figure) -> None:
    panels = drawing.subplots(1, 3, sharey=True)
    for axes, (name, matrix) in zip(panels, found.items(), strict=True):
        picture = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu")
        axes.set_title(f'"bank" {name}', fontsize=10)
        axes.set_xticks([])
    panels[0].set_yticks(range(len(sentences)), sentences)
    drawing.colorbar(picture, ax=panels, label="cosine", shrink=0.8)


def claims(seed: int) -> list[Claim]:
    sentences, found = banks(seed)
    return [
        Claim(
            "bank",
            'A table gives "bank" one vector, attention one for each meaning',
            'Mean cosine between the vectors of "bank" in two sentences, of the same world '
            "(river or money) and of different ones. Two layers of attention were trained on "
            "such sentences to predict a masked word. Untrained attention also gives the word a "
            "different vector in every sentence, but does not separate the worlds.",
            ('"bank"', "two sentences of one world", "of two worlds"),
            [(name, *same_and_other(matrix)) for name, matrix in found.items()],
            partial(_draw, sentences, found),
            (11.0, 3.2),
        )
    ]
