"""A Hugging Face causal language model whose forward is the loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

IGNORED = -100  # F.cross_entropy's own "no target here"


class CausalLM(nn.Module):
    """Next-token loss of a GPT-2. It is the FSDP2 root, so head and loss run while its parameters are gathered."""

    def __init__(self, hf: GPT2LMHeadModel) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, tokens: Tensor) -> Tensor:
        """Summed float32 negative log-likelihood (nats) of tokens 2..T of each row of ``tokens``, int64 ``[B, T]``.

        Targets are shifted instead of logits: slicing would copy the ``[B, T, vocabulary]`` logits.
        A row that begins with `IGNORED` (padding of a ragged last batch) contributes nothing.
        """
        targets = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        targets = targets.masked_fill(tokens[:, :1] == IGNORED, IGNORED)
        hidden = self.hf.transformer(tokens.clamp_min(0), use_cache=False).last_hidden_state
        logits = self.hf.lm_head(hidden).flatten(0, 1).float()
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
