"""PowerSGD: a low-rank projection of each weight matrix's summed gradient.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
NeurIPS 2019, arXiv 1905.13727.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core import nonfinite
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds, Request, Shared
from comm_compress.core.segments import Ranges, Segment, put_columns, take_columns
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.methods.projections.factor_sums import FactorSums
from comm_compress.methods.projections.thin_factors import orthonormal, times
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register, require


@dataclass(frozen=True)
class PowerSGDConfig:
    """Settings of powersgd.

    ``rank``: how many columns each of the two factors has; a matrix's smaller side is the most.
    ``min_compression_rate``: a matrix goes by ``rest`` unless a reduce-scatter of it takes at least so many times the
    bytes of the two all-reduces, all in float32.
    ``warm_start``: begin each step from the last step's right factor; false: from a new random one.
    ``values``: the method that carries the factors, to their sums' owners and back; one that encodes single rows and
    remembers nothing. None: float32, which the network adds up.
    ``rest``: the method that carries vectors, and matrices that are not worth factors; of the same kind, None: as they
    are.
    """

    rank: int = 4
    min_compression_rate: float = 2.0
    warm_start: bool = True
    values: str | Mapping[str, Any] | None = None
    rest: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require(self.rank > 0, "rank", self.rank, "positive")
        require(self.min_compression_rate > 0, "min_compression_rate", self.min_compression_rate, "positive")


ALL_REDUCE = 2  # a ring sends every chunk twice: once to be summed, once to be known to all


class _Matrix(NamedTuple):
    """A compressed parameter ``[a, b]``: its columns in every row, its rows per rank, and the rank r of its factors."""

    a: int
    b: int
    start: int
    stop: int
    chunk: int
    rank: int

    def chunks(self, rows: Tensor) -> Tensor:
        """The matrix in ``rows`` ``[W, n]``, as a view ``[W, chunk, b]`` with the padding of dim 0."""
        return rows[:, self.start : self.stop].view(-1, self.chunk, self.b)

    def spread(self, left: Tensor, world: int) -> Tensor:
        """A left factor ``[a, r]`` over the ranks, ``[W, chunk, r]``, zero where the padding is."""
        out = left.new_zeros(world * self.chunk, self.rank)
        out[: self.a] = left
        return out.view(world, self.chunk, self.rank)


class _Arrangement(NamedTuple):
    """What becomes of a unit's parameters: low rank, or columns that stay as they are."""

    matrices: list[_Matrix]
    plain: Ranges


class _Factors(NamedTuple):
    """What a rank gave for one matrix.

    The left factors, which all ranks have agreed on, ``[W, chunk, r]``, and its own right factors ``[b, r]``.
    """

    matrix: _Matrix
    left: Tensor
    right: Tensor


class _Sent(NamedTuple):
    """What a rank gave: factors, and the other columns, encoded. ``shape``: of its rows."""

    shape: torch.Size
    device: torch.device
    factors: list[_Factors]
    ranges: Ranges
    plain: Encoded


