"""A divided BERT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.models.architectures.masked_lm import loss_and_correct, negative_log_likelihood, wide
from fsdp_lab.parallel.division.loss import VocabularyCrossEntropy, sum_of_parts
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.divided import Divided


class DividedMaskedLM(Divided):
    """As `MaskedLM`, on all ranks of a wiring together.

    Only masked positions go to the head: each rank transforms those among its own positions, and they are gathered for
    the divided vocabulary. Pairs are loss_and_correct by the rank that has the first position.
    """

    def __init__(self, hf: PreTrainedModel, wiring: Wiring) -> None:
        super().__init__(hf, wiring)
        if wiring.layout.vocabulary:
            self._enter_head = wiring.enter_some("head")
            self._divided_loss = VocabularyCrossEntropy.of(wiring, hf.config.vocab_size)

    def loss(self, x: Tensor, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """As `MaskedLM.forward`: ``batch`` int64 ``[B, T, 3]``, ``weight`` float ``[B]``."""
        labels = batch[..., 2]
        masked = self._masked(x, labels, weight)
        pairs = self._pairs(x, labels[:, 0])
        if weight is None:
            return masked + pairs[0].sum() * num_chosen(batch.shape[1])
        return torch.cat([masked, pairs @ weight.to(masked.dtype)])

    def num_targets(self, batch: Tensor) -> int:
        """The masked tokens; pairs weigh in the mean as transformers has it."""
        return batch.shape[0] * num_chosen(batch.shape[1])

    def num_sums(self, weight: Tensor | None) -> int:
        """The loss alone or, with ``weight``, two sums of masked tokens and two of pairs."""
        return 1 if weight is None else 4

    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Embeddings; the pooler and both heads."""
        body: Any = self.hf.base_model
        return [body.embeddings], [body.pooler, self.hf.cls]

    def embed(self, batch: Tensor) -> Tensor:
        """What the first block gets of ``batch`` int64 ``[B, T, 3]``."""
        parts: Any = self.hf.base_model.embeddings
        tokens, types, _ = batch.unbind(-1)
        x = self.words(tokens)
        x = x + parts.token_type_embeddings(self.mine(types)) + parts.position_embeddings(self.positions(x.device))
        normed: Tensor = parts.LayerNorm(x)
        return normed

    def _masked(self, x: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """The summed loss of masked tokens; with ``weight`` ``[2]``, of rows that count, and its first choices."""
        targets = labels.clone()
        targets[:, 0] = IGNORED  # the pair's label
        is_target = targets != IGNORED
        if weight is not None:
            targets = targets.masked_fill(weight[:, None] == 0, IGNORED)
        head: Any = self.hf.cls.predictions
        chosen = head.transform(x[self.mine(is_target)])
        if not self.wiring.layout.vocabulary:
            logits, own = wide(head.decoder(chosen)), self.mine(targets)[self.mine(is_target)]
            if weight is None:
                return sum_of_parts(negative_log_likelihood(logits, own).sum(), self.wiring.group)
            return sum_of_parts(loss_and_correct(logits, own).sum(1), self.wiring.group)
        if self.wiring.layout.by_positions:  # as they are gathered: one rank's after another's
            by_rank = [(targets[:, p.start : p.stop], is_target[:, p.start : p.stop]) for p in self.wiring.parts()]
            each = [theirs[masks] for theirs, masks in by_rank]
        else:
            each = [targets[is_target]]
        hidden = self._enter_head(chosen, [part.numel() for part in each])
        loss = self._divided_loss if weight is None else self._divided_loss.loss_and_correct
        return loss(hidden, head.decoder.weight, head.decoder.bias, torch.cat(each))

    def _pairs(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of every pair, and whether it is told rightly: ``[2, B]``."""
        both = loss_and_correct(wide(self.hf.cls.seq_relationship(self.hf.base_model.pooler(x))), labels)
        if not self.wiring.layout.by_positions:
            return both
        has_first = self.wiring.my_positions().start == 0
        return sum_of_parts(both if has_first else both * 0, self.wiring.group)
