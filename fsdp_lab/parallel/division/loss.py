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
from fsdp_lab.models.architectures.causal_lm import IGNORED
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
        logits = torch.nn.functional.linear(hidden, weight, bias)
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
        ctx.has_bias = bias is not None
        if wants_grad:
            gradient = logits.sub_(top[:, None]).exp_().div_(total[:, None])
            gradient.scatter_add_(1, here, -is_here.to(gradient.dtype)[:, None])
            gradient = gradient.masked_fill_(~counted[:, None], 0).to(weight.dtype)
            ctx.save_for_backward(gradient @ weight, gradient.t() @ hidden, gradient.sum(0))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = (saved * grad.to(saved.dtype) for saved in ctx.saved_tensors)
        return d_hidden, d_weight, d_bias if ctx.has_bias else None, None, None, None


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
