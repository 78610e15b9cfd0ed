"""Threshold-v: as many elements as are large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.encoded import Encoded
from comm_compress.methods.sparse_rows import Indices, SparseCodec, SparseRows
from comm_compress.registry import register, require
from comm_compress.state import State

SAMPLE = 1 << 14  # elements of a row that its quantile is taken from; their quantile's density errs by 8 % at 1 %
SMALLEST = 1  # the key of the smallest positive number: zeros are never sent


@dataclass(frozen=True)
class ThresholdConfig:
    """Settings of thresholdv: a fixed ``threshold``, or else the ``quantile`` of each row's magnitudes.

    ``values``, ``indices``: see `SparseRows`.
    """

    threshold: float | None = None
    quantile: float | None = None
    values: str | Mapping[str, Any] | None = None
    indices: Indices = "best"

    def __post_init__(self) -> None:
        largest = torch.finfo(torch.float32).max
        good = self.threshold is None or 0 < self.threshold <= largest
        require(good, "threshold", self.threshold, f"above 0 and at most {largest:.3g}")
        require(self.quantile is None or 0 <= self.quantile < 1, "quantile", self.quantile, "from 0 to below 1")
        both = self.threshold is not None and self.quantile is not None
        require(not both, "quantile", self.quantile, "left out when threshold is given")


@register("thresholdv", ThresholdConfig, error_feedback=True)
class ThresholdV(SparseCodec):
    """Send every |x| >= v (Dutta et al., AAAI 2020, arXiv 1911.08250).

    ||x - C(x)||^2 < n v^2, whatever x is. Biased; error feedback is on by default. How many elements that is
    depends on the data: rows differ in length, are preceded by it, and one without such an element is empty.
    A fixed v does the same to a unit as to each of its layers, but has to follow the gradients' norms as
    they change. With ``quantile`` q (default 0.99), v is the q-quantile of a row's magnitudes, estimated
    from one of each of 16384 equal parts of a longer row: about (1 - q) n elements, or those that are not zero.
    NaN is above every threshold, so it is sent and seen.

    Bits an element: (sent / n) times those of a value (32, or what ``values`` takes) and of a position, about
    log2(n / sent) + 1.5 (Rice), and 16 bytes a row.
    """

    def __init__(self, config: ThresholdConfig) -> None:
        super().__init__(SparseRows(config.indices, config.values))
        self.fixed_size = False
        self.threshold = config.threshold
        self.quantile = 0.99 if config.quantile is None else config.quantile

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Compare, collect, code."""
        keys = kernels.magnitude_keys(rows)
        indices = kernels.at_least(keys, self._floors(keys, state))
        values = [row[places.long()].float() for row, places in zip(rows, indices, strict=True)]
        return self.rows.encode_ragged(values, indices, rows.shape[1], state)

    def _floors(self, keys: Tensor, state: State) -> Tensor:
        """int32 ``[R]``: the key that each row's elements must reach."""
        rows, n = keys.shape
        if self.threshold is not None or n == 0:
            bits = torch.tensor(self.threshold or 0.0, dtype=torch.float32).view(torch.int32)
            return torch.full((rows,), max(int(bits), SMALLEST), dtype=torch.int32, device=keys.device)
        sample = keys if n <= SAMPLE else keys.index_select(1, _one_of_each_stride(n, state, keys.device))
        sent = max(1, round((1 - self.quantile) * sample.shape[1]))
        places = kernels.largest(sample, sent).long()
        floors = (sample.gather(1, places) & 0x7FFFFFFF).amin(1)
        return floors.clamp_(min=SMALLEST)


def _one_of_each_stride(n: int, state: State, device: torch.device) -> Tensor:
    """int64 ``[SAMPLE]``: a random place in each of so many equal parts; a fixed stride would meet the same columns."""
    stride = n // SAMPLE
    inside = (kernels.uniform(state.key("sample"), SAMPLE, device) * stride).long()
    return torch.arange(SAMPLE, device=device) * stride + inside
