"""What moves the outer parameters by the mean pseudo-gradient: any `torch.optim.Optimizer`; here the usual two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of the parameters it is given: ``lambda parameters: torch.optim.SGD(parameters, lr=0.7)``."""


def averaging(lr: float = 1.0) -> OptimizerFactory:
    """Plain SGD. With ``lr`` 1 the outer parameters become the mean: local SGD (arXiv 1805.09767), SparseLoCo."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def nesterov(lr: float = 0.7, momentum: float = 0.9) -> OptimizerFactory:
    """SGD with Nesterov's momentum, as in DiLoCo (arXiv 2311.08105: lr 0.7, momentum 0.9)."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=True)
