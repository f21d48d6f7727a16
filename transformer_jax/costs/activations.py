"""The bytes that the forward pass of a model keeps for its gradient, as JAX traces it.

`formulas.activation_bytes` counts what a gradient needs. JAX keeps more: the parts of an activation
function, the masks of dropout, the statistics of norms. Here the model itself is traced, without
computing anything, so that these count too. Two layers are enough, because all are of one size.

XLA may keep less. On simulated devices of a CPU its temporaries are within a tenth of the
prediction for a small language model (`tests/costs/test_mesh.py`), and up to 15% below it for an
encoder-decoder and for gated networks. With remat they are up to 1.8 times the prediction there,
because XLA on CPUs does not delay the second computation of a layer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.costs.formulas import Config, encoder_length, stacks_of
from transformer_jax.models.config import LanguageModelConfig, SequenceToSequenceConfig
from transformer_jax.nn.config import StackConfig

# From a configuration to forward(params, *texts) and the shapes of the parameters.
Traced = Callable[[Any], tuple[Callable, Any]]
# Operations whose result XLA can make again from its input without arithmetic.
VIEWS = (
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type",
    "copy",
)  # fmt: skip


@dataclass(frozen=True)
class Activations:
    """The bytes kept for the gradient: around the layers, by each layer, and at its input.

    A model of two stacks has two entries in `layers`: bytes and number of the layers of each.
    """

    around: int
    layers: tuple[tuple[int, int], ...]
    layer_input: int

    def total(self, *, remat: bool = False) -> int:
        """Return all bytes. With `remat`, only the input of a layer, and one layer in full."""
        number = sum(count for _, count in self.layers)
        if remat and number:
            largest = max(size for size, _ in self.layers)
            return self.around + largest + (number - 1) * self.layer_input
        return self.around + sum(size * count for size, count in self.layers)


def activations(
    traced: Traced, config: Config, length: int, *, rows: int, dtype: str = "float32"
) -> Activations:
    """Return what the forward pass over `rows` texts of `length` tokens keeps, by tracing it.

    `traced` gives, for a configuration, a function of parameters and texts, and the shapes of the
    parameters. Arrays that are a view of another one count once, parameters do not count. The loss
    of a language model adds its logits and their gradient, in float32.
    """
    stacks = range(len(stacks_of(config)))

    def kept(layers: list[int]) -> int:
        return _kept(traced, resized(config, layers), length, rows, dtype)

    once = kept([1 for _ in stacks])
    sizes = [kept([2 if i == k else 1 for i in stacks]) - once for k in stacks]
    numbers = [stack.num_layers for stack in stacks_of(config)]
    tokens = rows * encoder_length(config, length)
    around = once - sum(sizes)
    if isinstance(config, LanguageModelConfig | SequenceToSequenceConfig):
        around += 2 * 4 * tokens * config.vocab_size
    embed = tokens * stacks_of(config)[0].embed_dim * jnp.dtype(dtype).itemsize
    return Activations(around, tuple(zip(sizes, numbers, strict=True)), embed)


def resized(
    config: Any, layers: Sequence[int] | None = None, sizes: Mapping[str, int] | None = None
) -> Any:
    """Return a configuration with other numbers of layers, and other sizes where it has them."""
    numbers = None if layers is None else iter(layers)

    def changed(part: Any) -> Any:
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        new = {name: changed(value) for name, value in values.items() if is_dataclass(value)}
        new |= {name: size for name, size in (sizes or {}).items() if name in values}
        if numbers is not None and isinstance(part, StackConfig):
            new["num_layers"] = next(numbers)
        return replace(part, **new)

    return changed(config)


def _kept(traced: Traced, config: Config, length: int, rows: int, dtype: str) -> int:
    forward, params = traced(config)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)
    text = [jax.ShapeDtypeStruct((rows, length), dtype) for dtype in (jnp.int32, bool)]
    text *= 2 if isinstance(config, SequenceToSequenceConfig) else 1
    if isinstance(config, LanguageModelConfig):
        text = text[:1]  # its windows have no padding

    def residuals(params, *text):
        # Without dropout: XLA draws its masks again from a counter, and does not keep them.
        return jax.vjp(lambda params: forward(params, *text), params)[1]

    return _distinct_bytes(jax.make_jaxpr(residuals)(params, *text).jaxpr)


def _distinct_bytes(jaxpr: Any) -> int:
    """Return the bytes of the results of a jaxpr that are not views of each other or of inputs."""
    given = {id(var) for var in (*jaxpr.invars, *jaxpr.constvars)}
    made = _producers(jaxpr)
    found = {id(var): var for var in (_source(var, made) for var in jaxpr.outvars)}
    kept = (var for key, var in found.items() if key not in given)
    return sum(_size(var) * var.aval.dtype.itemsize for var in kept)


def _producers(jaxpr: Any) -> dict[int, Any]:
    return {id(var): equation for equation in jaxpr.eqns for var in equation.outvars}


def _source(var: Any, made: dict[int, Any]) -> Any:
    """Return the variable that this one is a view of, which may be itself."""
    while (equation := made.get(id(var))) is not None:
        if equation.primitive.name in VIEWS and _size(var) == _size(equation.invars[0]):
            var = equation.invars[0]
            continue
        inner = equation.params.get("jaxpr")
        if equation.primitive.name != "jit" or inner is None:
            break
        inner = inner.jaxpr
        place = next(i for i, out in enumerate(equation.outvars) if out is var)
        source = _source(inner.outvars[place], _producers(inner))
        places = [i for i, own in enumerate(inner.invars) if own is source]
        if not places:
            break
        var = equation.invars[places[0]]
    return var


def _size(var: Any) -> int:
    return math.prod(getattr(var.aval, "shape", ()))
