r"""Show the cost of a transformer: parameters, operations and bytes.

    python -m transformer_jax cost bert-base --length 512
    python -m transformer_jax cost gpt3 --tokens 300e9      (also the cost of training on 300e9)
    python -m transformer_jax cost RUN --batch 64           (the model of a run folder)
    python -m transformer_jax cost llama2-7b --mesh data=64,fsdp=8 --device h100 --batch 1024 \
        --length 4096 --dtype bfloat16      (training on a mesh of 512 devices)
    python -m transformer_jax cost --list

All numbers are computed from the sizes of the model. Nothing is downloaded, and the model does not
run. A multiply-add counts as two operations.

--mesh counts what the training programs hold on each device: parameters, their average, the best
average so far, and the two moments of AdamW, in float32 and split as in training; the gradient, the
weights at work, and what JAX keeps for the gradient. Times are limits: published peaks of --device
that no program reaches. It is assumed that XLA makes reduce-scatters, as on accelerators.
"""

import argparse
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from transformer_jax.cli.cost_rows import bytes_text, row
from transformer_jax.cli.mesh_cost import add_mesh_arguments, mesh_rows
from transformer_jax.cli.terminal import did_you_mean, writable
from transformer_jax.costs import formulas
from transformer_jax.costs.formulas import Config
from transformer_jax.costs.jaxpr import count
from transformer_jax.costs.published import PUBLISHED, Published
from transformer_jax.models.config import LanguageModelConfig, SequenceToSequenceConfig
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import CONFIG

if TYPE_CHECKING:
    from transformer_jax.serialization.run_folder import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="NAME or RUN", nargs="?", help="name of a published model, or run folder"
    )
    parser.add_argument("--list", action="store_true", help="list the published models")
    parser.add_argument("--length", type=int, default=512, help="tokens per text (default: 512)")
    parser.add_argument("--batch", type=int, default=1, help="texts per batch (default: 1)")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of parameters and activations (default: float32)",
    )
    parser.add_argument(
        "--causal", action="store_true", help="assume that no token attends to a later one"
    )
    parser.add_argument(
        "--window", type=int, help="assume that a token attends to this many tokens on each side"
    )
    parser.add_argument(
        "--tokens", type=float, help="also show the cost of training on this many tokens, as 1e9"
    )
    parser.add_argument(
        "--xla", action="store_true", help="also show the operations that XLA counts (run folders)"
    )
    add_mesh_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    if options.list:
        found = {name: _parameters(p.config, p) for name, p in PUBLISHED.items()}
        lines = [json.dumps(found)] if options.json else map(_listed, found, found.values())
    elif options.model is None:
        raise InputError("no model given; pass a NAME that `cost --list` shows, or a run folder")
    else:
        try:
            found = figures(options)
        except ValueError as error:  # a bad size or option; the message names it
            raise InputError(str(error)) from None
        lines = [json.dumps(found)] if options.json else list(table(found))
    for line in lines:
        print(writable(line))


def figures(options: argparse.Namespace) -> dict[str, Any]:
    """Return all printed numbers by name. Raises ValueError if an option does not fit the model."""
    name = options.model
    published = PUBLISHED.get(name)
    described = published or _spec(name)
    config: Any = described.config
    if options.tokens is not None and not 0 < options.tokens < math.inf:
        raise ValueError(f"--tokens must be a number above 0; got {options.tokens:g}")
    if options.xla and published:
        raise ValueError("--xla compiles a model: pass a run folder, not the name of one")
    sizes = _sizes(config, options)
    given = {
        "model": name,
        "length": options.length,
        "batch": options.batch,
        "dtype": options.dtype,
    }
    found = given | {"sizes": sizes, "config": asdict(config)} | _parameters(config, published)
    found |= _operations(config, sizes, options, published)
    if options.xla:
        found["compiled"] = _compiled(described, options.batch, options.length)
    found |= _memory(config, sizes, options)
    if options.mesh is not None or options.device is not None:
        # Imported here so that mistakes are answered at once.
        from transformer_jax.cli.mesh_figures import mesh_figures

        found["mesh"] = mesh_figures(described, options)
    projections, layer = formulas.crossover_lengths(formulas.stacks_of(config)[0])
    return found | {"crossover_projections": projections, "crossover_layer": layer}


