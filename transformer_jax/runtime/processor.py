"""The processor, as the system describes it."""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Literal

Instructions = Literal["amx", "avx512", "other"]
CPUINFO = Path("/proc/cpuinfo")  # on Linux


def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system gives no name."""
    names = [
        line.partition(":")[2].strip()
        for line in _cpuinfo().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def processor_description() -> str:
    """Return the processor's name and, on Linux, its instructions, in lines that do not change."""
    words = ("model name", "flags", "Features", "CPU ")  # "Features" and "CPU part" on ARM
    lines = {line for line in _cpuinfo().splitlines() if line.startswith(words)}
    return "\n".join([platform.machine(), processor_name(), *sorted(lines)])


@cache
def processor_has(flag: str) -> bool:
    """Return whether Linux lists `flag` among the processor's flags; False on other systems."""
    return flag in _cpuinfo().split()


def widest_instructions() -> Instructions:
    """Return the widest instructions for products that the processor has, as Linux lists them."""
    if processor_has("amx_bf16"):
        return "amx"
    return "avx512" if processor_has("avx512f") else "other"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> str:
    try:
        return CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
