"""The arithmetic that a processor can do at most: multiplications and additions in registers, no memory involved.

A matrix product reads and writes memory between its multiplications, so none is faster than this, whichever library
it is of. The loop is text for LLVM, which numba brings along: independent sums, each in one vector register, enough of
them that no multiplication waits for the one before. float32 by fused multiply-add (FMA); bf16 by the instruction of
AVX512_BF16 that multiplies pairs of bf16 and adds them up in float32. Tiles (AMX) are not measured.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

# Of the loop, some 3 ms; how often it is timed: threads of torch's that look for work for a while slow the first times.
_ROUNDS, _TIMES = 200_000, 20
_UNROLLED = 2
_VECTORS = {  # by what the processor has, widest first: floats in a register, sums that its registers hold
    "avx512f": (16, 24),
    "fma": (8, 12),
    "neon": (4, 24),
}


@dataclass(frozen=True)
class _Loop:
    """One loop. ``lanes``: floats in a vector. ``chains``: independent sums. ``is_bf16``: of pairs of bf16."""

    lanes: int
    chains: int
    is_bf16: bool

    def flops(self, rounds: int) -> int:
        """Multiplications and additions of ``rounds`` rounds."""
        return rounds * _UNROLLED * self.chains * self.lanes * 2 * (2 if self.is_bf16 else 1)


def peak_in_registers(dtype: str, threads: int) -> float | None:
    """FLOP/s of ``threads`` threads in ``dtype`` ("fp32" or "bf16"), the best of some tries of 3 ms.

    None where this processor has no instruction for it that we know: bf16 without AVX512_BF16, or with AMX, whose tiles
    multiply faster than what is measured here.
    """
    loop = _loop_here(dtype)
    if loop is None:
        return None
    engine = _compiled(loop)
    run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("run"))
    factors = np.zeros(32, dtype=np.float32)  # zeros: sums stay finite; these instructions take as long for any number
    best = min(_seconds(lambda: run(_ROUNDS, factors.ctypes.data), threads) for _ in range(_TIMES))
    return threads * loop.flops(_ROUNDS) / best


def _loop_here(dtype: str) -> _Loop | None:
    has = llvm.get_host_cpu_features()
    if dtype == "bf16":
        return _Loop(*_VECTORS["avx512f"], True) if has.get("avx512bf16") and not has.get("amx-bf16") else None
    return next((_Loop(*shape, False) for name, shape in _VECTORS.items() if has.get(name)), None)


def _compiled(loop: _Loop) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_text(loop)), machine)
    engine.finalize_object()
    return engine


def _text(loop: _Loop) -> str:
    """LLVM's text of ``float run(int64 rounds, float *factors)``: every sum adds the same product in each round."""
    total = f"<{loop.lanes} x float>"
    factor = f"<{2 * loop.lanes} x bfloat>" if loop.is_bf16 else total
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * loop.lanes}" if loop.is_bf16 else f"llvm.fma.v{loop.lanes}f32"
    signature = (total, factor, factor) if loop.is_bf16 else (factor, factor, total)
    chains, last = range(loop.chains), _UNROLLED
    lines = [
        f"declare {total} @{name}({', '.join(signature)})",
        "define float @run(i64 %rounds, ptr %factors) {",
        "entry:",
        f"  %x = load {factor}, ptr %factors, align 2",
        "  %second = getelementptr i8, ptr %factors, i64 64",
        f"  %y = load {factor}, ptr %second, align 2",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *(f"  %s{c}_0 = phi {total} [zeroinitializer, %entry], [%s{c}_{last}, %loop]" for c in chains),
    ]
    for step in range(_UNROLLED):
        for c in chains:
            given = [f"{factor} %x", f"{factor} %y"]
            given.insert(0 if loop.is_bf16 else 2, f"{total} %s{c}_{step}")
            lines.append(f"  %s{c}_{step + 1} = call {total} @{name}({', '.join(given)})")
    lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %rounds",
        "  br i1 %more, label %loop, label %done",
        "done:",
        f"  %t0 = fadd {total} %s0_{last}, zeroinitializer",
        *(f"  %t{c} = fadd {total} %t{c - 1}, %s{c}_{last}" for c in chains[1:]),
        f"  %result = extractelement {total} %t{loop.chains - 1}, i32 0",
        "  ret float %result",
        "}",
    ]
    return "\n".join(lines)


def _seconds(work: Callable[[], float], threads: int) -> float:
    workers = [threading.Thread(target=work) for _ in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started
