"""Training-time test (arXiv 2503.01840, section 3): the draft is trained on its own outputs, as it will decode."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from fsdp_lab.eagle.decoding.chain import Generated, speculate
from fsdp_lab.eagle.draft.attention import TestTimeAttention
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Seen, Target
from fsdp_lab.eagle.training.soft_loss import RowScores, Teacher, soft_cross_entropy


class Outcome(NamedTuple):
    """The result of a forward: ``loss`` is the scalar to differentiate, ``scores`` are those of each row.

    ``supervised`` bool ``[K, B, T]``: which rows the loss is over.
    """

    loss: Tensor
    supervised: Tensor
    scores: RowScores


def supervised_rows(loss_mask: Tensor, steps: int) -> Tensor:
    """Which rows are supervised, bool ``[K, B, T]``, given which tokens are the assistant's (``loss_mask`` ``[B, T]``).

    Row t of step k stands for drafting token t + 2 + k after the target said the tokens up to t + 1. It is supervised
    when all tokens from t + 1 to t + 2 + k are the assistant's: only then can decoding draft it. So the first token of
    an answer is never drafted: the target itself says it.
    """
    said = F.pad(loss_mask[:, 1:], (0, 1), value=False)
    rows = []
    for k in range(steps):
        beyond = min(2 + k, loss_mask.shape[1])
        said = said & F.pad(loss_mask[:, beyond:], (0, beyond), value=False)
        rows.append(said)
    return torch.stack(rows)


class EagleTrainingModel(nn.Module):
    """A draft and its frozen target; forward gives the loss of a batch. `shard` and compressors wrap this module.

    ``steps``: the length of the training-time test; step k has the weight ``decay ** k``.
    """

    def __init__(self, target: Target, draft: Draft, steps: int = 7, decay: float = 0.8) -> None:
        super().__init__()
        self.target, self.draft = target, draft
        self.steps, self.decay = steps, decay

    def counts(self, loss_mask: Tensor) -> Tensor:
        """How many rows of each step are supervised in this batch, float32 ``[K]``."""
        return supervised_rows(loss_mask, self.steps).sum((1, 2)).float()

    def forward(
        self, tokens: Tensor, loss_mask: Tensor, counts: Tensor | None = None, seen: Seen | None = None
    ) -> Outcome:
        """The loss ``sum over k of decay^k x (summed loss of step k) / counts[k]`` of a batch.

        ``tokens`` int64 and ``loss_mask`` bool ``[B, T]`` (the assistant's tokens), padded on the right.
        ``counts`` float32 ``[K]``: the divisors of the sums; none: this batch's own. FSDP2 averages gradients; so for
        the mean over all ranks, give the sum of the ranks' `counts` divided by the number of ranks.
        ``seen``: what the target sees of ``tokens``; none: it is computed. Rows at padding may hold any finite number.
        """
        rows = supervised_rows(loss_mask, self.steps)
        counts = rows.sum((1, 2)).float() if counts is None else counts
        scale = self.decay ** torch.arange(self.steps, device=tokens.device) / counts.clamp(min=1e-9)
        seen = self.target(tokens) if seen is None else seen
        embedded = self.target.embed(tokens)
        hidden = torch.stack([self.draft.norm(h) for h in self.unrolled(embedded, seen.features)])
        teacher = Teacher(seen.last, self.target.head, self.draft.used)
        loss, scores = soft_cross_entropy(hidden, self.draft.lm_head.weight, teacher, rows, scale)
        return Outcome(loss, rows, scores)

    def answer(self, prompt: list[int], max_new_tokens: int, num_drafts: int, stop: Collection[int]) -> Generated:
        """Decodes greedily with the draft as it is now. All ranks of a sharded draft call this together."""
        return speculate(self.target, self.draft, prompt, max_new_tokens, num_drafts, stop=stop)

    def unrolled(self, embedded: Tensor, features: Tensor) -> Iterator[Tensor]:
        """Yields the hidden states ``[B, T, h]`` of each step, before the last norm.

        ``embedded`` is ``[B, T, h]``, ``features`` ``[B, T, 3h]``. In each step tokens move one position to the left;
        hidden states and the causal attention do not.
        """
        attention = TestTimeAttention()
        length = embedded.shape[1]
        positions = torch.arange(length, device=embedded.device)
        hidden = self.draft.fuse(features)
        embedded = embedded.to(hidden.dtype)
        for k in range(self.steps):
            shift = min(1 + k, length)
            moved = F.pad(embedded[:, shift:], (0, 0, 0, shift))
            rotation = self.draft.rotate(hidden, positions + k)
            hidden = self.draft.midlayer(moved, hidden, rotation, attention.attend)
            yield hidden


def shard(
    model: EagleTrainingModel,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    *,
    target: bool = False,
    reshard: bool = True,
) -> None:
    """Makes the draft one FSDP2 unit, which is gathered once in each optimizer step although its layer runs K times.

    The target stays unsharded on every rank, unless ``target``: then each of its blocks is a unit, and only its
    embedding, last norm and head are not sharded. ``reshard``: free a block's parameters after its forward.
    """
    kept = set(model.target.parameters())
    if target:
        for block in model.target.blocks:
            kept -= set(block.parameters())
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=kept)
    register_fsdp_forward_method(model, "answer")
