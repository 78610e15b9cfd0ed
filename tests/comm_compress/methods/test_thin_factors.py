"""Products with thin factors against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comm_compress.methods.projections.thin_factors import times


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
