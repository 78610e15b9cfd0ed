"""Loss scaling: gradients that are multiplied by a number which changes from step to step."""

from __future__ import annotations

from torch import Tensor, float16


class LossScale:
    """What gradients are multiplied by on their way through float16, and are freed of while they are compressed.

    Whatever a method remembers (residuals, momentum, thresholds) is in the gradients' own unit, so that it stays true
    when the scale changes. Powers of two change no digit of float32 or bfloat16.
    """

    def __init__(self) -> None:
        self.value = 1.0

    def take_off(self, rows: Tensor) -> None:
        """Divide ``rows`` by the scale, in place. ValueError in float16: small gradients would be lost without it."""
        if self.value == 1:
            return
        if rows.dtype == float16:
            raise ValueError(
                "loss_scale: gradients that are reduced in float16 cannot be compressed without their scale; reduce "
                "them in float32: MixedPrecisionPolicy(reduce_dtype=torch.float32)"
            )
        rows.mul_(1 / self.value)

    def put_on(self, reduced: Tensor) -> None:
        """Multiply ``reduced`` by the scale, in place: what comes after expects it."""
        if self.value != 1:
            reduced.mul_(self.value)
