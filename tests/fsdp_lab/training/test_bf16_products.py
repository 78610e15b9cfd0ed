"""Products of 16-bit matrices in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fsdp_lab.training import bf16_products

OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mm": lambda a, b, c: a @ b,
    "transposed": lambda a, b, c: (b.t() @ a.t()).t(),
    "addmm": lambda a, b, c: torch.addmm(c, a, b),
    "factors": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=-2),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "linear": lambda a, b, c: torch.nn.functional.linear(a[None], b.t(), c),
    "without bias": lambda a, b, c: torch.nn.functional.linear(a[None], b.t()),
}


def operands(dtype: torch.dtype, m: int = 5, k: int = 300, n: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m * k + n)
    shapes = (m, k), (k, n), (n,)
    a, b, c = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    return a, b, c


def results(operation: Callable[..., Tensor], dtype: torch.dtype, like: torch.dtype, **sizes: int) -> list[Tensor]:
    """The result in ``dtype`` and its gradients, of numbers that ``like`` can hold."""
    given = [x.detach().to(dtype).requires_grad_() for x in operands(like, **sizes)]
    out = operation(*given)
    out.backward(torch.ones_like(out))
    return [out.detach(), *(x.grad for x in given if x.grad is not None)]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("sizes", [{}, {"m": 1}, {"m": 0}, {"k": 0}, {"n": 1}], ids=str)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str)
def test_they_are_the_exact_products_rounded_once(
    operation: Callable[[Tensor, Tensor, Tensor], Tensor], sizes: dict[str, int], dtype: torch.dtype, rounding: float
) -> None:
    with bf16_products.in_float32(dtype):
        ours = results(operation, dtype, dtype, **sizes)
    exact = results(operation, torch.float64, dtype, **sizes)
    assert len(ours) == len(exact)
    for got, wanted in zip(ours, exact, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted, rtol=rounding, atol=1e-4)  # half a unit of the last place


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_other_dtypes_are_taken_as_before(
    operation: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    before = results(operation, dtype, dtype)
    with bf16_products.in_float32():
        meanwhile = results(operation, dtype, dtype)
    assert all(torch.equal(got, wanted) for got, wanted in zip(meanwhile, before, strict=True))


@pytest.mark.parametrize("which", ["none", "causal", "additive", "boolean"])
def test_attention_has_no_larger_errors_than_before(which: str) -> None:
    generator = torch.Generator().manual_seed(len(which))
    given, outer = torch.randn(3, 2, 4, 77, 32, generator=generator), torch.randn(2, 4, 77, 32, generator=generator)

    def gradients(dtype: torch.dtype) -> Tensor:
        x = given.bfloat16().to(dtype).requires_grad_()
        lower = torch.ones(77, 77, dtype=torch.bool).tril()
        masks = {"additive": torch.zeros(77, 77, dtype=dtype).masked_fill(~lower, -torch.inf), "boolean": lower}
        out = torch.nn.functional.scaled_dot_product_attention(
            x[0], x[1], x[2], attn_mask=masks.get(which), is_causal=which == "causal"
        )
        out.backward(outer.bfloat16().to(dtype))
        assert x.grad is not None
        return x.grad.double()

    exact, before = gradients(torch.float64), gradients(torch.bfloat16)
    with bf16_products.in_float32():
        ours = gradients(torch.bfloat16)
    assert (ours - exact).norm() <= 1.1 * (before - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_into_memory_that_is_there(dtype: torch.dtype) -> None:
    a, b, _ = (x.detach() for x in operands(dtype))
    columns = torch.full((7, 5), torch.nan, dtype=dtype).t()
    with bf16_products.in_float32():
        expected = a @ b
        for out in (columns, torch.full((5, 7), torch.nan, dtype=dtype), torch.empty(0, dtype=dtype)):
            assert torch.mm(a, b, out=out) is out
            torch.testing.assert_close(out, expected)  # columns are summed in another order
    assert columns.stride() == (1, 5)


def test_afterwards_pytorch_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        bf16_products, "_widened", lambda kernel, dtype: lambda *operands: seen.append(operands) or operands[1]
    )
    a, b, _ = operands(torch.bfloat16)
    for _ in range(2):
        with bf16_products.in_float32():
            assert (a @ b).shape == a.shape  # what the one above gives
        assert len(seen) == 1
        assert (a @ b).shape == (5, 7)
        assert len(seen) == 1
        seen.clear()


@pytest.mark.parametrize("slow", [True, False])
def test_only_slow_ones_are_replaced(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_products, "are_slow", lambda dtype: slow)
    for half in ("bf16", "fp16"):
        with bf16_products.fast_products(half) as how:
            assert how == ("float32" if slow else "native")
    for other in ("no", "fp32", None):
        with bf16_products.fast_products(other) as how:
            assert how is None
