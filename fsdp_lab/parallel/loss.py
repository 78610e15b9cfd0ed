"""Cross-entropy over a vocabulary that is divided over ranks: no rank sees another's logits.

Each rank's largest logit, sum of exponentials and logit of the target are gathered, three numbers a token, and give
the loss on every rank (Megatron-LM, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

import comm_compress as cc

IGNORED = -100  # F.cross_entropy's own "no target here"


class VocabularyCrossEntropy:
    """The summed loss of ``cross_entropy(hidden @ weight.T, targets)``, the weight's rows divided over ranks."""

    def __init__(self, words: range, place: cc.parallel.Place) -> None:
        self.words, self.place = words, place

    def __call__(self, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """The loss in nats, summed over all ``targets`` (int64 ``[N]``) but ignored ones: a scalar, equal on all ranks.

        ``hidden`` ``[N, d]`` is equal on all ranks; its gradient is this rank's part of it. ``weight``: this rank's
        words, ``[words, d]``. float32, or float64 for both.
        """
        loss: Tensor = _Loss.apply(hidden, weight, targets, self, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return loss


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: VocabularyCrossEntropy, wants_grad: bool
    ) -> Tensor:
        logits = hidden @ weight.t()
        if logits.dtype != torch.float64:
            logits = logits.float()
        counted = targets != IGNORED
        here = targets - head.words.start
        is_here = counted & (here >= 0) & (here < len(head.words))
        here = here.masked_fill(~is_here, 0)[:, None]
        largest = logits.amax(1)
        mass = logits.sub(largest[:, None]).exp_().sum(1)
        at_target = logits.gather(1, here)[:, 0].masked_fill(~is_here, 0)
        each = head.place.all_gather(torch.stack([largest, mass, at_target])[None], 0)  # [W, 3, N]
        top = each[:, 0].amax(0)
        total = (each[:, 1] * (each[:, 0] - top).exp()).sum(0)
        loss = (total.log() + top - each[:, 2].sum(0)).masked_fill(~counted, 0).sum()
        if wants_grad:
            gradient = logits.sub_(top[:, None]).exp_().div_(total[:, None])
            gradient.scatter_add_(1, here, -is_here.to(gradient.dtype)[:, None])
            gradient = gradient.masked_fill_(~counted[:, None], 0).to(weight.dtype)
            ctx.save_for_backward(gradient @ weight, gradient.t() @ hidden)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grad.to(d_hidden.dtype), d_weight * grad.to(d_weight.dtype), None, None, None


class SummedLoss(torch.autograd.Function):
    """The sum of the ranks' losses, each over positions of its own; every rank's gradient is that of its own part."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: dist.ProcessGroup) -> Tensor:
        """``loss``: a scalar."""
        total = loss.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """A part's gradient is the sum's."""
        return gradient, None
