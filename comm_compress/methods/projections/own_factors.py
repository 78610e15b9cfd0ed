"""Two thin factors of each of a rank's own matrices: a basis of right ones, and the left ones that fit them best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.methods.projections.own_matrices import Arrangement, sizes_of
from comm_compress.methods.projections.thin_factors import each_product, stacked

RIDGE = 1e-6  # a codec may round a right factor to zeros, or two of them to the same


class OwnFactors:
    """Finds two thin factors for each matrix that float32 ``rows`` ``[R, n]`` hold.

    ``starts`` float32 ``[R, sum of short * r]``: right factors to begin with. Matrices whose lines are of one length
    are orthonormalised together.
    """

    def __init__(self, arrangement: Arrangement, rows: Tensor, starts: Tensor) -> None:
        self._matrices, self._groups = arrangement.matrices, arrangement.plan.groups
        self._sizes, self._num_rows = sizes_of(arrangement.matrices), rows.shape[0]
        self._lines = [m.lines(rows) for m in arrangement.matrices]
        self._starts = starts
        pairs = zip(self._by_matrix(starts), self._lines, strict=True)
        self._begun = [stacked(start.mT, lines.mT) for start, lines in pairs]  # left factors [R, r, long] of the starts

    def misfits(self, lengths: Tensor) -> Tensor:
        """How long what ``starts``, orthonormal to their rounding, leave of each line is: float32 ``[R, sum of long]``.

        ``lengths``, of that shape: of the lines; returned as they are of matrices of which no line may go whole.
        """
        of_matrices = zip(self._matrices, lengths.split_with_sizes(self._sizes.long, 1), strict=True)
        found = [
            _misfit(length, begun, start) if m.whole else length
            for (m, length), begun, start in zip(of_matrices, self._begun, self._by_matrix(self._starts), strict=True)
        ]
        return torch.cat(found, 1) if found else lengths

    def bases(self, weights: Tensor) -> Tensor:
        """Orthonormal right factors by a step of subspace iteration, float32 ``[R, sum of short * r]``; once.

        ``weights`` float32 ``[R, sum of long]``: what each line is multiplied by; factors are, which are much smaller.
        """
        bases = torch.empty_like(self._starts)
        self._weights = weights.split_with_sizes(self._sizes.long, 1)
        outs = self._by_matrix(bases)
        for group in self._groups:
            _, r, _ = self._begun[group[0]].shape
            turned = bases.new_empty(len(group) * self._num_rows, r, self._matrices[group[0]].short)
            for i, part in self._parts_of(group, turned):
                kernels.factors(turned).weigh(self._begun[i], self._weights[i])
                each_product(self._begun[i], self._lines[i], part)
            kernels.factors(turned).scale(turned)
            for i, basis in self._parts_of(group, torch.linalg.qr(turned.mT).Q):
                outs[i].copy_(basis)
        return bases

    def fit(self, rights: Tensor, lefts: Sequence[Tensor]) -> None:
        """Write the best left factors for these ``rights``, as they arrive, to ``lefts``: ``[R, r * long]`` each."""
        given = self._by_matrix(rights)
        for group in self._groups:
            right = torch.cat([given[i] for i in group])
            gram = stacked(right.mT, right)
            gram.diagonal(dim1=1, dim2=2).add_(RIDGE)
            inverse = torch.linalg.inv_ex(gram).inverse
            for i, part in self._parts_of(group, inverse):
                left = stacked(given[i].mT, self._lines[i].mT).mul_(self._weights[i][:, None]).mT
                lefts[i].view(self._num_rows, self._matrices[i].r, -1).copy_(stacked(left, part).mT)

    def _by_matrix(self, rights: Tensor) -> list[Tensor]:
        """Of each matrix the right factors ``[R, short, r]``, as views."""
        parts = rights.split_with_sizes(self._sizes.right, 1)
        return [part.view(-1, m.short, m.r) for m, part in zip(self._matrices, parts, strict=True)]

    def _parts_of(self, group: Sequence[int], stack: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The matrices of a group, each with its rows of the ``stack``."""
        return zip(group, stack.view(len(group), self._num_rows, *stack.shape[1:]), strict=True)


def _misfit(lengths: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """What nearly orthogonal columns of ``right`` ``[R, short, r]``, with products ``left`` ``[R, r, long]``, leave."""
    squares = right.square().sum(1)[:, :, None]  # rounding changes their lengths more than their angles
    held = (left.square() / torch.where(squares > 0, squares, 1)).sum(1)
    return (lengths.square() - held).clamp_(min=0).sqrt_()
