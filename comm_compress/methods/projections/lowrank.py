"""Each rank's own matrices as two thin factors, and the rows or columns that do not fit into them.

PowerSGD (Vogels, Karimireddy and Jaggi, 2019, arXiv 1905.13727) without its all-reduces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from comm_compress.methods.projections.factor_messages import Codecs, Factors, Sent, read, stands_for, written
from comm_compress.methods.projections.own_factors import OwnFactors
from comm_compress.methods.projections.own_matrices import Arrangement, Matrix, arrangement_of, matrices_of, sizes_of
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register, require


@dataclass(frozen=True)
class LowRankConfig:
    """Settings of lowrank.

    A line is a row of a matrix that is taller than it is wide (an embedding), and else a column.

    ``rank``: how many columns each of the two factors has.
    ``share``: but at most that share of a matrix's shorter side, so that parts of it go in as few bits when more ranks
    divide its rows; parts that are not worth factors of ``rank`` go by ``rest``.
    ``lines``: that share of a matrix's lines, the largest ones, goes as it is.
    ``longer``: of these only lines that are longer than so many times the matrix's median one, counted over all
    destinations; 0 sends all of the share. Rows of an embedding differ by that much, lines of other matrices hardly.
    ``by_misfit``: a line counts by the length of what the last step's right factors leave of it, and those that leave
    most are the largest; the median remains one of whole lengths. The first step, which has none, counts lengths.
    ``line_scales``: bring all other lines to one length first (a power of two, a byte a line), so that small ones keep
    their direction: for gradients whose optimizer rescales every element anyway.
    ``values``: the method that carries the long factor and whole lines; one that encodes single rows and remembers
    nothing.
    ``right``: the method that carries the short factor; of the same kind. Its relative error adds to that of
    ``values``, squared; the long factor is fitted to what arrives.
    ``rest``: the method that carries vectors, and matrices too small to factor; of the same kind.
    """

    rank: int = 8
    share: float = 1.0
    lines: float = 0.02
    longer: float = 0.0
    by_misfit: bool = False
    line_scales: bool = True
    values: Mapping[str, Any] | str = "int8"
    right: Mapping[str, Any] | str = "bf16"
    rest: Mapping[str, Any] | str = "int8"

    def __post_init__(self) -> None:
        require(self.rank > 0, "rank", self.rank, "positive")
        require(0 < self.share <= 1, "share", self.share, "above 0 and at most 1")
        require(0 <= self.lines <= 0.5, "lines", self.lines, "between 0 and 0.5")
        require(0 <= self.longer < math.inf, "longer", self.longer, "0 or more, and finite")


@register("lowrank", LowRankConfig, error_feedback=True)
class LowRank(Codec):
    """Send each rank's own matrices as two thin, quantised factors, and their largest lines as they are.

        M ~ D (S + U V^T)               S: the largest lines; the factors by one step of subspace iteration
        V = orthonormal(M^T M V')       V' from the last step, for each destination; by the codec ``right``
        U = M V (V^T V)^-1              the best left factor for the rounded V; by the codec ``values``
        D                               powers of two, with ``line_scales``

    PowerSGD (arXiv 1905.13727) without its all-reduces: each rank factors its own shard's rows, so the factors can
    be quantised, and parameters can go this way too, as changes (`delta`); ATOMO (arXiv 1806.04090) and GradZip are
    its kin. Why it pays: what a language model's step does to its embedding is nearly of rank one (every token
    that was not seen is pushed the same way), and a batch touches few rows beside that; Adam makes small rows as
    important as large ones, hence ``line_scales``. Biased: error feedback is on by default. As the values of
    `delta` the replica's distance is fed back anyway.

    Bits an element of an a x b matrix, a the longer side: q r / b + p r / a, q those of ``values`` and p of ``right``,
    8 / b for ``line_scales``, and (q + 32 / b) for each element of a whole line. Matrices are what a rank sends another
    one: FSDP2 shards rows, so on W ranks those of a weight are W times as short, and bits of a fixed r grow with W.
    """

    fixed_size = False
    traits = Traits(needs_segments=True, for_changes=True)

    def __init__(self, config: LowRankConfig) -> None:
        for name in ("longer", "by_misfit"):
            if (value := getattr(config, name)) and not config.lines:
                raise ValueError(f"{name} = {value!r}: needs lines, the largest share that may go whole, above 0")
        self.config = config
        self.codecs = Codecs(
            rights=value_codec(config.right, "right") or UNCOMPRESSED,
            values=value_codec(config.values, "values") or UNCOMPRESSED,
            rest=value_codec(config.rest, "rest") or UNCOMPRESSED,
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode each row by right factors of its own, which are kept for the next step."""
        return self._encode(rows, state)[0]

    def encode_and_decode(self, rows: Tensor, state: State) -> tuple[Encoded, Tensor]:
        """Encode, and multiply the factors that were sent, without reading the message back."""
        encoded, sent = self._encode(rows, state)
        decoded = torch.empty(rows.shape, device=rows.device)
        sent.write_to(decoded)
        return encoded, decoded

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
        for rows, sent in read(encoded, self.codecs):
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
        for rows, part in read(sent, self.codecs):
            part.subtract_from(target[rows])
        return target

    def _encode(self, rows: Tensor, state: State) -> tuple[Encoded, Sent]:
        """The messages for ``rows`` ``[R, n]``, and what they stand for."""
        n, codecs, plain = rows.shape[1], self.codecs, rows.float()
        arrangement = arrangement_of(n, self._matrices(n, state.segments), rows.device)
        kept = self._kept(arrangement.matrices, rows, state)
        own = OwnFactors(arrangement, plain, self._random(arrangement.matrices, rows, state) if kept is None else kept)
        lengths = _lengths(arrangement, plain)
        sizes = own.misfits(lengths) if self.config.by_misfit and kept is not None else lengths
        if self.config.longer:
            arrangement = arrangement.with_lines(_counts(arrangement, sizes, lengths, self.config.longer))
        index, exponents, weights = _largest(arrangement, sizes), *_scales(arrangement, lengths)
        values, places = kernels.factors(plain).take(plain, arrangement.whole, index, weights)

        coded_rights, decoded = codecs.rights.encode_and_decode(own.bases(weights), state.child("right"))
        rights = decoded.float()
        own.fit(rights, values.split_with_sizes(sizes_of(arrangement.matrices).values, 1)[::2])
        coded_values, arrived = codecs.values.encode_and_decode(values, state.child("values"))
        others = take_columns(rows, arrangement.plan.others).float()
        rest, others = codecs.rest.encode_and_decode(others, state.child("rest"))

        if arrangement.matrices:
            state.propose("right_factors", rights)
        indices = index.int()
        parts = written(arrangement.matrices, indices, exponents, coded_rights, coded_values, rest)
        sent = stands_for(arrangement, Factors(indices, exponents, rights, arrived.float()), others.float(), places)
        return Encoded.ragged(parts, n, state.scratch), sent

    def _matrices(self, n: int, segments: tuple[Segment, ...]) -> tuple[Matrix, ...]:
        """The matrices in a row that go as factors."""
        if n and not segments:
            raise ValueError(f"{self.name}: needs to know which parameter lies where (State.segments)")
        c = self.config
        return matrices_of(tuple(segments), c.rank, c.share, c.lines, c.line_scales)

    def _kept(self, matrices: tuple[Matrix, ...], rows: Tensor, state: State) -> Tensor | None:
        """The last step's right factors as they arrived, ``[R, sum of short * r]``; None where they do not fit."""
        kept = state.get("right_factors")
        size = (rows.shape[0], sum(sizes_of(matrices).right))
        return kept if kept is not None and kept.shape == size else None

    def _random(self, matrices: tuple[Matrix, ...], rows: Tensor, state: State) -> Tensor:
        """Right factors for the first step, ``[R, sum of short * r]``: uniform, around zero."""
        size = (rows.shape[0], sum(sizes_of(matrices).right))
        return kernels.random(rows).uniform(state.key("right factors"), size[0] * size[1], rows.device).view(size) - 0.5


