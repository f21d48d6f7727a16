"""Build the attention kernel for this processor, with the C++ compiler of the system.

    python -m transformer_jax build

compiles `transformer_jax/attention/kernels/cpu_attention.cc` and keeps the library in the user's
cache directory. `make` does so when it installs. On one CPU, attention in float32 or bfloat16
without a bias is then computed by the library; without it, by XLA. The environment variable CXX
names the compiler.
"""

import argparse

from transformer_jax.attention.kernels.cpu import SOURCE
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.shared_library import build_library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace) -> None:
    try:
        print(f"Attention on a CPU is computed by {build_library(SOURCE)}")
    except (OSError, RuntimeError) as error:
        raise InputError(f"{error}. Without the kernel XLA computes attention") from None
