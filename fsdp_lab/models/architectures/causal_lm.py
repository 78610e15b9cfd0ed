"""A Hugging Face causal language model whose forward is the loss."""

from __future__ import annotations

from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.models.architectures.families import logits_divisor
from fsdp_lab.models.architectures.linear_loss import HeadLoss, LinearCrossEntropy
from fsdp_lab.models.architectures.next_token import num_targets, tokens_and_targets
from fsdp_lab.models.architectures.objective import Objective


class CausalLM(Objective):
    """A model whose forward is the next-token loss: the FSDP2 root, which is gathered while head and loss run."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__(hf)
        self.loss: HeadLoss = LinearCrossEntropy(IGNORED)
        self._chunked = LinearCrossEntropy(IGNORED)  # validates where another loss trains; it has no memory before
        self._divisor = logits_divisor(hf.config)

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """Summed negative log-likelihood (nats, float32 scalar) of the tokens that are predicted.

        ``batch``: tokens, int64 ``[B, T]``, or conversations ``[B, T, 2]`` (`tokens_and_targets`). With ``weight``:
        ``[2]``, that sum and how many of these tokens are the model's first choice; rows with ``weight`` 0 (float
        ``[B]``) are padding and are not counted.
        """
        tokens, targets = tokens_and_targets(batch, weight)
        hidden = self.hf.base_model(tokens, use_cache=False).last_hidden_state
        if self._divisor != 1.0:
            hidden = hidden / self._divisor
        head = self.hf.get_output_embeddings().weight
        if weight is None:
            return self.loss(hidden.flatten(0, 1), head, targets.flatten())
        chunked = self.loss if isinstance(self.loss, LinearCrossEntropy) else self._chunked
        return chunked.loss_and_correct(hidden.flatten(0, 1), head, targets.flatten())

    def num_targets(self, batch: Tensor) -> int:
        """All tokens but each row's first, or those that the assistant says."""
        return num_targets(batch)
