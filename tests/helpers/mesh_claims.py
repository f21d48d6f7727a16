"""Train small models on meshes of eight simulated devices, and print what was found as JSON.

tests/parallel/test_mesh_training.py starts it once, in a process of its own, because XLA makes
devices of a CPU only when it is told to before it starts.
"""

import json
import math
import sys
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.peers.mesh_runs import MODELS, Case, Run, on_mesh, trained
from tests.helpers.arrays import normal
from tests.helpers.implementations import attend
from train.objectives.language_modeling import Windows, make_evaluation, token_losses
from train.trainer import checkpoints
from train.trainer.checkpoints import Progress
from train.trainer.step import copied
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.mesh import (
    AT_REST,
    gather,
    keep_at_rest,
    place,
    settled,
    spec_of,
    split_rows,
    to_host,
)

PLAIN = Case("language model")
FSDP, TENSOR, ALL = (1, 8, 1), (1, 1, 4), (2, 2, 2)
# Each mesh, each model and each optimizer once; `python -m bench.mesh` trains every combination.
COMPARED = {
    "language model": (PLAIN, [FSDP, TENSOR]),
    "one key head, a vocabulary that does not divide, an untied head, blockwise, Muon": (
        Case(
            "language model", "Muon", layers=1, length=40, vocab_size=97, kv_heads=1,
            tied_head=False, implementation="blockwise",
        ),
        [ALL],
    ),
    "bfloat16": (Case("language model", layers=1, dtype="bfloat16"), [ALL]),
    "classifier": (Case("classifier", layers=1, dropout=0), [(1, 2, 4)]),
    "encoder-decoder": (Case("encoder-decoder", layers=1, dropout=0), [(8, 1, 1)]),
}  # fmt: skip


def losses():
    """The largest distance of any loss from that on one device, by case and mesh."""
    found = {}
    for name, (case, meshes) in COMPARED.items():
        alone = trained(case)
        found[name] = {
            str(sizes): float(np.abs(np.subtract(trained(case, sizes), alone)).max())
            for sizes in meshes
        }
    return found


def step_on(sizes):
    """The collectives of each kind in the compiled step, and what is split between devices."""
    with on_mesh(sizes):
        run = Run.of(PLAIN)
        mesh = jax.sharding.get_abstract_mesh().shape
        named = named_parameters(run.state.params)
        split = [spec_of(name, x.shape, AT_REST, mesh) for name, x in named]
        return {
            "collectives": run.collectives(),
            "matrices split over fsdp": sum("fsdp" in spec for spec in split),
            "layers": PLAIN.layers,
            "bytes of the state": run.state_bytes(),
        }


def compilations():
    """The number of compiled steps, and losses with and without a restored checkpoint."""
    with on_mesh(FSDP), tempfile.TemporaryDirectory() as folder:
        run = Run.of(PLAIN)
        first = list(islice(run.losses(), 3))
        before = run.step._cache_size()
        best = settled(copied(run.state.average))
        nats, _ = make_evaluation(run.graph, run.batches[:2])(run.state.average)
        checkpoints.save(Path(folder), (run.state, best), Progress(step=3))
        (restored, _), _ = checkpoints.load(Path(folder), (run.state, best))
        run.batches = run.batches[3:5]
        here = [*run.losses()]
        run.state = restored
        return {
            "before": before,
            "after": run.step._cache_size(),
            "finite": all(map(math.isfinite, [*first, nats])),
            "here": here,
            "restored": [*run.losses()],
        }


def table_gradients():
    """The distance of the gradients of a table, split by its vocabulary, from those of one device.

    Both uses of the table are in it, the rows of the tokens and the head; tokens are repeated.
    """
    make, _, _ = MODELS[PLAIN.model](Case("language model", layers=0, dropout=0))
    graph, params = nnx.split(make(), nnx.Param)
    tokens = np.random.default_rng(0).integers(0, 7, (16, 32), np.int32) ** 2  # seven ids
    batch = Windows(tokens, np.roll(tokens, -1, 1), tokens > 0, None)

    def gradients(params, batch):
        @jax.jit
        def of(params, batch):
            def loss(params):
                losses = token_losses(nnx.merge(graph, gather(params)), batch)
                return losses.sum() / batch.is_target.sum()

            return keep_at_rest(jax.grad(loss)(params))

        return settled(of(place(params), split_rows(batch)))

    alone = gradients(params, batch)["embedding"]["token"]["embedding"][...]
    with on_mesh(TENSOR):
        split = gradients(params, batch)["embedding"]["token"]["embedding"][...]
    difference = np.abs(to_host(split) - to_host(alone)).max()
    return {
        "difference": float(difference),
        "largest": float(np.abs(alone).max()),
        "rows on a device": split.addressable_shards[0].data.shape[0],
    }


def masked_rows():
    """The attention and its gradients with masked rows of NaN, split by example and head.

    In example 0 no query sees a key; in the others query 1 sees none, and nobody sees key 4. What
    is masked holds NaN, the cotangent of such a query too.
    """
    B, T, N, K, H = 4, 6, 4, 2, 8
    mask = np.tril(np.ones((B, 1, T, T), bool))
    mask[0], mask[:, :, 1], mask[..., 4] = False, False, False
    no_key, unseen = ~mask.any(-1)[:, 0], ~mask.any(-2)[:, 0]
    query, key, value = (normal(i, B, T, n, H) for i, n in enumerate((N, K, K)))
    query[no_key], key[unseen], value[unseen] = np.nan, np.nan, np.nan
    arrays = [x.astype(np.float32) for x in (query, key, value)]

    def value_and_grads(implementation, arrays, mask):
        def loss(query, key, value):
            output = attend(
                query, key, value, mask=mask, implementation=implementation, at_once=True
            )
            return jnp.sum(jnp.sin(output)), output

        gradients, output = jax.grad(loss, (0, 1, 2), has_aux=True)(*arrays)
        return output, *gradients

    found = {}
    for implementation in ("reference", "blockwise"):
        of = jax.jit(partial(value_and_grads, implementation))
        alone = [np.asarray(x) for x in of(arrays, mask)]
        with on_mesh(ALL):
            mesh = jax.sharding.get_mesh()
            heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor"))
            split = [jax.device_put(x, heads) for x in arrays]
            rows = jax.device_put(mask, NamedSharding(mesh, P(("data", "fsdp"))))
            output, *gradients = jax.block_until_ready(of(split, rows))
            shard = output.addressable_shards[0].data.shape
            both = [to_host(x) for x in (output, *gradients)]
        found[implementation] = {
            "largest where masked": float(
                max(
                    np.abs(x[rows]).max()
                    for x, rows in zip(both, (no_key, no_key, unseen, unseen), strict=True)
                )
            ),
            "smallest elsewhere": float(min(np.abs(x).max() for x in both)),
            "difference": float(max(np.abs(x - y).max() for x, y in zip(both, alone, strict=True))),
            "examples and heads on a device": [shard[0], shard[2]],
        }
    return found


def main():
    found = {
        "losses": losses(),
        "fsdp": step_on(FSDP),
        "tensor": step_on(TENSOR),
        "compilations": compilations(),
        "table": table_gradients(),
        "masked": masked_rows(),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
