"""Matrix products of bfloat16 on processors that have no instructions for them: in float32, many times as fast.

The product of two bfloat16 numbers is exact in float32. Their sums are taken in float32 and rounded to bfloat16 once:
what GPUs do, and what PyTorch's own kernels do there, slowly.
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
def fast_products(bf16_on_cpu: bool) -> Iterator[str | None]:
    """Meanwhile products of bfloat16 matrices are fast, if there are any; gives how they are taken, for a results row.

    "native": by PyTorch; "float32": as above, in this process, forward and backward; None: there are none on the CPU.
    """
    if not bf16_on_cpu:
        yield None
    elif not are_slow():
        yield "native"
    else:
        with in_float32():
            yield "float32"


def are_slow() -> bool:
    """Is PyTorch without fast kernels for these products on this processor (x86 without AVX-512)?"""
    return torch._C._has_mkldnn and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def in_float32() -> Iterator[None]:
    """Put ourselves between bfloat16 and the CPU kernels of `OPERATORS`; other dtypes go through."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in OPERATORS:
            library.impl(name, _widened(torch.library.get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True)
    try:
        yield
    finally:
        del library  # and with it what was registered


def _widened(kernel: Any) -> Callable[..., Any]:
    """The kernel of one operator, which is given float32 in place of bfloat16."""

    def run(keys: Any, *operands: Any, out: Tensor | None = None, **options: Any) -> Any:
        into = {} if out is None else {"out": out}
        if operands[0].dtype != torch.bfloat16:
            return kernel.call_boxed(keys, *operands, **into, **options)
        wide = [_wide(x) for x in operands]
        options = {name: _wide(x) for name, x in options.items()}
        if out is not None:
            room = torch.empty(0)
            return out.resize_as_(kernel.call_boxed(keys, *wide, out=room, **options)).copy_(room)
        result = kernel.call_boxed(keys, *wide, **options)
        return result.bfloat16() if isinstance(result, Tensor) else tuple(part.bfloat16() for part in result)

    return run


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x
