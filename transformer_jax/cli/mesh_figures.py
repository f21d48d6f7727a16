"""The figures of training on a device mesh, for `cost --mesh`."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from flax import nnx

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.cli.mesh_cost import SECONDS
from transformer_jax.cli.terminal import did_you_mean
from transformer_jax.costs import formulas
from transformer_jax.costs.activations import Activations, activations
from transformer_jax.costs.devices import DEVICES, Device
from transformer_jax.costs.mesh import (
    BEST,
    Collective,
    Shapes,
    Sizes,
    Work,
    collectives,
    gradient_bytes,
    share_of_device,
    state_bytes,
    work_bytes,
)
from transformer_jax.costs.step_time import step_time, traffic_bytes
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.mesh import ROWS, parse_mesh

# Of the models of run folders by the name of their kind, and of published ones by configuration.
MODELS: dict[Any, Callable] = {
    "TextClassifier": TextClassifier,
    "EncoderClassifier": EncoderClassifier,
    "MaskedLanguageModel": MaskedLanguageModel,
    "LanguageModel": LanguageModel,
    "SequenceToSequence": SequenceToSequence,
    "TextEncoder": TextEncoder,
    LanguageModelConfig: LanguageModel,
    SequenceToSequenceConfig: SequenceToSequence,
    TextEncoderConfig: TextEncoder,
}


@dataclass(frozen=True)
class Training:
    """The training of a model on a mesh: each device has so many rows of `length` tokens."""

    model: Callable
    config: Any
    sizes: Sizes
    rows: int
    length: int
    dtype: str

    @cached_property
    def shapes(self) -> Shapes:
        """The shapes of the trained parameters by name."""
        named = named_parameters(_abstract(self.model, self.config)[1])
        return {name: leaf.shape for name, leaf in named}

    @cached_property
    def share(self) -> Any:
        """The configuration of the part of the model that each device computes."""
        return share_of_device(self.config, self.shapes, self.sizes)

    def activations(self, implementation: Implementation) -> Activations:
        """Return what is kept on a device for the gradient, with this implementation."""
        traced = partial(_forward, self.model, implementation)
        return activations(traced, self.share, self.length, rows=self.rows, dtype=self.dtype)

    def collectives(self, *, remat: bool = False, scatters: bool = True) -> list[Collective]:
        """Return the collective operations of a step."""
        tokens = self.rows * formulas.encoder_length(self.config, self.length)
        classifies = isinstance(self.config, ClassifierConfig | EncoderClassifierConfig)
        writes = self.model in (LanguageModel, MaskedLanguageModel, SequenceToSequence)
        work = Work(
            tokens,
            head_tokens=self.rows if classifies else tokens,
            dtype=self.dtype,
            lookups=2 if self.model is SequenceToSequence else 1,
            tied_head=writes and getattr(self.config, "tied_head", True),
            remat=remat,
            norm=formulas.stacks_of(self.config)[0].norm,
        )
        return collectives(self.shapes, self.sizes, work, scatters=scatters)


def mesh_figures(described: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of training on the mesh of the options, by name.

    Raises ValueError if an option does not fit, such as an unknown device.
    """
    sizes, device = _sizes(options.mesh), _device(options.device)
    parts = math.prod(sizes[axis] for axis in ROWS)
    if options.batch < parts:
        raise ValueError(
            f"--batch {options.batch} has fewer texts than the {parts} parts (data x fsdp) over "
            f"which --mesh splits its rows; pass {parts} or more"
        )
    if options.dtype == "float16":
        raise ValueError("--dtype float16 is not for training; pass float32 or bfloat16")
    config = described.config
    model = MODELS[getattr(described, "model", type(config))]
    if getattr(config, "ngrams", 0):
        config = replace(config, ngrams=0)  # a solver fits them, not gradient steps
    rows = -(-options.batch // parts)  # a batch is filled with rows that do not count
    training = Training(model, config, sizes, rows, options.length, options.dtype)
    blockwise, reference = map(training.activations, ("blockwise", "reference"))
    return {
        "sizes": sizes,
        "devices": math.prod(sizes.values()),
        "device": device.name,
        "sources": device.sources,
        "rows": rows,
        "state_bytes": state_bytes(training.shapes, sizes),
        "gradient_bytes": gradient_bytes(training.shapes, sizes),
        "memory_bytes": int(device.memory),
        "stored_weights_bytes": reference.total() - blockwise.total(),
        "plain": _step(training, device, blockwise, remat=False),
        "remat": _step(training, device, blockwise, remat=True),
    }


def _step(training: Training, device: Device, kept: Activations, *, remat: bool) -> dict[str, Any]:
    """Return the figures of a step with or without remat."""
    shapes, sizes, dtype = training.shapes, training.sizes, training.dtype
    state, gradient = state_bytes(shapes, sizes), gradient_bytes(shapes, sizes)
    work, activation = work_bytes(shapes, sizes, dtype, remat=remat), kept.total(remat=remat)
    operations = training.collectives(remat=remat)
    flops = formulas.training_flops(
        training.share, training.length, batch=training.rows, remat=remat
    )
    updated = sum(size for name, size in state.items() if name != BEST)
    all_work = work_bytes(shapes, sizes, dtype)
    traffic = traffic_bytes(updated, gradient, all_work, kept.total(), remat=remat)
    time = step_time(flops, traffic, operations, sizes, device, dtype)
    total = sum(state.values()) + gradient + work + activation
    return {
        "work_bytes": work,
        "activation_bytes": activation,
        "bytes": total,
        "fits": total <= device.memory,
        "flops": flops,
        "collectives": [
            {
                "what": one.what,
                "kind": one.kind,
                "axes": one.axes,
                "number": one.number,
                "bytes": one.moved(sizes),
                "seconds": one.seconds(sizes, device),
            }
            for one in operations
        ],
        "seconds": {name: getattr(time, name) for name in SECONDS},
        "limit": time.limit,
    }


def _abstract(model: Callable, config: Any) -> tuple[Any, Any]:
    """Return the graph of a model and the shapes of its parameters; nothing is drawn."""
    return nnx.split(nnx.eval_shape(lambda: model(config, rngs=AbstractRngs())), nnx.Param)


def _forward(model: Callable, implementation: Implementation, config: Any) -> tuple[Callable, Any]:
    graph, params = _abstract(model, config)

    def forward(params, *text):
        return nnx.merge(graph, params)(*text, implementation=implementation)

    return forward, params


def _sizes(text: str | None) -> dict[str, int]:
    """Return the sizes of the axes; those that are not named are 1, as no devices are counted."""
    sizes = parse_mesh(text)
    if text and "-1" in text:
        raise ValueError(f"--mesh {text}: -1 needs devices to count; pass every size that is not 1")
    return {name: 1 if size == -1 else size for name, size in sizes.items()}


def _device(name: str | None) -> Device:
    known = ", ".join(DEVICES)
    if name is None:
        raise ValueError(f"--mesh needs the devices that it is of; pass --device, one of {known}")
    if name not in DEVICES:
        raise ValueError(
            f"--device {name!r:.40} is not known; {did_you_mean(name, DEVICES)}pass one of {known}"
        )
    return DEVICES[name]
