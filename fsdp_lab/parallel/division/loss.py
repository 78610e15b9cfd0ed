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
from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.parallel.division.wiring import Wiring


class VocabularyCrossEntropy:
    """The summed loss of ``cross_entropy(hidden @ weight.T + bias, targets)``, the words divided over ranks."""

    def __init__(self, words: range, place: cc.parallel.Place) -> None:
        self.words, self.place = words, place

    @classmethod
    def of(cls, wiring: Wiring, vocab_size: int) -> VocabularyCrossEntropy:
        """That of a model whose vocabulary is divided as ``wiring`` says; its statistics travel exactly."""
        return cls(wiring.mine("words", vocab_size), wiring.exact.place("loss", wiring.group))

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        """The loss in nats, summed over all ``targets`` (int64 ``[N]``) but ignored ones: a scalar, equal on all ranks.

        ``hidden`` ``[N, d]`` is equal on all ranks; its gradient is this rank's part of it. ``weight`` ``[words, d]``
        and ``bias`` ``[words]``: this rank's. Sums are float32, or float64 where the model is. This rank's logits
        ``[N, words]`` are held as a whole.
        """
        loss: Tensor = _Loss.apply(hidden, weight, bias, targets, self, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return loss

    @torch.no_grad()
    def loss_and_correct(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        """``[2]``, equal on all ranks: the loss of `__call__`, and how many of its targets have the largest logit.

        Of equal logits that of the first word is the largest. Ranks gather four numbers a token.
        """
        logits = _logits(hidden, weight, bias)
        first = logits.argmax(1) + self.words.start
        each, _ = _gathered(logits, targets, self, first)
        loss, *_ = _summed(each, targets)
        choice = each[:, 3].gather(0, each[:, 0].argmax(0)[None])[0]
        return torch.stack([loss, (choice == targets).sum().to(loss.dtype)])


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head: VocabularyCrossEntropy,
        wants_grad: bool,
    ) -> Tensor:
        logits = _logits(hidden, weight, bias)
        each, (here, is_here) = _gathered(logits, targets, head)
        loss, top, total = _summed(each, targets)
        ctx.has_bias = bias is not None
        if wants_grad:
            gradient = logits.sub_(top[:, None]).exp_().div_(total[:, None])
            gradient.scatter_add_(1, here, -is_here.to(gradient.dtype)[:, None])
            gradient = gradient.masked_fill_((targets == IGNORED)[:, None], 0).to(weight.dtype)
            ctx.save_for_backward(gradient @ weight, gradient.t() @ hidden, gradient.sum(0))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = (saved * grad.to(saved.dtype) for saved in ctx.saved_tensors)
        return d_hidden, d_weight, d_bias if ctx.has_bias else None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits if logits.dtype == torch.float64 else logits.float()


def _gathered(
    logits: Tensor, targets: Tensor, head: VocabularyCrossEntropy, *further: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """``[W, 3 + further, N]``: each rank's largest logit, sum of exponentials and logit of the target, and ``further``.

    Beside it where the target is among this rank's words, ``[N, 1]``, and whether it is, ``[N]``.
    """
    here = targets - head.words.start
    is_here = (targets != IGNORED) & (here >= 0) & (here < len(head.words))
    here = here.masked_fill(~is_here, 0)[:, None]
    largest = logits.amax(1)
    mass = logits.sub(largest[:, None]).exp_().sum(1)
    at_target = logits.gather(1, here)[:, 0].masked_fill(~is_here, 0)
    mine = torch.stack([largest, mass, at_target, *(one.to(largest.dtype) for one in further)])
    return head.place.all_gather(mine[None], 0), (here, is_here)


def _summed(each: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From what `_gathered` gives: the summed loss, and each token's largest logit and sum of exponentials, ``[N]``."""
    top = each[:, 0].amax(0)
    total = (each[:, 1] * (each[:, 0] - top).exp()).sum(0)
    return (total.log() + top - each[:, 2].sum(0)).masked_fill(targets == IGNORED, 0).sum(), top, total


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def sum_of_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks of losses, each of positions of its own. Every rank's gradient is that of its own part."""
    total: Tensor = _SumOfParts.apply(part, group)  # type: ignore[no-untyped-call]
    return total
