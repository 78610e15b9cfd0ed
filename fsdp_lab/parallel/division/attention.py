"""Attention of some positions' queries to all positions: sequence parallelism with gathered keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from fsdp_lab.parallel.division.wiring import Collective, Wiring

NAME = "gathered_keys"
"""Under which transformers' configurations ask for this attention."""


@dataclass
class GatheredKeys:
    """What one attention layer needs to see all positions; kept by the layer as ``gathered_keys``."""

    wiring: Wiring
    gather: Collective

    def mask(self, device: torch.device, causal: bool) -> Tensor | None:
        """Which positions (bool ``[1, 1, mine, all]``) each of this rank's may look at; None: at all."""
        if not causal:
            return None
        mine, length = self.wiring.my_positions(), self.wiring.length
        rows = torch.arange(mine.start, mine.stop, device=device)[:, None]
        return (torch.arange(length, device=device)[None] <= rows)[None, None]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: ``query``, ``key``, ``value`` ``[B, heads, this rank's positions, d]``.

    Keys and values travel together: one collective a layer. ``attention_mask`` is the model's, of this rank's positions
    only, and so of no use.
    """
    keys: GatheredKeys = module.gathered_keys  # type: ignore[assignment]
    heads = key.shape[1]
    both = keys.gather(torch.cat([key, value], 1))
    key, value = both[:, :heads], both[:, heads:]
    mask = keys.mask(query.device, causal=getattr(module, "is_causal", True))
    output, _nothing = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=False
    )
    return output, None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
