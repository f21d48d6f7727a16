"""The description of the processor by the system, and the defaults where there is none."""

import platform

import pytest

from transformer_jax.runtime import processor
from transformer_jax.runtime.processor import (
    cores,
    processor_has,
    processor_name,
    widest_instructions,
)


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    return tmp_path / "cpuinfo"


@pytest.mark.parametrize(
    ("flags", "has"), [("avx512f amx_bf16 amx_tile", True), ("avx512_bf16", False)]
)
def test_the_processor_says_whether_it_has_amx(cpuinfo, flags, has):
    cpuinfo.write_text(f"model name : x\nflags : {flags}\n")
    assert processor_has.__wrapped__("amx_bf16") is has


@pytest.mark.parametrize(
    ("flags", "widest"),
    [("avx2 avx512f amx_bf16", "amx"), ("avx2 avx512f", "avx512"), ("avx2", "other")],
)
def test_the_widest_instructions_are_those_for_products(cpuinfo, monkeypatch, flags, widest):
    monkeypatch.setattr(processor, "processor_has", processor_has.__wrapped__)
    cpuinfo.write_text(f"flags : {flags}\n")
    assert widest_instructions() == widest


def test_its_name_is_that_of_the_first_core(cpuinfo):
    cpuinfo.write_text("model name\t: Some CPU @ 2 GHz\nflags : a\n\nmodel name\t: Other\n")
    assert processor_name() == "Some CPU @ 2 GHz"


def test_without_a_list_there_is_no_flag_and_the_name_is_the_architecture(cpuinfo):
    assert processor_has.__wrapped__("amx_bf16") is False
    assert processor_name() in (platform.processor(), platform.machine())


def test_a_process_may_use_a_core_at_least():
    assert cores() >= 1
