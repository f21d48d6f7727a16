"""The library of the kernels in C++: `kernels.cc`, compiled for this processor.

    python -m transformer_jax build

compiles it. Without it, and for what is exported or compiled for another kind of device, XLA
computes what the kernels do.
"""

import ctypes
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from transformer_jax.runtime.shared_library import library_path

SOURCE = Path(__file__).with_name("kernels.cc")
KERNELS = ("attention_forward", "attention_backward", "skinny_product")
DTYPES = ("float32", "bfloat16")


@cache
def is_built() -> bool:
    """Return whether the library is built for this processor, after loading it.

    A library that cannot be loaded is not, nor is one for another version of the source or another
    processor: a warning says what to do.
    """
    try:
        path = library_path(SOURCE)
        if not path.exists():
            if any(path.parent.glob(f"{SOURCE.stem}-*.so")):
                warnings.warn(
                    "XLA computes without the kernels in C++, which are built for another version "
                    "or processor; build them again (python -m transformer_jax build)",
                    stacklevel=2,
                )
            return False
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return False
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        warnings.warn(
            f"XLA computes without the kernels in C++, which cannot be loaded: {error}; delete the "
            "file and build it again (python -m transformer_jax build)",
            stacklevel=2,
        )
        return False
    for name in (f"{name}_{dtype}" for name in KERNELS for dtype in DTYPES):
        target = jax.ffi.pycapsule(getattr(library, name))
        jax.ffi.register_ffi_target(f"transformer_jax_{name}", target, platform="cpu")
    return True


def is_one_cpu() -> bool:
    """Return whether a CPU is the only device.

    The kernels in C++ expect it, and tiles and training steps are then made for its memory.
    """
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def lower_by_kernel(primitive: Primitive, kernel: Callable, by_xla: Callable) -> None:
    """Make a primitive call its kernel on this CPU, and compute it by XLA everywhere else."""
    multiple = primitive.multiple_results

    def on_cpu(context, *arrays, **params):
        # An exported program may run where there is no kernel.
        exported = context.module_context.lowering_parameters.for_export
        function = by_xla if exported else kernel
        return mlir.lower_fun(function, multiple_results=multiple)(context, *arrays, **params)

    primitive.def_impl(kernel)
    mlir.register_lowering(primitive, mlir.lower_fun(by_xla, multiple_results=multiple))
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
