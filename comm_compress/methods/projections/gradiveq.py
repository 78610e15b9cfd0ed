"""Vector quantisation of gradients by principal components that are learnt as training goes.

Yu et al., "GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient Aggregation in Distributed CNN Training",
NeurIPS 2018, arXiv 1811.03617.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.rounds import AllReduce, Exchange, Gather, Reduced, ReduceScatterRounds, Request, Sum
from comm_compress.core.state import State
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.methods.projections.thin_factors import times
from comm_compress.registry import register, require


@dataclass(frozen=True)
class GradiVeQConfig:
    """Settings of gradiveq.

    ``slice_size``: K, the elements of one slice.
    ``ratio``: the share of a slice's K components that is kept.
    ``dimensions``: d, how many components are kept; null: as ``ratio`` says.
    ``energy_loss``: keep the fewest components that lose at most this part of the samples' energy on any rank; null: as
    ``dimensions`` or ``ratio`` says.
    ``basis_warmup``: so many first steps go uncompressed.
    ``refresh_every``: after them, bases are learnt anew every so many steps.
    ``sample_steps``: the last so many of every ``refresh_every`` steps go uncompressed, and the bases come from their
    totals.
    ``centre``: also subtract the samples' mean.
    """

    slice_size: int = 128
    ratio: float = 0.125
    dimensions: int | None = None
    energy_loss: float | None = None
    basis_warmup: int = 10
    refresh_every: int = 50
    sample_steps: int = 1
    centre: bool = False

    def __post_init__(self) -> None:
        require(2 <= self.slice_size <= 4096, "slice_size", self.slice_size, "between 2 and 4096")
        require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")
        fits = self.dimensions is None or 1 <= self.dimensions <= self.slice_size
        require(fits, "dimensions", self.dimensions, f"between 1 and slice_size = {self.slice_size}")
        loss = self.energy_loss
        require(loss is None or 0 <= loss < 1, "energy_loss", loss, "at least 0 and below 1")
        both = loss is not None and self.dimensions is not None
        require(not both, "energy_loss", loss, "left out when dimensions is given")
        require(self.basis_warmup >= 0, "basis_warmup", self.basis_warmup, "0 or more")
        require(self.refresh_every > 1, "refresh_every", self.refresh_every, "2 or more")
        fits = 1 <= self.sample_steps < self.refresh_every
        require(fits, "sample_steps", self.sample_steps, f"from 1 to below refresh_every = {self.refresh_every}")


class _Bases(NamedTuple):
    """For the row of each destination: U ``[W, K, d]`` and the mean of its samples, mu ``[W, K]``, float32."""

    basis: Tensor
    mean: Tensor


class _Codes(NamedTuple):
    """A rank's codes of W rows, float32 ``[W, slices, d]``, and the bases they belong to."""

    n: int
    codes: Tensor
    bases: _Bases


Turn = Literal["plain", "sample", "renew", "compress"]


