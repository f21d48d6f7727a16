"""The part of `cost` on training with a device mesh: its options and lines."""

import argparse
from collections.abc import Iterator
from typing import Any

from transformer_jax.cli.cost_rows import bytes_text, row, seconds_text
from transformer_jax.costs.devices import DEVICES

# The rows of a step's time, by the names of `StepTime`.
SECONDS = {
    "compute": "matrix products",
    "memory": "memory",
    "network": "network",
    "overlapped": "if all overlap",
    "sequential": "if the network does not",
}


def add_mesh_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of training on a mesh to the parser of `cost`."""
    parser.add_argument(
        "--mesh",
        help="also show the cost of training on a mesh of devices, such as data=64,fsdp=8,"
        "tensor=2; --batch is then the batch of all devices together",
    )
    parser.add_argument("--device", help=f"the devices of the mesh: {', '.join(DEVICES)}")


def mesh_rows(found: dict[str, Any], dtype: str) -> Iterator[str]:
    """Yield the lines on training on a mesh."""
    shown = ", ".join(f"{name} {size}" for name, size in found["sizes"].items())
    where = f"{found['devices']:,} x {found['device']}: {shown}"
    yield f"Training on {where}; {found['rows']:,} rows of the batch each"
    yield from (f"  {source}" for source in found["sources"])
    yield ""
    yield from _byte_rows(found, dtype)
    yield ""
    yield from _collective_rows(found)
    yield ""
    yield from _time_rows(found)


def _byte_rows(found: dict[str, Any], dtype: str) -> Iterator[str]:
    yield f"Bytes on a device{'no remat':>31}{'remat':>18}"
    plain, remat = found["plain"], found["remat"]
    for name, size in found["state_bytes"].items():
        yield _pair(f"  {name}", size, size, "float32")
    gradient = found["gradient_bytes"]
    yield _pair("  gradient", gradient, gradient, "float32")
    yield _pair("  weights at work", plain["work_bytes"], remat["work_bytes"], dtype)
    yield _pair("  kept for the gradient", plain["activation_bytes"], remat["activation_bytes"])
    yield _pair("  all", plain["bytes"], remat["bytes"])
    yield row("  memory of a device", bytes_text(found["memory_bytes"]), fit(found))
    more = found["stored_weights_bytes"]
    yield row("  attention that stores T x S", f"+{bytes_text(more)}", "reference, not blockwise")


def _pair(label: str, first: int, second: int, beside: str = "") -> str:
    return f"{row(label, bytes_text(first))}{bytes_text(second):>18}   {beside}".rstrip()


def fit(found: dict[str, Any]) -> str:
    """Return whether training fits the memory of a device."""
    if found["plain"]["fits"]:
        return "fits"
    return "fits with remat only" if found["remat"]["fits"] else "DOES NOT FIT"


def _collective_rows(found: dict[str, Any]) -> Iterator[str]:
    yield "Collectives without remat: arrays, bytes received by a device, time by bandwidth"
    for one in found["plain"]["collectives"]:
        label = f"  {one['kind']} over {', '.join(one['axes'])}"
        numbers = f"{one['number']:>8,}{bytes_text(one['bytes']):>12}"
        yield f"{label:<32}{numbers}{seconds_text(one['seconds']):>12}   {one['what']}"
    if not found["plain"]["collectives"]:
        yield "  none"


def _time_rows(found: dict[str, Any]) -> Iterator[str]:
    yield f"Time of a step, at the published peaks{'no remat':>10}{'remat':>18}"
    remat, plain = found["remat"]["seconds"], found["plain"]["seconds"]
    for name, label in SECONDS.items():
        first, second = seconds_text(plain[name]), seconds_text(remat[name])
        yield f"{row(f'  {label}', first)}{second:>18}"
    yield row("  binds", found["plain"]["limit"]) + f"{found['remat']['limit']:>18}"
