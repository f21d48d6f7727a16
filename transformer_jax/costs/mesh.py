"""The cost of a training step on a device mesh: bytes on a device, collectives and time.

How a parameter is split comes from `parallel.mesh.spec_of`, by its name and shape, as in training.

    bytes        the copies of the parameters that the trainer holds, each where it lies at rest;
                 the weights at work, the gradient, and what is kept for it (`costs.activations`)
    collectives  an all-gather of each parameter that FSDP splits; the reduction of each gradient
                 over the rows; an all-reduce of a [B, T, D] array for each sum over heads, hidden
                 features or the vocabulary that tensor parallelism splits, and for the gradient of
                 the input of each matrix whose output it splits
    time         operations by the peak, bytes by the memory bandwidth, collectives by the network

Only what grows with the model counts: the loss, norms and other scalars are left out, and so are
a sum for each token by label smoothing, and for each key that stays whole where heads are split.

Sources: Rajbhandari et al., 2020, https://arxiv.org/abs/1910.02054 (bytes of FSDP); Shoeybi et al.,
2019, https://arxiv.org/abs/1909.08053 (all-reduces of tensor parallelism); Patarasuk and Yuan,
2009, https://doi.org/10.1016/j.jpdc.2008.09.002 (bytes of an all-reduce on a ring).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from transformer_jax.costs.activations import resized
from transformer_jax.costs.devices import Device
from transformer_jax.costs.formulas import stacks_of
from transformer_jax.parallel.axes import axes_of
from transformer_jax.parallel.mesh import AT_REST, AT_WORK, AXES, ROWS, spec_of

Shapes = Mapping[str, tuple[int, ...]]  # of parameters, by their names
Sizes = Mapping[str, int]  # of the axes of a mesh

# The float32 copies of the trained parameters that `train.trainer` holds between two steps.
BEST = "best weights so far"
COPIES = {"parameters": 1, "averaged weights": 1, "optimizer state (AdamW)": 2, BEST: 1}
TABLE = re.compile(r"(.*\.)?token\.embedding")
HEAD = re.compile(r"(.*\.)?head(\.output)?\.kernel")


@dataclass(frozen=True)
class Collective:
    """The collective operations of one kind and purpose in a training step.

    `number` counts arrays, of which XLA may put several into one operation. `size` are their bytes
    on a device, after a gather and before a reduction.
    """

    what: str
    kind: str  # all-gather, reduce-scatter or all-reduce
    axes: tuple[str, ...]  # of the mesh
    number: int
    size: int

    def moved(self, sizes: Sizes) -> float:
        """Return the bytes that a device receives on a ring of n devices.

        (n - 1) / n of the arrays; twice as much for an all-reduce.
        """
        n = math.prod(sizes[axis] for axis in self.axes)
        return (1 + (self.kind == "all-reduce")) * (n - 1) / n * self.size

    def seconds(self, sizes: Sizes, device: Device) -> float:
        """Return the time by bandwidth.

        Devices of a mesh are counted with the last axis first, so that it is in the nodes or pods.
        A ring through several of them uses the far links of all its devices in each.
        """
        n = math.prod(sizes[axis] for axis in self.axes)
        stride = math.prod(sizes[axis] for axis in AXES[AXES.index(self.axes[-1]) + 1 :])
        beside = max(1, min(n, device.domain // stride))
        speed = device.near if n <= beside else min(device.near, beside * device.far)
        return self.moved(sizes) / speed


def size_on_device(
    name: str, shape: tuple[int, ...], rules: Mapping[str, str], sizes: Sizes
) -> int:
    """Return the number of elements of a parameter on each device, by one of the two maps.

    >>> size_on_device("head.kernel", (64, 96), AT_REST, {"data": 1, "fsdp": 4, "tensor": 2})
    768
    """
    split = math.prod(sizes[axis] for axis in spec_of(name, shape, rules, sizes) if axis)
    return math.prod(shape) // split


def state_bytes(shapes: Shapes, sizes: Sizes) -> dict[str, int]:
    """Return the bytes on a device of each of the `COPIES` of the parameters, in float32."""
    at_rest = sum(size_on_device(*one, AT_REST, sizes) for one in shapes.items())
    return {name: 4 * copies * at_rest for name, copies in COPIES.items()}


def work_bytes(shapes: Shapes, sizes: Sizes, dtype: str, *, remat: bool = False) -> int:
    """Return the bytes on a device of the weights at work: gathered, in the dtype of computation.

    It is 0 if they are the parameters themselves. With `remat` a layer's are gathered where it is
    computed, so that those of one layer are there at a time.
    """
    total, layers = 0, {}
    for name, shape in shapes.items():
        copied = dtype != "float32" or "fsdp" in spec_of(name, shape, AT_REST, sizes)
        size = copied * size_on_device(name, shape, AT_WORK, sizes) * jnp.dtype(dtype).itemsize
        layer = re.match(r".*\.layers\.\d+\.", name) if remat else None
        if layer:
            layers[layer[0]] = layers.get(layer[0], 0) + size
        else:
            total += size
    return total + max(layers.values(), default=0)


def gradient_bytes(shapes: Shapes, sizes: Sizes) -> int:
    """Return the bytes on a device of the gradient in float32, where the parameters lie at rest."""
    return sum(4 * size_on_device(*one, AT_REST, sizes) for one in shapes.items())


def share_of_device(config: Any, shapes: Shapes, sizes: Sizes) -> Any:
    """Return the configuration of a device's share of the work: its heads, features and tokens.

    It has the sizes of this configuration divided by those of the axis `tensor`, unless the
    parameters of the model stay whole there. Stacks have the sizes of the first.
    """
    N, K, H, values = stacks_of(config)[0].axes

    def divided(ending: str, axis: int, size: int) -> int:
        for name, shape in shapes.items():
            if name.endswith(ending) and shape[axis] == size:
                spec = (*spec_of(name, shape, AT_WORK, sizes), *[None] * len(shape))
                return size // (sizes["tensor"] if spec[: len(shape)][axis] else 1)
        return size

    stack = stacks_of(config)[0]
    changes = {
        "num_heads": divided("attention.query_kernel", 1, N),
        "num_kv_heads": divided("attention.key_kernel", 1, K),
        "head_dim": H,
        "value_dim": values,
        "hidden_dim": divided("feed_forward.in_kernel", 1, stack.hidden_dim),
    }
    if hasattr(config, "vocab_size"):
        changes["vocab_size"] = divided("token.embedding", -2, config.vocab_size)
    if changes["num_heads"] % changes["num_kv_heads"]:  # heads are split, keys and values are not
        changes["num_kv_heads"] = changes["num_heads"]
    return resized(config, sizes=changes)


@dataclass(frozen=True)
class Work:
    """The work of a device in a training step, as far as its collectives depend on it."""

    tokens: int
    head_tokens: int  # of which a head computes logits
    dtype: str = "float32"
    lookups: int = 1  # in the table of the tokens: 2 in an encoder-decoder
    tied_head: bool = False  # the head over the vocabulary uses the table of the tokens
    remat: bool = False
    norm: str = "pre"  # of the layers

    def size(self, elements: int) -> int:
        """Return the bytes of so many elements."""
        return elements * jnp.dtype(self.dtype).itemsize

    def uses(self, name: str) -> int:
        """Return how often a step uses a parameter; each use has a gradient of its own."""
        return self.lookups + self.tied_head if TABLE.fullmatch(name) else 1

    def times(self, name: str) -> int:
        """Return how often the forward pass is computed at a parameter."""
        return 2 if self.remat and ".layers." in name else 1

    def sums(self, name: str) -> int:
        """Return how often the products of a parameter are summed over devices in that."""
        if TABLE.fullmatch(name):
            return self.lookups
        # No gradient needs the last sum of a pre-norm layer a second time.
        is_last = self.norm == "pre" and name.endswith("feed_forward.out_kernel")
        return 1 if is_last else self.times(name)


def collectives(
    shapes: Shapes, sizes: Sizes, work: Work, *, scatters: bool = True
) -> list[Collective]:
    """Return the collective operations of a training step.

    With `remat` the weights of the layers are gathered, and their products summed, a second time.
    Without `scatters` a gradient is reduced on all devices and then cut, as XLA does on CPUs;
    otherwise by a reduce-scatter.
    """
    return [
        *_weights(shapes, sizes, work),
        *_gradients(shapes, sizes, work, scatters),
        *_sums(shapes, sizes, work),
    ]


def _weights(shapes: Shapes, sizes: Sizes, work: Work) -> Iterable[Collective]:
    """Yield the all-gather of the parameters that FSDP splits."""
    found = []
    for name, shape in shapes.items():
        if "fsdp" in spec_of(name, shape, AT_REST, sizes):
            size = work.size(size_on_device(name, shape, AT_WORK, sizes))
            found += [size] * work.times(name)
    yield from _some("weights for work", "all-gather", ("fsdp",), found)


def _gradients(shapes: Shapes, sizes: Sizes, work: Work, scatters: bool) -> Iterable[Collective]:
    """Yield the reductions of the gradients over the rows of the batch."""
    scattered, reduced, whole = [], [], []
    rows = tuple(axis for axis in ROWS if sizes[axis] > 1)
    for name, shape in shapes.items():
        size = work.size(size_on_device(name, shape, AT_WORK, sizes))
        if scatters and "fsdp" in spec_of(name, shape, AT_REST, sizes):
            scattered += [size] * work.uses(name)
            reduced += [size // sizes["fsdp"]] * work.uses(name)
        else:
            whole += [size] * work.uses(name)
    if rows:
        yield from _some("gradients", "reduce-scatter", ("fsdp",), scattered)
        yield from _some("gradients", "all-reduce", rows, whole)
        if sizes["data"] > 1:
            yield from _some("gradients", "all-reduce", ("data",), reduced)


def _sums(shapes: Shapes, sizes: Sizes, work: Work) -> Iterable[Collective]:
    """Yield the sums over devices that tensor parallelism needs, forward and backward."""
    forward, backward, softmax = [], [], []
    for name, shape in shapes.items():
        axes, spec = axes_of(name, len(shape)), spec_of(name, shape, AT_WORK, sizes)
        if "embed" not in axes:
            continue
        embed = axes.index("embed")
        if "tensor" not in spec:
            if _serves_split_heads(name, shapes, sizes):
                backward.append(work.size(work.tokens * shape[embed]))
            continue
        is_table, is_head = TABLE.fullmatch(name), HEAD.fullmatch(name)
        is_tied = is_table and work.tied_head
        size = work.size((work.head_tokens if is_head else work.tokens) * shape[embed])
        if spec.index("tensor") < embed:
            forward += [size] * work.sums(name)
        if spec.index("tensor") > embed or is_tied:
            backward.append(size)
        if is_head or is_tied:  # the largest logit, the sum of exponentials, the target's logit
            softmax += [4 * work.head_tokens] * 3
    yield from _some("sums, forward", "all-reduce", ("tensor",), forward)
    yield from _some("sums, backward", "all-reduce", ("tensor",), backward)
    yield from _some("softmax of the tokens", "all-reduce", ("tensor",), softmax)


def _serves_split_heads(name: str, shapes: Shapes, sizes: Sizes) -> bool:
    """Return whether keys or values that stay whole have a gradient from each part of the heads."""
    query = re.sub(r"(key|value)_kernel$", "query_kernel", name)
    return query != name and "tensor" in spec_of(query, shapes[query], AT_WORK, sizes)


def _some(what: str, kind: str, axes: tuple[str, ...], found: list[int]) -> Iterable[Collective]:
    if found:
        yield Collective(what, kind, axes, len(found), sum(found))
