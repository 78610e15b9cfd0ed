"""BERT's two tasks as one loss: filling in masked tokens, and telling whether a segment follows another.

Devlin et al., arXiv 1810.04805: the loss is the mean over masked tokens plus the mean over pairs, as transformers'
`BertForPreTraining` has it. Only the positions that are predicted go through the head over the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.models.architectures.objective import Objective


class MaskedLM(Objective):
    """A `BertForPreTraining` whose forward is its loss."""

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """Summed negative log-likelihood (nats) of masked tokens, plus that of the pairs' labels times masks a pair.

        ``batch`` int64 ``[B, T, 3]``: token, its type, and label at each position, with `num_chosen` labels a row
        beside the first position's, which is the pair's. With ``weight``: ``[4]``, sums over the rows that count: the
        loss of masked tokens, how many of them are the first choice, and both of pairs. Logits and sums are float32
        (float64 in a float64 model).
        """
        tokens, types, labels = batch.unbind(-1)
        output = self.hf.base_model(tokens, token_type_ids=types)
        logits, masked = self._masked(output.last_hidden_state, labels)
        pairs, follows = wide(self.hf.cls.seq_relationship(output.pooler_output)), labels[:, 0]
        if weight is None:
            of_pairs = negative_log_likelihood(pairs, follows).sum()
            return negative_log_likelihood(logits, masked).sum() + of_pairs * self._masks_a_row(batch)
        of_tokens, of_pairs = loss_and_correct(logits, masked).sum(2), loss_and_correct(pairs, follows)
        return torch.cat([of_tokens, of_pairs]) @ weight.to(logits.dtype)

    def num_targets(self, batch: Tensor) -> int:
        """The masked tokens; pairs weigh in the mean as transformers has it."""
        return batch.shape[0] * self._masks_a_row(batch)

    def _masks_a_row(self, batch: Tensor) -> int:
        return num_chosen(batch.shape[1])

    def _masked(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[B, masks a row, V]`` where tokens are masked, and which these are, ``[B, masks a row]``."""
        count = num_chosen(labels.shape[1])
        # found by sorting: unlike nonzero it has a known shape, so a GPU is not waited for
        at = 1 + (labels[:, 1:] == IGNORED).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
        chosen = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))
        return wide(self.hf.cls.predictions(chosen)), labels.gather(1, at)


def negative_log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """The negative log-likelihood, in nats, of each of ``targets``, under ``logits`` with a last dimension more."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)


def loss_and_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """`negative_log_likelihood`, and 1 where the target has the largest logit: ``[2, *targets.shape]``."""
    loss = negative_log_likelihood(logits, targets)
    return torch.stack([loss, (logits.argmax(-1) == targets).to(loss.dtype)])


def wide(logits: Tensor) -> Tensor:
    """``logits`` in the dtype of the loss: float32, or float64 where they are."""
    return logits if logits.dtype == torch.float64 else logits.float()
