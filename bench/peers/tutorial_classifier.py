"""Training steps and inference of the tutorial's classifier, in this library and in PyTorch.

All contestants start from the same weights and see the same batches. Each becomes a call without
arguments that takes the next batch and returns numbers, so it has waited for its result. The code
that needs PyTorch is in bench/peers/tutorial_model.py.
"""

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.measure.machine import cores
from train.objectives.classification import make_loss
from train.optim.optimizers import make_optimizer
from train.recipes.imdb import Recipe
from train.trainer.step import TrainState, make_train_step
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import parameter_name
from transformer_jax.text.batching import Batch

OURS = "transformer_jax"
STEPS = 1000  # length of the learning-rate schedule, which is constant
BATCHES = 3  # that calls rotate through


@dataclass(frozen=True)
class Contestant:
    """Settings of one contestant: PyTorch if `attention` is given, else this library.

    `kept` is whether freed memory is kept (transformer_jax.runtime.malloc).
    """

    attention: str | None = None
    bfloat16: bool = False
    fused: bool = False
    kept: bool = False

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.bfloat16 else "float32"


CONTESTANTS = {
    OURS: Contestant(kept=True),
    f"{OURS}, bfloat16": Contestant(bfloat16=True, kept=True),
    f"{OURS}, memory given back": Contestant(),
    "eager": Contestant("eager"),
    "eager, memory kept": Contestant("eager", kept=True),
    "sdpa": Contestant("sdpa"),
    "sdpa, bfloat16": Contestant("sdpa", bfloat16=True),
    "tuned": Contestant("sdpa", bfloat16=True, fused=True),
}


def pad_id(recipe: Recipe) -> int:
    """Return the id of [PAD]; [PAD], [CLS] and [SEP] follow the words."""
    return recipe.model.vocab_size - 3


def batches(recipe: Recipe, rows: int, length: int, seed: int) -> list[Batch]:
    """Draw BATCHES batches of texts with a third to all of `length` tokens, padded at the end."""
    rng = np.random.default_rng([seed, rows, length])
    found = []
    for _ in range(BATCHES):
        tokens = rng.integers(0, pad_id(recipe), (rows, length)).astype(np.int32)
        lengths = rng.integers(max(length // 3, 1), length + 1, rows)
        is_token = np.arange(length) < lengths[:, None]
        tokens[~is_token] = pad_id(recipe)
        labels = rng.integers(0, 2, rows).astype(np.int32)
        index = np.arange(rows, dtype=np.int32)
        found.append(Batch(tokens, is_token, labels, np.ones(rows, bool), index))
    return found


def torch_model(recipe: Recipe, dropout: float, attention: str, seed: int) -> Any:
    """Build the PyTorch model; the same seed gives the same weights."""
    import torch

    from bench.peers.tutorial_model import TutorialClassifier

    torch.manual_seed(seed)
    encoder = recipe.model.encoder
    model = TutorialClassifier(
        recipe.model.vocab_size,
        pad_id=pad_id(recipe),
        max_length=recipe.model.max_length,
        num_layers=encoder.num_layers,
        embed_dim=encoder.embed_dim,
        num_heads=encoder.num_heads,
        hidden_dim=encoder.hidden_dim,
        dropout_rate=dropout,
        attention=attention,
    )
    return model.to(device())


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def our_model(recipe: Recipe, dropout: float, seed: int) -> tuple[Any, Any]:
    """Return (graph, parameters) of the recipe's classifier, with PyTorch's weights."""
    from bench.peers.tutorial_model import our_weights

    encoder = replace(recipe.model.encoder, dropout_rate=dropout, attention_dropout_rate=dropout)
    config = replace(
        recipe.model,
        encoder=encoder,
        embedding_dropout_rate=dropout,
        head_dropout_rate=dropout,
    )
    weights = our_weights(torch_model(recipe, dropout, "eager", seed))
    graph, shapes = nnx.split(
        nnx.eval_shape(lambda: TextClassifier(config, rngs=AbstractRngs())), nnx.Param
    )
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    leaves = [jnp.asarray(weights[parameter_name(path)]) for path, _ in paths]
    return graph, jax.tree.unflatten(structure, leaves)


def our_step(recipe: Recipe, dropout: float, of: Contestant, found: list[Batch], seed: int):
    """Return a call that makes the next step on the next batch and returns its loss."""
    graph, params = our_model(recipe, dropout, seed)
    optimizer = make_optimizer(recipe.fit.optimizer, STEPS)
    tokenizer = SimpleNamespace(pad_id=pad_id(recipe), mask_id=None, spec="random tokens")
    loss = make_loss(
        tokenizer, token_dropout=recipe.token_dropout, smoothing=recipe.label_smoothing
    )
    step = make_train_step(graph, loss, optimizer, replace(recipe.fit, dtype=of.dtype))
    state = [TrainState.first(params, optimizer)]
    turns = itertools.cycle(jax.device_put(found))

    def call() -> float:
        state[0], value = step(state[0], next(turns))
        return float(value)  # waits for the step

    return call


def torch_tensors(found: list[Batch]) -> list[tuple]:
    from bench.peers.tutorial_model import to_tensors

    return [to_tensors(batch, device()) for batch in found]


def torch_step(recipe: Recipe, dropout: float, of: Contestant, found: list[Batch], seed: int):
    from bench.peers.tutorial_model import make_optimizer as torch_optimizer
    from bench.peers.tutorial_model import make_step

    model = torch_model(recipe, dropout, of.attention, seed)
    step = make_step(model, torch_optimizer(model, fused=of.fused), bfloat16=of.bfloat16)
    turns = itertools.cycle(torch_tensors(found))
    return lambda: float(step(*next(turns)))


def our_inference(recipe: Recipe, of: Contestant, found: list[Batch], seed: int):
    """Return a call that computes the logits of the next batch.

    The weights are converted to the dtype of the computation beforehand.
    """
    graph, params = our_model(recipe, 0.0, seed)
    params = jax.tree.map(lambda p: p.astype(of.dtype), params)
    infer = jax.jit(lambda params, *tokens: nnx.merge(graph, params)(*tokens))
    turns = itertools.cycle(jax.device_put([batch[:2] for batch in found]))
    return lambda: np.asarray(infer(params, *next(turns)).astype(jnp.float32))


def torch_inference(recipe: Recipe, of: Contestant, found: list[Batch], seed: int):
    from bench.peers.tutorial_model import make_inference

    infer = make_inference(torch_model(recipe, 0.0, of.attention, seed), bfloat16=of.bfloat16)
    turns = itertools.cycle([x[:2] for x in torch_tensors(found)])
    return lambda: infer(*next(turns)).cpu().numpy()


def call_of(recipe: Recipe, name: str, dropout: float | None, found: list[Batch], seed: int):
    """Return the named contestant's step, or its inference if `dropout` is None."""
    of = CONTESTANTS[name]
    if of.attention is not None:
        import torch

        torch.set_num_threads(cores())
    if dropout is None:
        make = our_inference if of.attention is None else torch_inference
        return make(recipe, of, found, seed)
    make = our_step if of.attention is None else torch_step
    return make(recipe, dropout, of, found, seed)
