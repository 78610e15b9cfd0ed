"""Threshold-v: all elements that are large, however many they are.

Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
Communication for Distributed Deep Learning", AAAI 2020, arXiv 1911.08250.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.kernels import Residual
from comm_compress.methods.shared.sparse_rows import Chosen, Indices, SparseCodec, SparseRows, in_float32
from comm_compress.registry import register, require

SAMPLE = 1 << 14  # elements of a row that its quantile is taken from; their quantile's density errs by 8 % at 1 %
SMALLEST = 2.0**-149  # the smallest positive number: zeros are never sent


@dataclass(frozen=True)
class ThresholdConfig:
    """Settings of thresholdv.

    ``threshold``: v, the magnitude from which on elements are sent; null: as ``quantile`` says.
    ``quantile``: take this quantile of each row's magnitudes for v; null: 0.99, unless ``threshold`` is given.
    ``values``: the method that carries a row's sent values, as a row of their own; null: float32.
    ``indices``: how positions are coded; "best" is the smallest code of fixed size where values have one too, and
    otherwise the smallest of all. See `SparseRows`.
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
    """Send every element of magnitude v or more.

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

    def choose(self, rows: Tensor, residual: Residual | None, state: State) -> Chosen:
        """Choose the elements that reach their row's threshold."""
        rows, residual = in_float32(rows, residual, state)
        reaching = kernels.select(rows).at_least(rows, self._floors(rows, residual, state), residual, state.scratch)
        return Chosen([values for _, values in reaching], [positions for positions, _ in reaching])

    def _floors(self, rows: Tensor, residual: Residual | None, state: State) -> Tensor:
        """What each row's magnitudes must reach, float32 ``[R]``."""
        num_rows, n = rows.shape
        if self.threshold is not None or n == 0:
            return torch.full((num_rows,), max(self.threshold or 0.0, SMALLEST), device=rows.device)
        sample = self._sample(rows, residual, state)
        sent = max(1, round((1 - self.quantile) * sample.shape[1]))
        positions = torch.empty(num_rows, sent, dtype=torch.int32, device=rows.device)
        values = torch.empty(num_rows, sent, device=rows.device)
        kernels.select(sample).largest(sample, positions, values)
        keys = values.view(torch.int32) & 0x7FFFFFFF  # a NaN among them is the largest
        return keys.amin(1).view(torch.float32).clamp_(min=SMALLEST)

    def _sample(self, rows: Tensor, residual: Residual | None, state: State) -> Tensor:
        """All of a short row, or of the target; a random element of each of so many equal parts of a longer one."""
        n = rows.shape[1]
        if n > SAMPLE:
            positions = _one_of_each_stride(n, state, rows.device)
            rows = rows.index_select(1, positions)
            if residual is not None and residual.old is not None:
                residual = residual._replace(old=residual.old.index_select(1, positions))
        return rows if residual is None else residual._replace(new=torch.empty_like(rows)).target(rows)


def _one_of_each_stride(n: int, state: State, device: torch.device) -> Tensor:
    """int64 ``[SAMPLE]``: a random place in each of so many equal parts; a fixed stride would meet the same columns."""
    stride = n // SAMPLE
    inside = (kernels.random.on(device).uniform(state.key("sample"), SAMPLE, device) * stride).long()
    return torch.arange(SAMPLE, device=device) * stride + inside