@register("gradiveq", GradiVeQConfig)
class GradiVeQ(Compressor):
    """Slices of K neighbouring gradients are correlated, and slowly change how: send d of their K principal components.

        c_r = U^T (x_r - mu / W)        rank r's code of its slice x_r, d floats; the wire sums them
        x   = U sum_r c_r + mu          at the owner, for the sum x = sum_r x_r

    Linear; for ``centre = False`` (mu = 0) an orthogonal projection, ||x - U U^T x|| <= ||x||, biased: what lies
    outside the basis is lost until the next basis.

    Which d. U holds the d leading eigenvectors of the second moment of *summed* slices. Under FSDP2 the sum of
    row d exists on rank d alone, so each owner learns one basis for its row (all parameters of the unit
    together) and gathers K d floats to the senders; ``energy_loss`` takes another all-reduce of one number.

    Bits an element between samplings: 32 d / K. Over a whole cycle of T = ``refresh_every`` steps, of which
    L = ``sample_steps`` are uncompressed, for rows of n: 32 (L + (T - L) d / K) / T + 32 K d / (n T), so
    the defaults' d / K = 1 / 8 compresses 7 times, not 8, after a warm-up that compresses nothing.

    Where this differs from the paper. It samples 100 of every 500 steps; one step of one of our rows holds n / K
    slices, which is enough for K = 128 from n = 10^5 or so. Rows with fewer than d slices go uncompressed.
    The paper subtracts the mean; here that is off by default, because a slice without a gradient (padding,
    unused embeddings) would then decode to the mean's remainder, and Adam makes full steps of any constant. The
    paper slices convolution filters; here a slice is K neighbours of the flat row, so along a weight's last
    dimension when K divides it. Error feedback is off, as in the paper: the part outside U would only pile up
    until a sampled step delivers it at once, into that step's samples too.
    """

    def __init__(self, config: GradiVeQConfig) -> None:
        self.config = config

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """One sum of codes; or one exchange of plain rows, followed by a gather of new bases when they are due."""
        bases = _stored(state)
        turn = self._turn(state.tick, bases is not None)
        if turn == "compress":
            assert bases is not None
            return (yield from self._compressed(rows, bases, state))
        message = UNCOMPRESSED.encode(rows.clone(), state)  # it outlives the rows, which error feedback writes to
        total = UNCOMPRESSED.decode_sum((yield Exchange(message)))
        if turn != "plain" and self._learns(total.numel()):
            yield from self._learn(total, turn == "renew", state)
        return Reduced(total, message)

    def contribution(self, sent: _Codes | Encoded) -> Tensor:
        """This rank's part of the sum, float32: U U^T (x_r - mu / W) + mu / W, or the plain rows."""
        if isinstance(sent, Encoded):
            return UNCOMPRESSED.decode(sent)
        out = torch.empty(sent.codes.shape[0], sent.n, device=sent.codes.device)
        for codes, basis, mean, row in zip(sent.codes, *sent.bases, out, strict=True):
            _decode(codes, basis, mean / len(out), row)
        return out

    def cycle_bytes(self, n: int, world: int, dimensions: int, itemsize: int = 4) -> int:
        """Bytes that one rank sends to others in one cycle of ``refresh_every`` reduce-scatters of ``[world, n]``.

        ``dimensions``: d (agreed by the ranks, with ``energy_loss``); ``itemsize``: bytes of a plain element.
        """
        config, slices = self.config, math.ceil(n / self.config.slice_size)
        plain = config.sample_steps * itemsize * n
        codes = (config.refresh_every - config.sample_steps) * 4 * slices * dimensions
        agreeing = 2 * math.ceil(4 / world) if config.energy_loss is not None else 0
        return (world - 1) * (plain + codes + self._basis_layout(dimensions).row_bytes + agreeing)

    def _turn(self, tick: int, has_basis: bool) -> Turn:
        warmup, every, samples = self.config.basis_warmup, self.config.refresh_every, self.config.sample_steps
        to_go = warmup - tick if tick <= warmup else (warmup - tick) % every  # until the bases are renewed
        if to_go == 0 or (tick > warmup and not has_basis):
            return "renew"
        if to_go < samples:
            return "sample"
        return "compress" if tick > warmup else "plain"

    def _learns(self, n: int) -> bool:
        """Does a row of ``n`` have the slices that a basis takes?"""
        slices = n // self.config.slice_size * self.config.sample_steps
        return slices >= (1 if self.config.energy_loss is not None else self._wanted)

    @property
    def _wanted(self) -> int:
        """How many dimensions d are kept, unless the energy decides."""
        return self.config.dimensions or max(1, round(self.config.ratio * self.config.slice_size))

    def _coded(self, rows: Tensor, bases: _Bases) -> Tensor:
        """The codes ``[W, slices, d]`` of ``rows`` ``[W, n]``, whose last slice counts as filled up with zeros."""
        size, (world, n) = self.config.slice_size, rows.shape
        rows, whole = rows.float(), n // size * size
        last = F.pad(rows[:, whole:], (0, -n % size))
        slices = [part.unfold(1, size, size) for part in (rows[:, :whole], last) if part.numel()]
        codes = torch.cat([times(part, bases.basis) for part in slices], 1)
        return codes.sub_((bases.mean / world).unsqueeze(1) @ bases.basis)

    def _compressed(self, rows: Tensor, bases: _Bases, state: State) -> ReduceScatterRounds:
        n = rows.shape[1]
        codes = self._coded(rows, bases)
        layout = Layout(Field("codes", torch.float32, codes[0].numel(), "values"))
        summed = yield Sum(Encoded(codes.flatten(1).view(torch.uint8), layout, n), torch.float32)
        total = state.result((n,), rows.device)
        _decode(summed["codes"].view(codes[0].shape), bases.basis[state.rank], bases.mean[state.rank], total)
        return Reduced(total, _Codes(n, codes, bases))

    def _learn(self, total: Tensor, renew: bool, state: State) -> Generator[Request, Any, None]:
        """Take this rank's total as samples; when it was the last of them, agree on new bases."""
        size = self.config.slice_size
        moments = _moments(total[: total.numel() // size * size].view(-1, size))
        earlier = state.get("moments")
        if earlier is not None:
            moments += earlier
        if renew:
            yield from self._agree(moments, state)
            moments = torch.zeros_like(moments)
        elif earlier is not None:
            moments = torch.where(torch.isfinite(moments).all(), moments, earlier)
        if self.config.sample_steps > 1:
            state.propose("moments", torch.nan_to_num(moments, 0, 0, 0))

    def _agree(self, moments: Tensor, state: State) -> Generator[Request, Any, None]:
        """Every owner's basis to every sender. If any owner's samples were not finite, all keep the old ones."""
        size, centre = self.config.slice_size, self.config.centre
        finite = torch.isfinite(moments).all()
        mean, vectors, energies = _principal_components(torch.where(finite, moments, 0), centre)
        dimensions = self._wanted
        if self.config.energy_loss is not None:
            enough = _enough_dimensions(energies, self.config.energy_loss)
            dimensions = int((yield AllReduce(enough, "max")))
        message = Encoded.empty(1, size, self._basis_layout(dimensions), moments.device)
        message["basis"].copy_(torch.where(finite, vectors[:, :dimensions], torch.nan).reshape(1, -1))
        if centre:
            message["mean"].copy_(mean)
        gathered = yield Gather(message)
        basis = gathered["basis"].reshape(-1, size, dimensions).clone()  # it outlives the message
        if bool(torch.isfinite(basis).all()):
            state.propose("basis", basis)
            state.propose("mean", gathered["mean"].clone() if centre else basis.new_zeros(basis.shape[:2]))

    def _basis_layout(self, dimensions: int) -> Layout:
        size = self.config.slice_size
        basis = Field("basis", torch.float32, size * dimensions, "metadata")
        return Layout(basis, Field("mean", torch.float32, size if self.config.centre else 0, "metadata"))


def _stored(state: State) -> _Bases | None:
    basis, mean = state.get("basis"), state.get("mean")
    return None if basis is None or mean is None else _Bases(basis, mean)


def _decode(codes: Tensor, basis: Tensor, mean: Tensor, out: Tensor) -> None:
    """Write codes ``[slices, d]`` times basis ``[K, d]`` plus mean ``[K]`` to ``out`` ``[n]``, all float32."""
    size = len(mean)
    whole = len(out) // size
    torch.addmm(mean, codes[:whole], basis.T, out=out[: whole * size].view(whole, size))
    rest = out[whole * size :]
    if rest.numel():
        rest.copy_((codes[-1] @ basis.T + mean)[: rest.numel()])


def _moments(slices: Tensor) -> Tensor:
    """Sums of z z^T for z = (x, 1), float64 ``[K + 1, K + 1]``: second moments, sums and the count at once."""
    peak = slices.abs().amax()
    scale = torch.where(peak > 0, peak, 1)  # products of gradients leave float32's range, of scaled ones they do not
    size = slices.shape[1]
    units = F.pad(slices / scale, (0, 1), value=1.0)
    scales = torch.ones(size + 1, dtype=torch.float64, device=slices.device)
    scales[:size] = scale
    return (units.T @ units).double() * torch.outer(scales, scales)


def _principal_components(moments: Tensor, centre: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (zero unless ``centre``), orthonormal directions as columns and their energies, largest first."""
    second, count = moments[:-1, :-1], moments[-1, -1].clamp(min=1)
    mean = moments[:-1, -1] / count if centre else torch.zeros_like(moments[:-1, -1])
    energies, vectors = torch.linalg.eigh(second - count * torch.outer(mean, mean))
    return mean, vectors.flip(1), energies.flip(0).clamp(min=0)


def _enough_dimensions(energies: Tensor, loss: float) -> Tensor:
    """The fewest leading directions outside of which at most ``loss`` of the energy lies; int32, one or more."""
    lost = energies.sum() - energies.cumsum(0)
    return (lost > loss * energies.sum()).sum().add(1).clamp(max=energies.numel()).int()
