"""Each rank's own matrices as two thin factors, and the rows or columns that do not fit into them.

PowerSGD (Vogels, Karimireddy and Jaggi, 2019, arXiv 1905.13727) without its all-reduces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.segments import Segment, take_columns
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Residual
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.methods.projections.factor_messages import Factors, Sent, read, stands_for, written
from comm_compress.methods.projections.own_matrices import Arrangement, Matrix, arrangement_of, matrices_of, sizes_of
from comm_compress.methods.projections.thin_factors import each_product, stacked
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register, require


@dataclass(frozen=True)
class LowRankConfig:
    """Settings of lowrank.

    A line is a row of a matrix that is taller than it is wide (an embedding), and else a column.

    ``rank``: how many columns each of the two factors has.
    ``lines``: that share of a matrix's lines, the largest ones, goes as it is.
    ``line_scales``: bring all other lines to one length first (a power of two, a byte a line), so that small ones keep
    their direction: for gradients whose optimizer rescales every element anyway.
    ``values``: the method that carries the long factor and whole lines; one that encodes single rows and remembers
    nothing.
    ``rest``: the method that carries vectors, and matrices too small to factor; of the same kind.
    """

    rank: int = 8
    lines: float = 0.02
    line_scales: bool = True
    values: Mapping[str, Any] | str = "int8"
    rest: Mapping[str, Any] | str = "int8"

    def __post_init__(self) -> None:
        require(self.rank > 0, "rank", self.rank, "positive")
        require(0 <= self.lines <= 0.5, "lines", self.lines, "between 0 and 0.5")


@register("lowrank", LowRankConfig, error_feedback=True)
class LowRank(Codec):
    """Send each rank's own matrices as two thin, quantised factors, and their largest lines as they are.

        M ~ D (S + U V^T)               S: the largest lines; the factors by one step of subspace iteration
        V = orthonormal(M^T M V')       V' from the last step, for each destination; bfloat16 on the wire
        U = M V (V^T V)^-1              the best left factor for the rounded V; by the codec ``values``
        D                               powers of two, with ``line_scales``

    PowerSGD (arXiv 1905.13727) without its all-reduces: each rank factors its own shard's rows, so the factors can
    be quantised, and parameters can go this way too, as changes (`delta`); ATOMO (arXiv 1806.04090) and GradZip are
    its kin. Why it pays: what a language model's step does to its embedding is nearly of rank one (every token
    that was not seen is pushed the same way), and a batch touches few rows beside that; Adam makes small rows as
    important as large ones, hence ``line_scales``. Biased: error feedback is on by default. As the values of
    `delta` the replica's distance is fed back anyway.

    Bits an element of an a x b matrix, a the longer side: q r / b + 16 r / a, q those of ``values``, 8 / b for
    ``line_scales``, and (q + 32 / b) for each element of a whole line.
    """

    fixed_size = False
    traits = Traits(needs_segments=True, for_changes=True)

    def __init__(self, config: LowRankConfig) -> None:
        self.config = config
        self.values = value_codec(config.values, "values") or UNCOMPRESSED
        self.rest = value_codec(config.rest, "rest") or UNCOMPRESSED

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode each row by right factors of its own, which are kept for the next step."""
        return self._encode(rows, state)[0]

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode the residual's target, and subtract from it what the factors stand for."""
        target = kernels.residual(rows).write_target(rows, residual)
        encoded, sent = self._encode(target, state)
        sent.subtract_from(target)
        return encoded

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        return self.decode_into(encoded, torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device))

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write the rows to ``out``, through float32 rows where it is of another dtype."""
        shape = (encoded.num_rows, encoded.n)
        plain = out if out.dtype == torch.float32 else encoded.scratch("decoded", shape, torch.float32, out.device)
        for rows, sent in read(encoded, self.values, self.rest):
            sent.write_to(plain[rows])
        return out if plain is out else out.copy_(plain)

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Decode all rows to memory of the collective, and sum them."""
        shape = (encoded.num_rows, encoded.n)
        rows = self.decode_into(encoded, encoded.scratch("decoded", shape, torch.float32, out.device))
        kernels.casts(out).sum_rows(rows, out)
        return out

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Subtract matrix by matrix, without a second copy of the gradient."""
        for rows, part in read(sent, self.values, self.rest):
            part.subtract_from(target[rows])
        return target

    def _encode(self, rows: Tensor, state: State) -> tuple[Encoded, Sent]:
        """The messages for ``rows`` ``[R, n]``, and what they stand for."""
        n = rows.shape[1]
        matrices = self._matrices(n, state.segments)
        arrangement, starts = arrangement_of(n, matrices, rows.device), self._starts(matrices, rows, state)
        factors, places = _factors(arrangement, rows.float(), starts)
        values = self.values.encode(factors.values, state.child("values"))
        rest = self.rest.encode(take_columns(rows, arrangement.others).float(), state.child("rest"))
        rights = factors.rights.float()
        if matrices:
            state.propose("right_factors", rights)
        message = Encoded.ragged(written(matrices, factors, values, rest), n, state.scratch)
        sent = self.values.decode(values).float(), self.rest.decode(rest).float()
        return message, stands_for(arrangement, factors, rights, *sent, places)

    def _matrices(self, n: int, segments: tuple[Segment, ...]) -> tuple[Matrix, ...]:
        """The matrices in a row that go as factors."""
        if n and not segments:
            raise ValueError(f"{self.name}: needs to know which parameter lies where (State.segments)")
        return matrices_of(tuple(segments), self.config.rank, self.config.lines, self.config.line_scales)

    def _starts(self, matrices: tuple[Matrix, ...], rows: Tensor, state: State) -> Tensor:
        """Right factors to begin with, ``[R, sum of short * r]``."""
        size = (rows.shape[0], sum(sizes_of(matrices).right))
        kept = state.get("right_factors")
        if kept is not None and kept.shape == size:
            return kept
        return kernels.random(rows).uniform(state.key("right factors"), size[0] * size[1], rows.device).view(size) - 0.5


def _factors(arrangement: Arrangement, rows: Tensor, starts: Tensor) -> tuple[Factors, Tensor]:
    """The factors of all matrices in float32 ``rows`` ``[R, n]``, from right factors side by side.

    And where in rows the elements of lines lie that go as they are, int64 ``[R, elements]``.
    """
    matrices, sizes = arrangement.matrices, sizes_of(arrangement.matrices)
    measured = any(m.scaled or m.whole for m in matrices)
    lengths = arrangement.lengths(rows) if measured else rows.new_empty(rows.shape[0], sum(sizes.long))
    exponents, weights = lengths.to(torch.int8)[:, :0], torch.ones_like(lengths)
    if any(sizes.exponents):
        exponents, weights = kernels.factors(lengths).powers_of(lengths)
    index = _longest(arrangement, lengths)
    values, places = kernels.factors(rows).take(rows, arrangement.whole, index, weights)
    rights = rows.new_empty(rows.shape[0], sum(sizes.right), dtype=torch.bfloat16)
    parts = zip(
        matrices,
        (m.lines(rows) for m in matrices),
        weights.split_with_sizes(sizes.long, 1),
        (
            start.view(-1, m.short, m.r)
            for m, start in zip(matrices, starts.split_with_sizes(sizes.right, 1), strict=True)
        ),
        values.split_with_sizes(sizes.values, 1)[::2],
        rights.split_with_sizes(sizes.right, 1),
        strict=True,
    )
    works = [_Work(*part) for part in parts]
    for group in arrangement.groups:
        _factor([works[i] for i in group])
    return Factors(index.int(), exponents, rights, values), places


def _longest(arrangement: Arrangement, lengths: Tensor) -> Tensor:
    """Which lines of each matrix go as they are, ascending: int64 ``[R, sum of whole]``."""
    sizes = sizes_of(arrangement.matrices)
    longest = [
        of_matrix.topk(m.whole, sorted=False).indices.sort().values
        for m, of_matrix in zip(arrangement.matrices, lengths.split_with_sizes(sizes.long, 1), strict=True)
        if m.whole
    ]
    return torch.cat(longest, 1) if longest else lengths.new_empty(lengths.shape[0], 0, dtype=torch.int64)


class _Work(NamedTuple):
    """One matrix of all rows: its lines ``[R, long, short]``, what they are multiplied by ``[R, long]``, and starts.

    ``start`` ``[R, short, r]`` is what the right factor begins with; ``left`` ``[R, r * long]`` and ``right``
    ``[R, short * r]`` are to be written. Factors are scaled, not lines: they are much smaller.
    """

    matrix: Matrix
    lines: Tensor
    weights: Tensor
    start: Tensor
    left: Tensor
    right: Tensor


def _factor(works: Sequence[_Work]) -> None:
    """Write the factors of matrices whose lines are of one length; these are orthonormalised together."""
    num_rows, short, r = works[0].start.shape
    turned = works[0].start.new_empty(len(works) * num_rows, r, short)
    slices = [slice(i * num_rows, (i + 1) * num_rows) for i in range(len(works))]
    for work, place in zip(works, slices, strict=True):
        left = stacked(work.start.mT, work.lines.mT)
        kernels.factors(left).weigh(left, work.weights)
        each_product(left, work.lines, turned[place])
    kernels.factors(turned).scale(turned)
    right = torch.linalg.qr(turned.mT).Q.bfloat16()
    rounded = right.float()
    inverse = torch.linalg.inv_ex(stacked(rounded.mT, rounded)).inverse
    for work, place in zip(works, slices, strict=True):
        left = stacked(rounded[place].mT, work.lines.mT).mul_(work.weights[:, None]).mT
        work.left.view(num_rows, r, -1).copy_(stacked(left, inverse[place]).mT)
        work.right.view(num_rows, short, r).copy_(right[place])
