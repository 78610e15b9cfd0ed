"""Sketched-SGD: find the large coordinates of a sum without sending its terms.

Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019, arXiv 1903.04488.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Field, Layout
from comm_compress.core.rounds import Exchange, Gather, Reduced, ReduceScatterRounds, Sum
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.shared.index_codes import Packed
from comm_compress.methods.shared.sparse_rows import in_float32
from comm_compress.registry import register, require

INDICES = Packed()


@dataclass(frozen=True)
class SketchConfig:
    """Settings of sketch, all of them for one destination row of n elements.

    ``sketch_rows``: how many hash functions, an odd number for the median.
    ``sketch_ratio``: counters of the whole sketch, as a share of n.
    ``columns``: counters of each hash function; null: as ``sketch_ratio`` says. Either is rounded up to a multiple of
    32 for each, which is also the fewest.
    ``ratio``: the share of the coordinates that is wanted.
    ``k``: how many coordinates are wanted; null: as ``ratio`` says.
    ``oversample``: so many times as many candidates are asked for their exact values.
    ``keep``: "all" of the candidates go into the total, or the "k" of largest sum, as in the paper.
    """

    sketch_rows: int = 5
    sketch_ratio: float = 0.05
    columns: int | None = None
    ratio: float = 0.01
    k: int | None = None
    oversample: float = 4.0
    keep: Literal["all", "k"] = "all"

    def __post_init__(self) -> None:
        odd = self.sketch_rows % 2 == 1 and 1 <= self.sketch_rows <= 15
        require(odd, "sketch_rows", self.sketch_rows, "odd, from 1 to 15")
        require(self.sketch_ratio > 0, "sketch_ratio", self.sketch_ratio, "positive")
        require(self.columns is None or self.columns > 0, "columns", self.columns, "positive")
        require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")
        require(self.k is None or self.k > 0, "k", self.k, "positive")
        require(self.oversample >= 1, "oversample", self.oversample, "1 or more")


class _Sent(NamedTuple):
    """Where each owner looked, int64 ``[W, candidates]``, and what this rank gave there (0: not kept)."""

    n: int
    indices: Tensor
    values: Tensor


@register("sketch", SketchConfig, error_feedback=True)
class Sketch(Compressor):
    """Count-sketches are summed instead of gradients; the heavy coordinates of the sum are then asked for.

        S[j, h_j(i)] += s_j(i) x_i               on every rank; S is linear, so the wire sums it
        x^_i = median_j s_j(i) S[j, h_j(i)]      at the owner: with m = ``sketch_rows`` of C columns each,
                                                 |x^_i - x_i| <= 3 ||x|| / sqrt(C) but for a chance of e^-Omega(m)
        candidates                               the P k largest |x^_i|, gathered to all ranks as packed indices
        exact values                             exchanged, and summed by the owner

    Local top-k finds what is large on one rank; this finds what is large in the sum. A coordinate below about
    ||x|| / sqrt(C) cannot be told from the noise of the others: a gradient without heavy coordinates needs
    wide sketches. Biased, and error feedback, on by default, keeps what was not sent.

    Bits a row: 32 m C + P k (32 + ceil(log2 n)), with ``keep = "k"`` another P k. The defaults send 1.6 + 2 bits
    an element; ``keep = "all"`` because the exact values of all candidates have been paid for.

    Hash functions are drawn anew for each collective from the ranks' shared stream: a coordinate that collides
    with a heavy one does so once, not for good, and no table of them is held. (Only errors kept inside the
    sketch would need the same functions at every step; here they are kept outside, exactly.) The paper's
    momentum, accumulated before compression and cleared where it was sent, is left out: the optimizer has its own.
    """

    traits = Traits(sparse=True)

    def __init__(self, config: SketchConfig) -> None:
        self.config = config

    def columns(self, n: int) -> int:
        """C, the counters of one hash function, for rows of ``n``: whole windows."""
        wanted = self.config.columns or round(self.config.sketch_ratio * n / self.config.sketch_rows)
        return max(1, math.ceil(wanted / kernels.WINDOW)) * kernels.WINDOW

    def kept(self, n: int) -> int:
        """How many of ``n`` elements are wanted: k."""
        return min(self.config.k or max(1, round(self.config.ratio * n)), n)

    def candidates(self, n: int) -> int:
        """How many of ``n`` elements are asked for their exact values."""
        return min(math.ceil(self.config.oversample * self.kept(n)), n)

    def layouts(self, n: int) -> list[Layout]:
        """The layouts of one row of each round's message, in the order of the rounds."""
        count = self.candidates(n)
        sketch = Field("sketch", torch.float32, self.config.sketch_rows * self.columns(n), "values")
        indices = Field("indices", torch.uint8, INDICES.size(n, count), "indices")
        layouts = [Layout(sketch), Layout(indices), Layout(Field("values", torch.float32, count, "values"))]
        if self.config.keep == "k":
            layouts.append(Layout(Field("kept", torch.uint8, math.ceil(count / 8), "indices")))
        return layouts

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        """Bytes that one rank sends to others: a row of each message, to or for every other rank."""
        return (world - 1) * sum(layout.row_bytes for layout in self.layouts(n)) if n else 0

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Sum sketches, gather candidates, exchange exact values (and gather which of them are kept)."""
        world, n = rows.shape
        if n == 0:
            return Reduced(torch.zeros(0, device=rows.device), _Sent(0, *rows.new_zeros(2, world, 0)))
        layouts, count, device = self.layouts(n), self.candidates(n), rows.device
        keys = [state.key(f"sketch {j}", shared=True) for j in range(self.config.sketch_rows)]

        message = state.message(rows, layouts[0], "sketches")
        rows, _ = in_float32(rows, None, state)
        kernels.sketch(rows).count_sketch(rows, keys, message["sketch"].view(world, len(keys), -1))
        summed = (yield Sum(message, torch.float32))["sketch"].view(len(keys), -1)
        finite = torch.isfinite(summed).all()
        estimate = state.scratch("estimate", (1, n), torch.float32, device)
        kernels.sketch(summed).estimate(torch.where(finite, summed, 0), keys, estimate[0])

        message = state.message(rows[:1], layouts[1], "candidates")
        mine = state.scratch("mine", (1, count), torch.int32, device)
        values = state.scratch("estimates", (1, count), torch.float32, device)
        kernels.select(estimate).largest(estimate, mine, values, scratch=state.scratch)
        message["indices"].copy_(INDICES.encode(mine, n))
        gathered = yield Gather(message)
        indices = INDICES.decode(gathered["indices"], n, count).long()

        message = state.message(rows, layouts[2], "exact values")
        given = torch.gather(rows, 1, indices, out=message["values"])
        exact = torch.sum((yield Exchange(message))["values"], 0)
        if self.config.keep == "k":
            message = state.message(rows[:1], layouts[3], "kept")
            largest = torch.zeros_like(mine).scatter_(1, exact.abs().topk(self.kept(n)).indices.unsqueeze(0), 1)
            kernels.bits(largest).pack(largest, 1, message["kept"])
            masks = yield Gather(message)
            kept = kernels.bits(largest).unpack(masks["kept"], 1, count)
            given, exact = torch.where(kept > 0, given, 0), torch.where(largest[0] > 0, exact, 0)

        total = state.result((n,), device).zero_().scatter_(0, mine[0].long(), exact)
        total[0] = torch.where(finite, total[0], torch.nan)
        return Reduced(total, _Sent(n, indices, given))

    def contribution(self, sent: _Sent) -> Tensor:
        """This rank's part of the sum, float32: its exact values where each owner kept them."""
        out = torch.zeros(sent.indices.shape[0], sent.n, device=sent.indices.device)
        return out.scatter_(1, sent.indices, sent.values)

    def subtract_contribution(self, target: Tensor, sent: _Sent) -> Tensor:
        """Set to zero what was kept, because it was sent exactly."""
        return target.scatter_add_(1, sent.indices, -sent.values)
