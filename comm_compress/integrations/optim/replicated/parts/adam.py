"""Adam's arithmetic, as torch has it, for optimizers that know the mean gradient."""

from __future__ import annotations

from torch import Tensor

Betas = tuple[float, float]


def check_betas(betas: Betas) -> None:
    """ValueError for a decay that is not at least 0 and below 1."""
    for name, beta in zip(("beta1", "beta2"), betas, strict=True):
        if not 0 <= beta < 1:
            raise ValueError(f"{name} = {beta!r}: must be at least 0 and less than 1")


def take_in(gradient: Tensor, momentum: Tensor, variance: Tensor, betas: Betas) -> None:
    """Let ``gradient`` enter both moments, in place."""
    momentum.lerp_(gradient, 1 - betas[0])
    take_square_in(gradient, variance, betas)


def take_square_in(gradient: Tensor, variance: Tensor, betas: Betas) -> None:
    """Let the square of ``gradient`` enter the variance, in place."""
    variance.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])


def move(
    weights: Tensor,
    momentum: Tensor,
    variance: Tensor,
    lr: float,
    eps: float,
    of_momentum: float = 1.0,
    of_variance: float = 1.0,
) -> None:
    """Move ``weights`` against the momentum over the root of the variance, in place.

    ``of_momentum``, ``of_variance``: what the bias of each moment is corrected by, 1 - beta^t; 1: not.
    """
    root = variance.sqrt().div_(of_variance**0.5).add_(eps)
    weights.addcdiv_(momentum, root, value=-lr / of_momentum)
