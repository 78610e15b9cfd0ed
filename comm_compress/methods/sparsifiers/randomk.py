"""Random-k: coordinates that all ranks draw alike, so that no position travels.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds, Sum
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.shared.sparse_rows import AmountConfig
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register

NO_FEEDBACK_WHEN_SCALED = "scaling = 'unbiased' is right in the mean and would make a residual grow by n / k"


@dataclass(frozen=True)
class RandomKConfig(AmountConfig):
    """Settings of randomk, beside those of `AmountConfig`.

    ``scaling``: "unbiased" multiplies what is sent by n / k and needs no feedback; "contractive" sends it as it is,
    with error feedback unless told otherwise.
    ``values``: the method that carries a row's sent values, as a row of their own; null: float32.
    """

    scaling: Literal["unbiased", "contractive"] = "contractive"
    values: str | Mapping[str, Any] | None = None


@register("randomk", RandomKConfig)
class RandomK(Codec):
    """Send the same k coordinates of every row, drawn anew at each step, without replacement.

    unbiased:     C(x) = (n / k) x on the drawn set, else 0:  E C(x) = x,  E||C(x) - x||^2 = (n / k - 1) ||x||^2
    contractive:  C(x) = x on the drawn set, else 0:          E||C(x) - x||^2 = (1 - k / n) ||x||^2

    The set is what a pseudo-random permutation makes of the first k numbers, with a key that all ranks and rows of a
    collective share (`SubsetKernels.random_subset`): it takes no pass over the gradient, and no position is sent:
    32 k / n bits an element, or what ``values`` takes. Linear: float32 values are summed on the wire.
    Rows of which any is not finite show it in their first sent values, whatever was drawn.
    """

    traits = Traits(sparse=True)

    def __init__(self, config: RandomKConfig) -> None:
        self.config = config
        self.codec = value_codec(config.values)
        self.fixed_size = self.codec is None or self.codec.fixed_size
        scaled = config.scaling == "unbiased"
        self.traits = replace(
            self.traits,
            unbiased=scaled and (self.codec is None or self.codec.traits.unbiased),
            feedback_by_default=not scaled,
            no_feedback=NO_FEEDBACK_WHEN_SCALED if scaled else "",
        )

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The layout of a row: k values."""
        k = self.config.kept(n)
        return (
            Layout(Field("values", torch.float32, k, "values"))
            if self.codec is None
            else self.codec.layout(k, torch.float32)
        )

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Draw coordinates, gather their values and code them. All ranks know ``agreed["drawn"]``, int64 ``[k]``."""
        num_rows, n = rows.shape
        k = self.config.kept(n)
        drawn = kernels.subsets(rows).random_subset(state.key("coordinates", shared=True), n, k, rows.device)
        values = state.scratch("values", (num_rows, k), torch.float32, rows.device)
        if rows.dtype == torch.float32:
            torch.index_select(rows, 1, drawn, out=values)
        else:
            values.copy_(rows.index_select(1, drawn))
        _show_nonfinite(rows, values, state)
        if self.codec is None:
            return Encoded(values.view(torch.uint8), self.layout(n, rows.dtype), n, {"drawn": drawn})
        coded = self.codec.encode(values, state.child("values"))
        return replace(coded, n=n, agreed={"drawn": drawn})

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense rows, which are zero where nothing was drawn."""
        return self.decode_into(encoded, torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device))

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write dense rows to ``out`` ``[R, n]``, of any float dtype."""
        return out.zero_().index_copy_(1, encoded.agreed["drawn"], self._values(encoded).to(out.dtype))

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Sum the k values and scatter them once: all rows hold the same coordinates."""
        return out.zero_().index_copy_(0, encoded.agreed["drawn"], self._values(encoded).sum(0))

    def _values(self, encoded: Encoded) -> Tensor:
        """What was sent for the drawn coordinates, float32 ``[R, k]``, scaled."""
        n, k = encoded.n, encoded.agreed["drawn"].numel()
        values = encoded["values"] if self.codec is None else self.codec.decode(replace(encoded, n=k)).float()
        return values * (n / k) if k and self.config.scaling == "unbiased" else values

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Subtract what was sent: what was sent exactly becomes zero."""
        if self.codec is not None or self.config.scaling == "unbiased":
            return super().subtract_contribution(target, sent)
        return target.index_fill_(1, sent.agreed["drawn"], 0)

    def exchange(self, message: Encoded, state: State) -> ReduceScatterRounds:
        """Send float32 values through one sum on the wire, coded values through one exchange."""
        received = yield (Sum(message, torch.float32) if self.codec is None else Exchange(message))
        total = state.result((message.n,), message.buffer.device)
        return Reduced(self.sum_into(replace(received, agreed=message.agreed), total), message)


def _show_nonfinite(rows: Tensor, values: Tensor, state: State) -> None:
    """Make every row's first sent value NaN when a number that may not have been drawn is not finite."""
    if values.numel() == 0:
        return
    finite = nonfinite.all_finite(rows) if state.finite is None else state.finite
    values[:, 0] = torch.where(finite, values[:, 0], torch.nan)
