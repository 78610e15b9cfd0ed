"""A Hugging Face causal language model whose forward is the loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import logits_divisor
from fsdp_lab.models.architectures.linear_loss import HeadLoss, LinearCrossEntropy
from fsdp_lab.models.architectures.objective import Objective

IGNORED = -100  # F.cross_entropy's own "no target here"


class CausalLM(Objective):
    """A model whose forward is the next-token loss: the FSDP2 root, which is gathered while head and loss run."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__(hf)
        self.loss: HeadLoss = LinearCrossEntropy(IGNORED)
        self._chunked = LinearCrossEntropy(IGNORED)  # validates where another loss trains; it has no memory before
        self._divisor = logits_divisor(hf.config)

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """Summed negative log-likelihood (nats, float32 scalar) of tokens 2 to T of each row.

        ``batch``: tokens, int64 ``[B, T]``. With ``weight``: ``[2]``, that sum and how many of these tokens are the
        model's first choice; rows with ``weight`` 0 (float ``[B]``) are padding and are not counted.
        Targets are shifted instead of hidden states, because slicing would copy the hidden states.
        """
        targets = F.pad(batch[:, 1:], (0, 1), value=IGNORED)
        if weight is not None:
            targets = targets.masked_fill(weight[:, None] == 0, IGNORED)
        hidden = self.hf.base_model(batch, use_cache=False).last_hidden_state
        if self._divisor != 1.0:
            hidden = hidden / self._divisor
        head = self.hf.get_output_embeddings().weight
        if weight is None:
            return self.loss(hidden.flatten(0, 1), head, targets.flatten())
        chunked = self.loss if isinstance(self.loss, LinearCrossEntropy) else self._chunked
        return chunked.loss_and_correct(hidden.flatten(0, 1), head, targets.flatten())

    def num_targets(self, batch: Tensor) -> int:
        """All tokens but each row's first."""
        return batch.shape[0] * (batch.shape[1] - 1)
