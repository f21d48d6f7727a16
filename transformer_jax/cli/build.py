"""Build the kernels for this processor, with the C++ compiler of the system.

    python -m transformer_jax build

compiles `transformer_jax/cpu/kernels.cc` and keeps the library in the user's cache directory.
`make` does so when it installs. On one CPU, the library then computes attention in float32 or
bfloat16 without a bias, and the products of a few rows with the weights, as in generation. Without
it, XLA computes them. The environment variable CXX names the compiler.
"""

import argparse

from transformer_jax.cpu.library import SOURCE
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.shared_library import build_library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace) -> None:
    try:
        print(f"Kernels for this CPU: {build_library(SOURCE)}")
    except (OSError, RuntimeError) as error:
        raise InputError(f"{error}. Without the kernels XLA computes everything") from None
