"""Multiplications in registers: the loop's sums are right, so its operations were made, and threads are counted."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from fsdp_lab.measure import registers


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_loop_adds_as_many_products_as_it_claims(dtype: str) -> None:
    loop = registers._loop_here(dtype)
    if loop is None:
        pytest.skip(f"this processor has no instruction for {dtype} that is measured")
    engine = registers._compiled(loop)
    run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("run"))
    factors = np.full(64, 0x4000, np.uint16) if dtype == "bf16" else np.full(32, 2.0, np.float32)  # 2.0 in both
    rounds = 100
    multiplied = loop.flops(rounds) / 2 / loop.lanes  # in one lane, which is what comes back
    assert run(rounds, factors.ctypes.data) == 4.0 * multiplied


def test_no_rate_without_an_instruction_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers.llvm, "get_host_cpu_features", lambda: {"sse2": True})
    assert registers.peak_in_registers("fp32", 1) is None
    assert registers.peak_in_registers("bf16", 1) is None
    monkeypatch.setattr(registers.llvm, "get_host_cpu_features", lambda: {"avx512bf16": True, "amx-bf16": True})
    assert registers.peak_in_registers("bf16", 1) is None