@register("powersgd", PowerSGDConfig, error_feedback=True)
class PowerSGD(Compressor):
    """Low rank, matrix by matrix: one step of subspace iteration on the summed gradient M = sum_r M_r.

        P   = orthonormal(sum_r M_r Q)         all-reduce of r a floats
        Q_r = M_r^T P                          all-reduce of r b floats, Q = sum_r Q_r
        M   ~ P Q^T = P P^T M                  the next step starts from this Q

    Every rank holds its whole unsharded gradient, so both products are local; rank d needs all of P to
    orthonormalise it, but decodes only its own rows of P Q^T. A projection: ||M - P P^T M|| <= ||M||, exact
    where M has rank r or less; biased, so error feedback is on by default.

    64 r (a + b) / (a b) bits an element of an a x b matrix: a ring all-reduce sends twice the bytes of a
    reduce-scatter of the same tensor; of factors in float32. A parameter counts as a matrix of shape[0] rows; vectors,
    and matrices for which this saves too little, go by ``rest``. Q is orthonormalised before it is used: that changes
    no P P^T, keeps P at the gradient's own scale, and gives columns that a zero gradient wiped out a new direction.
    One element that is not finite in a unit with matrices makes every rank's total NaN.

    An all-reduce of gradients (DDP, HSDP's replicas) sends no more of a matrix: every rank then knows P and Q. An
    uncompressed matrix takes twice a reduce-scatter there, so that half of torch's ``min_compression_rate`` decides as
    torch does.

    Unlike in torch's DDP hook of the same name, the residual is this rank's own error, not its distance from the
    average (their sums over ranks are equal), and the compression rate counts what the wire carries.

    With ``values`` each sum of factors is rounded twice, there and back (`factor_sums`). P is made orthonormal after
    that, so that its rounding only turns the space; what Q loses is fed back, there by each rank, back by the owner.
    Factors of 4 bits have eight times the rank of float32 ones in as many bytes.
    """

    traits = Traits(needs_segments=True)

    def __init__(self, config: PowerSGDConfig) -> None:
        self.config = config
        self._sums = FactorSums(value_codec(config.values, "values"))
        self._rest = value_codec(config.rest, "rest") or UNCOMPRESSED

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """One exchange for what goes by ``rest``; one all-reduce for the P of all matrices, one for their Q."""
        arrangement = self._arranged(rows.shape[1], rows.shape[0], state.segments)
        total = state.result((rows.shape[1],), rows.device).zero_()
        plain = self._rest.encode(take_columns(rows, arrangement.plain), state.child("rest"))
        if arrangement.plain:
            put_columns(self._rest.decode_sum((yield Exchange(plain))), arrangement.plain, total)
        factors: list[_Factors] = []
        shared = None
        if arrangement.matrices:
            factors, agreed, finite = yield from self._project(rows, arrangement.matrices, total, state)
            total.masked_fill_(~finite, torch.nan)
            shared = Shared([(m.start, m.stop) for m in arrangement.matrices], partial(_products, agreed, finite))
        return Reduced(total, _Sent(rows.shape, rows.device, factors, arrangement.plain, plain), shared)

    def _project(
        self, rows: Tensor, matrices: list[_Matrix], total: Tensor, state: State
    ) -> Generator[Request, Any, tuple[list[_Factors], list[_Factors], Tensor]]:
        """Write this rank's rows of every P Q^T to ``total``.

        Returns what this rank gave, what all ranks gave together (with the agreed right factors), and whether the input
        was finite on all ranks.
        """
        world, gradient = rows.shape[0], rows.float()
        starts = self._starts(matrices, rows.device, state)
        lefts = [times(m.chunks(gradient), orthonormal(q)) for m, q in zip(matrices, starts, strict=True)]
        lefts = [left.flatten(0, 1)[: m.a] for m, left in zip(matrices, lefts, strict=True)]
        # padding has no row in P, and a product may lose an infinity
        summed = yield from self._sums.of(lefts, _nan_unless_finite(rows), state.child("lefts"))
        # All ranks see that a step is void, or none does: they must keep the same right factors.
        finite, factors = summed.finite, []
        for m, p in zip(matrices, summed.totals, strict=True):
            left = m.spread(torch.where(finite, orthonormal(torch.where(finite, p, 0)), 0), world)
            factors.append(_Factors(m, left, times(m.chunks(gradient).mT, left).sum(0)))
        rights = yield from self._sums.of([f.right for f in factors], total.new_zeros(()), state.child("rights"))
        for (m, left, _), right in zip(factors, rights.totals, strict=True):
            torch.mm(left[state.rank], right.T, out=total[m.start : m.stop].view(m.chunk, m.b))
        if self.config.warm_start:
            kept = torch.where(finite & rights.finite, _joined(rights.totals), _joined(starts))
            state.propose("right_factors", kept)
        given, agreed_on = (
            [f._replace(right=right) for f, right in zip(factors, some, strict=True)]
            for some in (rights.given, rights.totals)
        )
        return given, agreed_on, finite

    def _starts(self, matrices: list[_Matrix], device: torch.device, state: State) -> list[Tensor]:
        """Where the iteration starts, ``[b, r]`` for each matrix, the same on every rank."""
        shapes = [(m.b, m.rank) for m in matrices]
        size = sum(b * r for b, r in shapes)
        start = state.get("right_factors") if self.config.warm_start else None
        if start is None:
            start = kernels.random.on(device).uniform(state.key("right factors", shared=True), size, device) - 0.5
            if self.config.warm_start:
                state.put("right_factors", start)
        if start.numel() != size:
            raise ValueError(
                f"{self.name}: unit {state.unit!r} has right factors of {start.numel()} elements from earlier steps, "
                f"{size} with rank = {self.config.rank}: the state is of another setting or another model"
            )
        return _split(start, shapes)

    def _arranged(self, n: int, world: int, segments: Sequence[Segment]) -> _Arrangement:
        if n and not segments:
            raise ValueError(f"{self.name}: needs to know which parameter lies where (State.segments)")
        matrices, plain = [], []
        for s in segments:
            a, b = s.shape[0], math.prod(s.shape[1:])
            rank = min(self.config.rank, a, b)
            low_rank = rank * (a + b) * ALL_REDUCE
            if len(s.shape) > 1 and rank and a * b >= self.config.min_compression_rate * low_rank:
                matrices.append(_Matrix(a, b, s.start, s.stop, math.ceil(a / world), rank))
            else:
                plain.append((s.start, s.stop))
        return _Arrangement(matrices, plain)

    def contribution(self, sent: _Sent) -> Tensor:
        """This rank's part of the sum, float32: P Q_r^T for every matrix, and the plain columns."""
        out = torch.zeros(sent.shape, device=sent.device)
        for m, left, right in sent.factors:
            m.chunks(out).copy_(left @ right.T)
        put_columns(self._rest.decode(sent.plain).float(), sent.ranges, out)
        return out

    def subtract_contribution(self, target: Tensor, sent: _Sent) -> Tensor:
        """Subtract matrix by matrix, without a second copy of the gradient."""
        for m, left, right in sent.factors:
            m.chunks(target).baddbmm_(left, right.T.expand(left.shape[0], -1, -1), alpha=-1)
        left_out = take_columns(target, sent.ranges) - self._rest.decode(sent.plain)
        put_columns(left_out, sent.ranges, target)
        return target


def _nan_unless_finite(rows: Tensor) -> Tensor:
    """A scalar to add to a message: 0, or NaN unless all of ``rows`` is finite."""
    return torch.where(nonfinite.all_finite(rows), 0.0, torch.nan)


def _products(agreed: Sequence[_Factors], finite: Tensor) -> Tensor:
    """Every matrix's P Q^T over all ranks' rows, side by side, float32 ``[W, columns]``."""
    parts = [(f.left @ f.right.T).flatten(1) for f in agreed]
    return torch.cat(parts, 1).masked_fill_(~finite, torch.nan)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _split(joined: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    sizes = [a * b for a, b in shapes]
    parts = torch.split_with_sizes(joined[: sum(sizes)], sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