def _lengths(arrangement: Arrangement, rows: Tensor) -> Tensor:
    """The 2-norms of all lines, float32 ``[R, sum of long]``; any numbers where nothing depends on them."""
    if any(m.scaled or m.whole for m in arrangement.matrices):
        return arrangement.plan.lengths(rows)
    return rows.new_zeros(rows.shape[0], sum(sizes_of(arrangement.matrices).long))


def _counts(arrangement: Arrangement, of_lines: Tensor, lengths: Tensor, longer: float) -> list[int]:
    """How many lines of each matrix go as they are: as many, in the mean of all rows, as have a number in ``of_lines``
    above ``longer`` median lengths."""
    parts = sizes_of(arrangement.matrices).long
    of_matrices = zip(of_lines.split_with_sizes(parts, 1), lengths.split_with_sizes(parts, 1), strict=True)
    counts = [(numbers > longer * _median(length)).sum() for numbers, length in of_matrices]
    found = torch.stack(counts).tolist() if counts else []
    return [min(m.whole, round(count / lengths.shape[0])) for m, count in zip(arrangement.matrices, found, strict=True)]


def _median(lengths: Tensor) -> Tensor:
    """The lower median of each row ``[R, k]``, ``[R, 1]``; NaN is larger than any number."""
    middle = (lengths.shape[1] - 1) // 2
    if lengths.is_cuda:  # where torch does not find an element in the same way every time, and refuses if asked to
        return lengths.sort(1).values[:, middle : middle + 1]
    return lengths.kthvalue(middle + 1, 1, keepdim=True).values


def _largest(arrangement: Arrangement, of_lines: Tensor) -> Tensor:
    """Which lines of each matrix go as they are, ascending: those with the largest numbers in ``of_lines``. int64
    ``[R, sum of whole]``."""
    parts = of_lines.split_with_sizes(sizes_of(arrangement.matrices).long, 1)
    largest = [
        numbers.topk(m.whole, sorted=False).indices.sort().values
        for m, numbers in zip(arrangement.matrices, parts, strict=True)
        if m.whole
    ]
    return torch.cat(largest, 1) if largest else of_lines.new_empty(of_lines.shape[0], 0, dtype=torch.int64)


def _scales(arrangement: Arrangement, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Exponents of the powers of two that lines are divided by (empty where they are not), and what to multiply by."""
    if any(sizes_of(arrangement.matrices).exponents):
        return kernels.factors(lengths).powers_of(lengths)
    return lengths.to(torch.int8)[:, :0], torch.ones_like(lengths)