def _sizes(config: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the sizes of the layers' axes, and what a token attends to."""
    first, *others = formulas.stacks_of(config)
    num_heads, num_kv_heads, head_dim, value_dim = first.axes
    writes = isinstance(config, LanguageModelConfig | SequenceToSequenceConfig)
    window = config.window if isinstance(config, LanguageModelConfig) else None
    return {
        "num_layers": first.num_layers,
        "num_decoder_layers": sum(stack.num_layers for stack in others),
        "embed_dim": first.embed_dim,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
        "hidden_dim": first.hidden_dim,
        "vocab_size": config.vocab_size,
        "num_positions": formulas.learned_positions(config),
        "inputs": formulas.encoder_length(config, options.length),
        "causal": writes or options.causal,
        "window": window if options.window is None else options.window,
    }


def _parameters(config: Config, published: Published | None) -> dict[str, Any]:
    total = formulas.parameters(config)
    found = {"parameters": total, "parameters_by_part": formulas.parameter_table(config)}
    if published:
        found |= {
            "published_parameters": published.nominal,
            "off_percent": 100 * (total / published.nominal - 1),
            "source": published.source,
            "note": published.note,
        }
    return found


def _operations(
    config: Config, sizes: dict[str, Any], options: argparse.Namespace, published: Published | None
) -> dict[str, Any]:
    length, texts, total = options.length, {"batch": options.batch}, formulas.parameters(config)
    training = formulas.training_flops(config, length, **texts)
    found = {
        "forward_flops": formulas.forward_flops(config, length, **texts),
        "forward_flops_by_part": formulas.forward_table(config, length, **texts),
        "training_flops": training,
        "training_flops_remat": formulas.training_flops(config, length, remat=True, **texts),
        "training_flops_6nd": formulas.six_nd(total, options.batch * length),
    }
    if sizes["causal"] or sizes["window"] is not None:
        found["forward_flops_visible"] = formulas.forward_flops(
            config, length, causal=sizes["causal"], window=sizes["window"], **texts
        )
    tokens = options.tokens or (published and published.tokens)
    if tokens:
        found["tokens"] = tokens
        found["tokens_flops"] = training / (options.batch * length) * tokens
        found["tokens_flops_6nd"] = formulas.six_nd(total, tokens)
        if published:
            found["tokens_flops_6nd_published"] = formulas.six_nd(published.nominal, tokens)
    return found


def _memory(config: Config, sizes: dict[str, Any], options: argparse.Namespace) -> dict[str, int]:
    arrays = {"batch": options.batch, "dtype": options.dtype}
    found = {"parameter_bytes": formulas.parameters(config) * jnp.dtype(options.dtype).itemsize}
    for key, switches in ACTIVATIONS.items():
        found[key] = formulas.activation_bytes(config, options.length, **arrays, **switches)
    if sizes["causal"]:
        found["cache_bytes"] = formulas.cache_bytes(
            config, options.length, window=sizes["window"], **arrays
        )
    return found


ACTIVATIONS = {
    "activation_bytes": {},
    "activation_bytes_blockwise": {"keep_weights": False},
    "activation_bytes_remat": {"remat": True},
    "activation_bytes_remat_blockwise": {"remat": True, "keep_weights": False},
}


def table(found: dict[str, Any]) -> Iterator[str]:
    """Format the figures as lines of at most 100 columns."""
    sizes = found["sizes"]
    more = sizes["num_decoder_layers"]
    axes = {
        "L": f"{sizes['num_layers']}+{more}" if more else sizes["num_layers"],
        "D": sizes["embed_dim"],
        "N": sizes["num_heads"],
        "K": sizes["num_kv_heads"],
        "H": sizes["head_dim"],
        "F": sizes["hidden_dim"],
        "V": sizes["vocab_size"],
    }
    yield f"{found['model']}: {' '.join(f'{axis}={size}' for axis, size in axes.items())}"
    if "source" in found:
        yield found["source"]
    if found.get("note"):
        yield found["note"]
    if 0 < sizes["num_positions"] < sizes["inputs"]:
        yield f"note: the position table has fewer rows than {found['length']} tokens need"

    rest = (_byte_rows, _crossover_rows) if "mesh" not in found else (_mesh_rows,)
    for section in (_parameter_rows, _operation_rows, *rest):
        yield ""
        yield from section(found)


def _parameter_rows(found: dict[str, Any]) -> Iterator[str]:
    beside = ""
    if "published_parameters" in found:
        off = found["off_percent"]
        beside = f"published: {_short(found['published_parameters'])}, off by {off:+.1f}%"
    yield row("Parameters", f"{found['parameters']:,}", beside)
    for part, number in found["parameters_by_part"].items():
        yield row(f"  {part}", f"{number:,}", f"{number / found['parameters']:6.1%}")


def _operation_rows(found: dict[str, Any]) -> Iterator[str]:
    yield f"Operations (FLOPs) for {found['batch']} x {found['length']} tokens"
    forward = found["forward_flops"]
    yield row("  forward", f"{forward:.3e}")
    for part, number in found["forward_flops_by_part"].items():
        yield row(f"    {part}", f"{number:.3e}", f"{number / forward:6.1%}")
    for key, label, beside in (
        ("forward_flops_visible", "forward, visible pairs", "if masked blocks are skipped"),
        ("training_flops", "training step", "3 x forward"),
        ("training_flops_remat", "training step, remat", "computes the layers a second time"),
        ("training_flops_6nd", "training step by 6 N D", "counts tables, not T x S products"),
    ):
        if key in found:
            yield row(f"  {label}", f"{found[key]:.3e}", beside)
    if "tokens" in found:
        yield row(f"  training on {found['tokens']:.3g} tokens", f"{found['tokens_flops']:.3e}")
        yield row("    by 6 N D", f"{found['tokens_flops_6nd']:.3e}", "N as counted here")
    if "tokens_flops_6nd_published" in found:
        yield row("    by 6 N D", f"{found['tokens_flops_6nd_published']:.3e}", "N as published")
    for label, number in found.get("compiled", {}).items():
        yield row(f"  {label}", f"{number:.3e}")


def _byte_rows(found: dict[str, Any]) -> Iterator[str]:
    yield f"Bytes in {found['dtype']}"
    for key, label, beside in (
        ("parameter_bytes", "parameters", "training in float32 with Adam: 16 bytes each"),
        ("activation_bytes", "kept for the gradient", "with the T x S attention weights"),
        ("activation_bytes_blockwise", "  blockwise", "without the attention weights"),
        ("activation_bytes_remat", "  remat", "the input of each layer, and one layer in full"),
        ("activation_bytes_remat_blockwise", "  remat, blockwise", ""),
        ("cache_bytes", "key-value cache", "for generation"),
    ):
        if key in found:
            yield row(f"  {label}", bytes_text(found[key]), beside)


def _mesh_rows(found: dict[str, Any]) -> Iterator[str]:
    return mesh_rows(found["mesh"], found["dtype"])


def _crossover_rows(found: dict[str, Any]) -> Iterator[str]:
    yield "The T x T products of self-attention cost as much as"
    yield row("  the projections at T =", f"{found['crossover_projections']:,.0f}")
    yield row("  the rest of a layer at T =", f"{found['crossover_layer']:,.0f}")


def _short(number: float) -> str:
    """Format a number of parameters, such as 110M or 1.5B."""
    return f"{number / 1e9:g}B" if number >= 1e9 else f"{number / 1e6:g}M"


def _listed(name: str, found: dict[str, Any]) -> str:
    published, off = _short(found["published_parameters"]), found["off_percent"]
    return f"{name:<18}{found['parameters']:>18,}   published: {published:>5}   {off:+5.1f}%"


def _spec(name: str) -> "Spec":
    """Read the specification of a run folder."""
    if not os.path.isdir(name):  # Path.is_dir raises OSError if the name is too long
        raise InputError(
            f"{name[:100]!r} is neither a published model nor a run folder; "
            f"{did_you_mean(name, PUBLISHED)}`cost --list` shows the models"
        )
    # Imported here so that help and published models are answered at once.
    from transformer_jax.serialization.run_folder import read_spec

    return read_spec(Path(name) / CONFIG)


def _compiled(spec: Any, batch: int, length: int) -> dict[str, Any]:
    """Count the operations of the forward pass in its jaxpr and as XLA's cost analysis does."""
    from flax import nnx

    from transformer_jax.models.seq2seq import SequenceToSequence
    from transformer_jax.nn.parameters import AbstractRngs
    from transformer_jax.serialization.run_folder import KINDS

    # XLA counts the body of a loop once; the count of the jaxpr multiplies it by the iterations.
    make = KINDS[spec.model].model
    abstract = nnx.eval_shape(lambda: make(spec.config, rngs=AbstractRngs()))
    graph, params = nnx.split(abstract)

    def forward(params, *args):
        return nnx.merge(graph, params)(*args)

    text = [jax.ShapeDtypeStruct((batch, length), dtype) for dtype in (jnp.int32, bool)]
    args = (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params),
        *text * (2 if make is SequenceToSequence else 1),
    )
    counted = count(forward, *args)
    analysis = jax.jit(forward).lower(*args).compile().cost_analysis() or {}
    return {
        "counted: products": counted.flops,
        "counted: elementwise": counted.elementwise,
        "XLA's own count of both": analysis.get("flops", float("nan")),
    }
