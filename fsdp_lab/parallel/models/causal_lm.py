"""A divided causal language model: GPT-2, Llama, Qwen."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.models.architectures.linear_loss import LinearCrossEntropy
from fsdp_lab.models.architectures.next_token import num_targets, tokens_and_targets
from fsdp_lab.parallel.division.loss import VocabularyCrossEntropy, sum_of_parts
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.divided import Divided


class DividedCausalLM(Divided):
    """As `CausalLM`, on all ranks of a wiring together."""

    def __init__(self, hf: PreTrainedModel, wiring: Wiring) -> None:
        super().__init__(hf, wiring)
        if wiring.layout.vocabulary:
            self._enter_head = wiring.enter("head")
            self._divided_loss = VocabularyCrossEntropy.of(wiring, hf.config.vocab_size)
        else:
            self._loss = LinearCrossEntropy(IGNORED)

    def num_targets(self, batch: Tensor) -> int:
        """All tokens but each row's first, or those that the assistant says."""
        return num_targets(batch)

    def embed(self, batch: Tensor) -> Tensor:
        """What the first block gets of ``batch`` int64 ``[B, T]``, or of conversations ``[B, T, 2]``."""
        tokens, _ = tokens_and_targets(batch)
        x, body = self.words(tokens), self.hf.base_model
        return x + body.wpe(self.positions(x.device)) if hasattr(body, "wpe") else x

    def loss(self, x: Tensor, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """The last norm, the head, and what `CausalLM.forward` gives."""
        x = self._norm(x)
        _, targets = tokens_and_targets(batch, weight)
        head: Any = self.hf.get_output_embeddings().weight
        if self.wiring.layout.vocabulary:
            divided = self._divided_loss if weight is None else self._divided_loss.loss_and_correct
            return divided(self._enter_head(x).flatten(0, 1), head, None, targets.flatten())
        loss = self._loss if weight is None else self._loss.loss_and_correct
        return sum_of_parts(loss(x.flatten(0, 1), head, self.mine(targets).flatten()), self.wiring.group)

    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Embeddings; the last norm and the head."""
        body: Any = self.hf.base_model
        first = [self.hf.get_input_embeddings(), *([body.wpe] if hasattr(body, "wpe") else [])]
        return first, [self._norm, self.hf.get_output_embeddings()]

    @property
    def _norm(self) -> nn.Module:
        body: Any = self.hf.base_model
        norm: nn.Module = body.ln_f if hasattr(body, "ln_f") else body.norm
        return norm
