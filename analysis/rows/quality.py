"""What a run is judged by: perplexity, or a draft's acceptance length, as a loss (less is better).

Both losses are logarithms, so a difference of two runs is a ratio: of perplexities, or of the passes of the target that
a token costs (1 / tau)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.rows.reading import is_draft, is_number


@dataclass(frozen=True)
class Quality:
    """How a loss is made of ``column``; a relative change of the loss's exponential is a change of what ``ratio``
    names."""

    column: str
    ratio: str
    loss: Callable[[float], float]


PERPLEXITY = Quality("val_loss", "PPL", float)
ACCEPTANCE = Quality("tau", "passes a token", lambda tau: -math.log(tau))


def quality_of(row: Mapping[str, Any]) -> Quality:
    """The quality that a row of its kind is judged by."""
    return ACCEPTANCE if is_draft(row) else PERPLEXITY


def loss_of(row: Mapping[str, Any]) -> float | None:
    """The row's loss; None where it is not known or not finite."""
    quality = quality_of(row)
    value = row.get(quality.column)
    return quality.loss(value) if is_number(value) else None
