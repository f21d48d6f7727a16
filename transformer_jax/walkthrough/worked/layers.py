"""Worked examples of layers and models: normalisation, parameter counts, published sizes."""

import numpy as np
from flax import nnx

from transformer_jax.costs import formulas
from transformer_jax.costs.published import PUBLISHED
from transformer_jax.functional.normalization import batch_norm, layer_norm
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.layers import FeedForward, MultiHeadAttention
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.notation import compiled, numbers, tell

normalise = compiled(layer_norm, static_argnames="epsilon")
normalise_batch = compiled(batch_norm, static_argnames="epsilon")


def batch_norm_neuron(example: dict) -> list[Step]:
    inputs = example["inputs"]
    x, eps = numbers(inputs["x"])[:, None], inputs["eps"]
    gamma, beta = numbers([inputs["gamma"]]), numbers([inputs["beta"]])
    one, zero = np.ones(1), np.zeros(1)
    return [
        tell("x", "one neuron, one value an example", x[:, 0], "B"),
        tell("mean", "mean over the examples", x.mean()),
        tell("var", "mean of (x - mean)^2", x.var()),
        tell(
            "x_hat",
            "(x - mean) / sqrt(var + eps)",
            normalise_batch(x, one, zero, epsilon=eps)[:, 0],
            "B",
        ),
        tell("y", "gamma x_hat + beta", normalise_batch(x, gamma, beta, epsilon=eps)[:, 0], "B"),
    ]


def batch_norm_layer(example: dict) -> list[Step]:
    z = numbers(example["inputs"]["z"])
    one, zero = np.ones(z.shape[1]), np.zeros(z.shape[1])
    neurons = [f"neuron {n}" for n in (1, 2, 3)]
    return [
        tell("z", "one row an example", z, "B D", columns=neurons),
        tell("mean", "mean over the examples", z.mean(axis=0), "D", columns=neurons),
        tell("var", "mean of (z - mean)^2", z.var(axis=0), "D", columns=neurons),
        tell("z_hat", "(z - mean) / sqrt(var)",
             normalise_batch(z, one, zero, epsilon=example["inputs"]["eps"]),
             "B D", columns=neurons),
    ]  # fmt: skip


def layer_norm_hi(example: dict) -> list[Step]:
    x, eps = numbers(example["inputs"]["x"]), example["inputs"]["eps"]
    return [
        tell("x", "the features of one token", x, "D"),
        tell("mean", "mean over the features", x.mean()),
        tell("var", "mean of (x - mean)^2", x.var()),
        tell("x_hat", "(x - mean) / sqrt(var + eps)", normalise(x, np.ones(4), epsilon=eps), "D"),
    ]


def layer_norm_eps(example: dict) -> list[Step]:
    x, eps = numbers(example["inputs"]["x"]), example["inputs"]["eps"]
    return [
        tell("x", "the features of one token, nearly equal", x, "D"),
        tell("var", "mean of (x - mean)^2", x.var(), note="5e-5: epsilon is a fifth of it."),
        tell("file", example["printed"]["formula"], (x - x.mean()) / (x.std() + eps), "D"),
        tell("definition", "(x - mean) / sqrt(var + eps)",
             normalise(x, np.ones(4), epsilon=eps), "D"),
    ]  # fmt: skip


def ffn_parameters(example: dict) -> list[Step]:
    D, F, heads = (example["inputs"][name] for name in ("d_model", "d_ff", "heads"))

    def kernels(make):
        """Count the elements of a module's kernels by name, without allocating them."""
        shapes = _shapes(make)
        return {
            name.removesuffix("_kernel"): shape.size
            for name, shape in shapes.items()
            if name.endswith("_kernel")
        }

    ffn = kernels(lambda rngs: FeedForward(D, F, rngs=rngs))
    attention = kernels(lambda rngs: MultiHeadAttention(D, heads, rngs=rngs))
    return [
        tell("ffn_kernels", "D F and F D", list(ffn.values()), "kernel", columns=ffn),
        tell("ffn", "their sum", sum(ffn.values())),
        tell("attention_kernels", "four times D D", list(attention.values()), "kernel",
             columns=attention),
        tell("attention", "their sum, however many heads", sum(attention.values())),
    ]  # fmt: skip


def imdb_model(example: dict) -> list[Step]:
    inputs, printed = example["inputs"], example["printed"]
    dim, heads = inputs["dim"], inputs["heads_constructor"]

    def parameters(layers):
        encoder = StackConfig(
            layers, dim, inputs["heads"], inputs["ff"], norm="pre", activation="gelu"
        )
        config = ClassifierConfig(
            inputs["vocab"], inputs["max_len"], encoder=encoder, num_segments=inputs["segments"]
        )
        shapes = _shapes(lambda rngs: TextClassifier(config, rngs=rngs))
        return sum(shape.size for shape in shapes.values())

    divisors = [n for n in range(1, 17) if dim % n == 0]
    updates = -(-inputs["train_examples"] // printed["batch"])
    return [
        tell("remainder", f"{dim} mod {heads}", dim % heads,
             note=f"{heads} heads do not divide {dim}."),
        tell("divisors", "numbers of heads up to 16 that do", divisors, "choice"),
        tell("heads", "the divisor nearest above", min(n for n in divisors if n > heads)),
        tell("parameters_4_layers", "as the constructor asks",
             parameters(inputs["layers_constructor"])),
        tell("parameters_6_layers", "as the model is printed",
             parameters(inputs["layers_printed"])),
        tell("updates_per_epoch", "ceil(examples / batch)", updates),
        tell("updates_100_epochs", "updates_per_epoch x epochs", updates * printed["epochs"]),
    ]  # fmt: skip


def scale_table(example: dict) -> list[Step]:
    """Compute the sizes of published models, of which the documents state rounded figures."""
    names = list(example["printed"])
    published = [PUBLISHED[name.replace("_", "-")] for name in names]
    counted = [formulas.parameters(model.config) for model in published]
    stacks = [formulas.stacks_of(model.config)[0] for model in published]
    table = [
        (stack.num_layers, stack.num_heads, stack.embed_dim, count)
        for stack, count in zip(stacks, counted, strict=True)
    ]
    in_millions = [
        (n / 1e6, model.nominal / 1e6) for n, model in zip(counted, published, strict=True)
    ]
    gpt3 = PUBLISHED["gpt3"]
    flops = formulas.six_nd(gpt3.nominal, gpt3.tokens or 0.0)
    return [
        tell("sizes", "the parameters counted part by part", np.array(table, float), "model size",
             names, ("layers", "heads", "D", "count")),
        tell("millions", "the same, and what each paper states", in_millions, "model count",
             names, ("counted", "stated")),
        tell("gpt3_training_flops", "6 N D with N = 175e9 and D = 300e9 tokens", flops),
    ]  # fmt: skip


def _shapes(make) -> dict:
    """Compute the shapes of a module's parameters by path, without allocating them."""
    state = nnx.state(nnx.eval_shape(lambda: make(AbstractRngs())), nnx.Param)
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}


WORKED = {
    function.__name__: function
    for function in (
        batch_norm_neuron,
        batch_norm_layer,
        layer_norm_hi,
        layer_norm_eps,
        ffn_parameters,
        imdb_model,
        scale_table,
    )
}
