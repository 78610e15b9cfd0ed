"""Matrix products of 16-bit numbers on processors that have no instructions for them: in float32, many times as fast.

The product of two bfloat16 or two float16 numbers is exact in float32. Their sums are taken in float32 and rounded to
16 bits once: what GPUs do, and what PyTorch's own kernels do there, slowly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

OPERATORS = ("mm", "mm.out", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu_backward")
"""Of aten: those that a step of training spends its time with."""


@contextmanager
def fast_products(on_cpu: str | None) -> Iterator[str | None]:
    """Meanwhile products of 16-bit matrices are fast, if there are any; gives how they are taken, for a results row.

    ``on_cpu``: the dtype that a CPU computes in, "bf16" or "fp16"; anything else: in none of them, or not on a CPU.
    "native": by PyTorch; "float32": as above, in this process, forward and backward; None: there are none on the CPU.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(str(on_cpu))
    if dtype is None:
        yield None
    elif not are_slow(dtype):
        yield "native"
    else:
        with in_float32(dtype):
            yield "float32"


def are_slow(dtype: torch.dtype) -> bool:
    """Is PyTorch without fast kernels for these products on this processor (x86 without AVX-512, or its FP16 part)?"""
    known = torch.ops.mkldnn
    has = known._is_mkldnn_bf16_supported if dtype == torch.bfloat16 else known._is_mkldnn_fp16_supported
    return torch._C._has_mkldnn and not has()


@contextmanager
def in_float32(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Inside, the CPU kernels of `OPERATORS` are given float32 in place of ``dtype``; other dtypes pass unchanged."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in OPERATORS:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, _widened(kernel, dtype), "CPU", with_keyset=True)
    try:
        yield
    finally:
        del library  # and with it what was registered


def _widened(kernel: Any, dtype: torch.dtype) -> Callable[..., Any]:
    """The kernel of one operator, which is given float32 in place of ``dtype``."""

    def wide(x: Any) -> Any:
        return x.float() if isinstance(x, Tensor) and x.dtype == dtype else x

    def run(keys: Any, *operands: Any, out: Tensor | None = None, **options: Any) -> Any:
        into = {} if out is None else {"out": out}
        if operands[0].dtype != dtype:
            return kernel.call_boxed(keys, *operands, **into, **options)
        widened = [wide(x) for x in operands]
        options = {name: wide(x) for name, x in options.items()}
        if out is not None:
            room = torch.empty(0)
            return out.resize_as_(kernel.call_boxed(keys, *widened, out=room, **options)).copy_(room)
        result = kernel.call_boxed(keys, *widened, **options)
        return result.to(dtype) if isinstance(result, Tensor) else tuple(part.to(dtype) for part in result)

    return run
