"""Processes that begin with the packages imported, of which a program takes seconds to import."""

import multiprocessing
from collections.abc import Callable

# Nothing of the project: a process imports it from where it is told to.
IMPORTED = [
    "jax", "jax.numpy", "flax.nnx", "optax", "orbax.checkpoint", "orbax.checkpoint.v1", "pytest",
    "hypothesis", "jaxtyping", "numpy.testing", "safetensors.numpy", "tokenizers", "pandas", "tqdm",
    "scipy.optimize", "scipy.sparse.linalg", "scipy.stats", "sklearn.feature_extraction.text",
    "sklearn.linear_model", "sklearn.metrics", "sklearn.svm", "matplotlib.figure",
]  # fmt: skip


def forked(function: Callable, *arguments) -> multiprocessing.Process:
    """Start a function in a process that is forked from one in which the packages are imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=function, args=arguments)
    process.start()
    return process
