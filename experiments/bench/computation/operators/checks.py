"""Does a variant compute what the naive one computes? Its losses, and the norm of every parameter's gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LOSS = {"fp32": 1e-4, "bf16": 2e-2}
"""How far a loss may be from the naive one, as a share of it, in any step: rounding, which AdamW enlarges."""
GRADIENT = {"fp32": 1e-3, "bf16": 1e-1}
"""How far the norm of a parameter's gradient may be from the naive one in the first step, as a share of it."""
_NOISE = 1e-5  # of the norm of all gradients: below it a gradient is rounding alone, as that of a key's bias


def complaints(
    losses: Sequence[float],
    gradients: Mapping[str, float],
    naive_losses: Sequence[float],
    naive_gradients: Mapping[str, float],
    dtype: str,
) -> list[str]:
    """What is not as in the naive variant; ``dtype``: bf16 where one of the two computes in it, else fp32."""
    differences = []
    off = max(_off(loss, naive) for loss, naive in zip(losses, naive_losses, strict=True))
    if not off <= LOSS[dtype]:
        differences.append(f"a loss is {off:.1e} of itself off")
    if gradients.keys() != naive_gradients.keys():
        differences.append("other parameters have gradients")
        return differences
    floor = _NOISE * math.hypot(*naive_gradients.values())
    counted = [name for name, norm in naive_gradients.items() if norm > floor]
    if dead := [name for name in counted if not gradients[name] > 0]:
        differences.append(f"no gradient in {_first(dead)}")
    wrong = [n for n in counted if n not in dead and not _off(gradients[n], naive_gradients[n]) <= GRADIENT[dtype]]
    if wrong:
        worst = max(wrong, key=lambda name: _off(gradients[name], naive_gradients[name]))
        share = _off(gradients[worst], naive_gradients[worst])
        differences.append(f"the gradient's norm is {share:.1e} of itself off in {_first([worst, *wrong])}")
    return differences


def _off(value: float, naive: float) -> float:
    return abs(value - naive) / abs(naive) if math.isfinite(value) and naive else math.inf


def _first(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return different[0] + (f" and {len(different) - 1} more" if len(different) > 1 else "")
