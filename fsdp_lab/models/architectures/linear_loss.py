"""Cross-entropy of a language model's head without holding all logits: a chunk of tokens at a time, in reused memory.

The logits of 512 tokens over GPT-2's vocabulary are 103 MB of float32, and the usual way allocates them anew each step
and goes over them some eight times. Here the logits of a chunk of tokens are computed, turned into loss and gradient in
place, and multiplied into the gradients of both factors before the next chunk, as in Liger Kernel (arXiv 2410.10989);
backward has only to scale them. torch's `F.linear_cross_entropy` has the same idea, but on a CPU it takes longer than
whole logits do (docs/log/learnt-about-machines.md).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 512 << 20}  # of float32 logits held at a time
_LINE_BYTES = 64  # of a cache; rows that begin in the middle of one make the product of odd vocabularies a third slower


class HeadLoss(Protocol):
    """Head and loss of a causal model: ``hidden`` ``[N, d]`` and ``weight`` ``[V, d]`` of one dtype, ``targets``
    int64 ``[N]`` with -100 where there is none. Gives the loss in nats, summed over the targets, a float32 scalar.
    """

    def __call__(self, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of all targets, without holding logits of all of them at once."""


class LinearCrossEntropy:
    """The summed loss of ``cross_entropy(hidden @ weight.T, targets)``; the memory of a chunk is kept between calls.

    ``chunk_bytes``: of float32 logits held at a time; None: as `CHUNK_BYTES` has it for the device.
    """

    def __init__(self, ignored: int, chunk_bytes: int | None = None) -> None:
        self.ignored = ignored
        self._chunk_bytes = chunk_bytes
        self._memory: dict[torch.dtype, Tensor] = {}

    def __call__(self, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """The loss in nats, summed over all ``targets`` (int64 ``[N]``) that are not ``ignored``, as a float32 scalar.

        ``hidden`` ``[N, d]`` and ``weight`` ``[V, d]`` have one dtype, in which they are multiplied; the softmax and
        all sums are float32. Differentiable once, with respect to ``hidden`` and ``weight``.
        """
        loss: Tensor = _Loss.apply(hidden, weight, targets, self, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return loss

    @torch.no_grad()
    def loss_and_correct(self, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """``[2]``, float32: the loss of `__call__`, and how many of its targets have the largest logit of their row.

        Of equal logits the first is the largest.
        """
        sums = hidden.new_zeros(2, dtype=torch.float32)
        rows = self.rows(weight)
        for start in range(0, hidden.shape[0], rows):
            chunk = slice(start, start + rows)
            logits, _ = _logits(hidden[chunk], weight, self)
            right = (logits.argmax(1) == targets[chunk]).sum()
            loss, _ = _exponentials(logits, *_counted(targets[chunk], self.ignored))
            sums += torch.stack([loss, right])
        return sums

    def rows(self, weight: Tensor) -> int:
        """How many tokens a chunk has."""
        held = self._chunk_bytes or CHUNK_BYTES[weight.device.type]
        return max(1, held // (4 * weight.shape[0]))

    def chunk(self, like: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory on ``like``'s device, the same one in every call; a row begins a line of the cache."""
        line = _LINE_BYTES // dtype.itemsize
        stride = -(-shape[1] // line) * line
        size = shape[0] * stride
        kept = self._memory.get(dtype)
        if kept is None or kept.numel() < size or kept.device != like.device:
            kept = self._memory[dtype] = torch.empty(size, dtype=dtype, device=like.device)
        return kept[:size].view(shape[0], stride)[:, : shape[1]]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: LinearCrossEntropy, wants_grad: bool
    ) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden = torch.empty_like(hidden) if wants_grad else None
        is_trained = wants_grad and ctx.needs_input_grad[1]  # or frozen, under adapters
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if is_trained else None
        rows = head.rows(weight)
        for start in range(0, hidden.shape[0], rows):
            chunk = slice(start, start + rows)
            loss, gradient, scale = _softmax(hidden[chunk], weight, targets[chunk], head)
            total += loss
            if d_hidden is not None:
                torch.mm(gradient, weight, out=d_hidden[chunk])
                d_hidden[chunk] *= scale
            if d_weight is not None:
                scaled = (hidden[chunk] * scale).to(hidden.dtype)
                if weight.dtype == torch.float32:
                    d_weight.addmm_(gradient.t(), scaled)
                else:
                    d_weight += gradient.t() @ scaled
        if wants_grad:
            ctx.save_for_backward(d_hidden, d_weight)
            ctx.dtype = weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grad, None if d_weight is None else (d_weight * grad).to(ctx.dtype), None, None, None


def _softmax(
    hidden: Tensor, weight: Tensor, targets: Tensor, head: LinearCrossEntropy
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a chunk, and two factors whose product is its gradient with respect to the logits: [n, V] and [n, 1].

    The first is exp(logits), less its sum at the target. The second holds the division by that sum, which is cheaper
    to apply to ``hidden`` than to the logits.
    """
    logits, narrow = _logits(hidden, weight, head)
    targets, counted = _counted(targets, head.ignored)
    loss, mass = _exponentials(logits, targets, counted)
    logits.scatter_add_(1, targets, -mass)
    if narrow.dtype != torch.float32:
        narrow.copy_(logits)
    return loss, narrow, counted / mass


def _logits(hidden: Tensor, weight: Tensor, head: LinearCrossEntropy) -> tuple[Tensor, Tensor]:
    """The logits of a chunk ``[n, V]`` in float32 and in the dtype of ``hidden``: one memory where that is float32."""
    shape = (hidden.shape[0], weight.shape[0])
    logits = head.chunk(hidden, shape, torch.float32)
    narrow = head.chunk(hidden, shape, hidden.dtype)
    torch.mm(hidden, weight.t(), out=narrow)
    if narrow.dtype != torch.float32:
        logits.copy_(narrow)
    return logits, narrow


def _counted(targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Targets ``[n, 1]`` with word 0 in place of ignored ones, and which of them count."""
    counted = (targets != ignored)[:, None]
    return targets[:, None].where(counted, 0), counted


def _exponentials(logits: Tensor, targets: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss, and each row's sum of exponentials ``[n, 1]``, into which ``logits`` are turned in place.

    The largest logit of a row becomes 1.
    """
    at_target, largest = logits.gather(1, targets), logits.amax(1, keepdim=True)
    mass = logits.sub_(largest).exp_().sum(1, keepdim=True)
    return (mass.log() + largest - at_target).where(counted, 0).sum(), mass
