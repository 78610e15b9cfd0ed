"""Products with thin factors against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comm_compress.methods.projections.thin_factors import (
    each_product,
    orthonormal,
    stacked,
    subtract_each_product,
    times,
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("a", "b", "r"), [(50, 70, 4), (70, 50, 4), (1, 9, 1), (9, 1, 1), (0, 3, 2), (3, 0, 2)])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("of_all", [False, True])
def test_it_is_the_product(a: int, b: int, r: int, batch: tuple[int, ...], of_all: bool) -> None:
    """Also of transposed matrices and of columns of wider ones, with one factor for all of them or one each."""
    factor = random(*(() if of_all else batch), b, r)
    for matrix in (random(*batch, a, b), random(*batch, b, a).mT, random(*batch, a, b + 5)[..., 2 : b + 2]):
        found = times(matrix, factor)
        np.testing.assert_allclose(found.numpy(), matrix.double().numpy() @ factor.double().numpy(), atol=1e-4)


@pytest.mark.parametrize(("a", "b", "c"), [(3, 4, 5), (60, 8, 40)])
def test_a_stack_of_products_is_its_products(a: int, b: int, c: int) -> None:
    """Few numbers and many: those that torch would multiply otherwise in a stack, to the last bit."""
    first, second = random(3, a, b), random(3, b, c)
    wanted = torch.stack([x @ y for x, y in zip(first, second, strict=True)])
    rows = random(3, a * c + 7)
    out = rows[:, 2 : a * c + 2].view(3, a, c)
    before, beside = out.clone(), rows[:, -5:].clone()
    exact = a * b * c < 400
    compare = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(stacked(first, second), wanted, **compare)
    subtract_each_product(out, first, second)
    torch.testing.assert_close(out, before - wanted, rtol=1e-5, atol=1e-5)
    each_product(first, second, out)
    torch.testing.assert_close(out, wanted, **compare)
    assert torch.equal(rows[:, -5:], beside)


def test_bases_of_a_stack_are_those_of_its_factors() -> None:
    """Of any size: one factor's peak does not touch another's."""
    factors = random(3, 20, 4) * torch.tensor([1e-30, 1.0, 1e30])[:, None, None]
    assert torch.equal(orthonormal(factors), torch.stack([orthonormal(f) for f in factors]))
