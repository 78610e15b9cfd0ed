"""Soft cross-entropy of the draft against the target, without ever holding all logits of either.

The target's logits over its whole vocabulary are needed for the supervised positions only, a chunk at a time, and once:
every step of the training-time test that predicts the same token uses the same logits. A chunk's gradient is computed
in the memory of its logits, and multiplied into the gradients of both factors before the next chunk, as in
`linear_loss`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 512 << 20}  # of float32 logits of the target held at a time


class Teacher(NamedTuple):
    """What the target says: ``last`` ``[B, T, h]``, its hidden states before its head ``[V, h]``.

    ``used`` int64 ``[D]``: the target's ids of the draft's tokens.
    """

    last: Tensor
    head: Tensor
    used: Tensor


class RowScores(NamedTuple):
    """How well the draft predicts each row t in each step k, ``[K, B, T]``; zero where a row is not supervised.

    ``loss``: nats, float32. ``correct``: whether the draft's first choice is the target's (over its whole vocabulary).
    ``overlap``: the probability that the target accepts a token drawn from the draft's distribution; it is computed
    only where no gradient is wanted.
    """

    loss: Tensor
    correct: Tensor
    overlap: Tensor


def soft_cross_entropy(
    hidden: Tensor, weight: Tensor, teacher: Teacher, rows: Tensor, scale: Tensor
) -> tuple[Tensor, RowScores]:
    """The loss ``sum over k of scale[k] x (step k's summed loss)``, a scalar, and the scores of all rows.

    ``hidden`` ``[K, B, T, h]``: the draft's rows before its head ``weight`` ``[D, h]``; row t of step k predicts what
    the target says at position t + 1 + k. ``rows`` bool ``[K, B, T]``: which are supervised. ``scale`` float32 ``[K]``.
    A row has no loss where the draft does not know the target's first choice. Differentiable once, with respect to
    ``hidden`` and ``weight``.
    """
    wants_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    total, *scores = _Loss.apply(hidden, weight, teacher, rows, scale, wants_grad)  # type: ignore[no-untyped-call]
    return total, RowScores(*scores)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, teacher: Teacher, rows: Tensor, scale: Tensor, wants_grad: bool
    ) -> tuple[Tensor, ...]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros(rows.shape, dtype=exact, device=hidden.device)
        correct, overlap = torch.zeros_like(rows), torch.zeros_like(loss)
        d_hidden = torch.zeros_like(hidden) if wants_grad else None
        d_weight = torch.zeros_like(weight, dtype=exact) if wants_grad else None
        known = torch.zeros(len(teacher.head), dtype=torch.bool, device=hidden.device)
        known[teacher.used] = True
        for b, s in _chunks(rows, len(teacher.head)):
            said = torch.mm(teacher.last[b, s], teacher.head.t()).to(exact)  # [n, V]
            choice = said.argmax(-1)
            wanted = said.index_select(1, teacher.used)  # [n, D]
            p = wanted.softmax(-1)
            # log of the probability that the target gives to the draft's vocabulary
            covered = None if wants_grad else wanted.logsumexp(-1) - said.logsumexp(-1)
            del said, wanted
            for k in range(len(hidden)):
                t = s - 1 - k
                valid = (t >= 0) & rows[k, b, t.clamp(min=0)]
                here = valid.nonzero().flatten()
                if not len(here):
                    continue
                at = (k, b[here], t[here])
                mine = p if len(here) == len(p) else p[here]
                z = torch.mm(hidden[at], weight.t()).to(exact)
                correct[at] = teacher.used[z.argmax(-1)] == choice[here]
                counted = known[choice[here]]
                log_mass = z.logsumexp(-1)
                loss[at] = (log_mass - (mine * z).sum(-1)).where(counted, 0)
                q = z.sub_(log_mass[:, None]).exp_()
                if covered is not None:
                    overlap[at] = torch.minimum(mine * covered[here].exp()[:, None], q).sum(-1)
                if d_hidden is not None and d_weight is not None:
                    gradient = q.sub_(mine).mul_(counted[:, None] * scale[k]).to(weight.dtype)
                    d_hidden[at] = gradient @ weight
                    d_weight += gradient.t() @ hidden[at]
        ctx.mark_non_differentiable(loss, correct, overlap)
        if wants_grad:
            ctx.save_for_backward(d_hidden, d_weight)
            ctx.dtype = weight.dtype
        return (loss.sum((1, 2)) * scale).sum(), loss, correct, overlap

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grad.to(d_hidden.dtype), (d_weight * grad).to(ctx.dtype), None, None, None, None


def _chunks(rows: Tensor, vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    """(sequence, position) of all target rows with which any step is compared, in chunks of bounded size."""
    steps, _, length = rows.shape
    needed = torch.zeros(rows.shape[1:], dtype=torch.bool, device=rows.device)
    for k in range(min(steps, length - 1)):
        needed[:, 1 + k :] |= rows[k, :, : length - 1 - k]
    b, s = needed.nonzero(as_tuple=True)
    size = max(1, CHUNK_BYTES[rows.device.type] // (4 * vocabulary))
    starts = range(0, len(b), size)
    return [(b[i : i + size], s[i : i + size]) for i in starts]
