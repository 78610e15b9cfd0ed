"""BERT's two tasks as one loss: filling in masked tokens, and telling whether a segment follows another.

Devlin et al., arXiv 1810.04805: the loss is the mean over masked tokens plus the mean over pairs, as transformers'
`BertForPreTraining` has it. Only the positions that are predicted go through the head over the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.data.batches.masked.masking import IGNORED, num_chosen
from fsdp_lab.models.architectures.objective import Objective


class MaskedLM(Objective):
    """A `BertForPreTraining` whose forward is its loss."""

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """Summed negative log-likelihood (nats) of masked tokens, plus that of the pairs' labels times masks a pair.

        ``batch`` int64 ``[B, T, 3]``: token, its type, and label at each position, with `num_chosen` labels a row
        beside the first position's, which is the pair's. With ``weight``: ``[3]``, sums over the rows that count of
        both likelihoods and of pairs told rightly. Logits and sums are float32 (float64 in a float64 model).
        """
        tokens, types, labels = batch.unbind(-1)
        output = self.hf.base_model(tokens, token_type_ids=types)
        masked, pairs = self._masked(output.last_hidden_state, labels), self._pairs(output.pooler_output)
        of_pairs = F.cross_entropy(pairs, labels[:, 0], reduction="none")
        if weight is None:
            return masked.sum() + of_pairs.sum() * self._masks_a_row(batch)
        right = (pairs.argmax(-1) == labels[:, 0]).to(masked.dtype)
        counted = weight.to(masked.dtype)
        return torch.stack([masked.sum(1) @ counted, of_pairs @ counted, right @ counted])

    def num_targets(self, batch: Tensor) -> int:
        """The masked tokens; pairs weigh in the mean as transformers has it."""
        return batch.shape[0] * self._masks_a_row(batch)

    def _masks_a_row(self, batch: Tensor) -> int:
        return num_chosen(batch.shape[1])

    def _masked(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The negative log-likelihood of every masked token, ``[B, masks a row]``."""
        count = num_chosen(labels.shape[1])
        # found by sorting: unlike nonzero it has a known shape, so a GPU is not waited for
        at = 1 + (labels[:, 1:] == IGNORED).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
        chosen = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = wide(self.hf.cls.predictions(chosen))
        targets = labels.gather(1, at)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)

    def _pairs(self, pooled: Tensor) -> Tensor:
        return wide(self.hf.cls.seq_relationship(pooled))


def wide(logits: Tensor) -> Tensor:
    """``logits`` in the dtype of the loss: float32, or float64 where they are."""
    return logits if logits.dtype == torch.float64 else logits.float()
