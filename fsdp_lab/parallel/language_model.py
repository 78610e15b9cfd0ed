"""A divided causal language model whose forward is the loss: embedding, blocks, last norm, head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.architectures.linear_loss import LinearCrossEntropy
from fsdp_lab.parallel.loss import IGNORED, SummedLoss, VocabularyCrossEntropy
from fsdp_lab.parallel.split import Division, divide
from fsdp_lab.parallel.wiring import Wiring


class DividedLM(nn.Module):
    """What each rank of ``wiring`` runs of a causal language model. It divides ``hf`` in place.

    All ranks of the wiring get the same tokens, and the same loss.
    """

    def __init__(self, hf: PreTrainedModel, wiring: Wiring) -> None:
        super().__init__()
        self.hf, self.wiring = hf, wiring
        self.division: Division = divide(hf, wiring)
        self._blocks = list(blocks_of(hf).values())
        if wiring.layout.vocabulary:
            self._enter_head = wiring.enter("head")
            words = wiring.mine("words", hf.config.vocab_size)
            self._divided_loss = VocabularyCrossEntropy(words, wiring.exact.place("loss", wiring.group))
        else:
            self._loss = LinearCrossEntropy(IGNORED)

    def forward(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """As `CausalLM.forward`: ``tokens`` int64 ``[B, T]``, ``weight`` float ``[B]``; equal on all ranks."""
        return self.loss(self.through(self._blocks, self.embed(tokens)), tokens, weight)

    def replicated(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """The parameters whose gradients must be summed over the ranks (`Division.summed`), by block."""
        units: dict[str, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in self.hf.named_parameters():
            if name in self.division.summed:
                block = next((b for b in blocks_of(self.hf) if name.startswith(f"{b}.")), "others")
                units.setdefault(block, []).append((name, parameter))
        return units

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first block gets: ``[B, positions, H]``, this rank's positions where they are divided."""
        self.wiring.length = tokens.shape[1]
        mine = self.wiring.my_positions()
        layout, body = self.wiring.layout, self.hf.base_model
        if not layout.vocabulary:  # each rank embeds its own positions
            tokens = tokens[:, mine.start : mine.stop]
        x: Tensor = self.hf.get_input_embeddings()(tokens)
        if hasattr(body, "wpe"):  # GPT-2
            x = x + body.wpe(torch.arange(mine.start, mine.stop, device=x.device))
        return x

    def through(self, blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
        """What some of the blocks make of ``x``."""
        settings = self._settings(x)
        for block in blocks:
            x = block(x, attention_mask=None, **settings)
        return x

    def loss(self, x: Tensor, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """The last norm, the head, and the summed loss of the next tokens."""
        x = self._norm(x)
        targets = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        if weight is not None:
            targets = targets.masked_fill(weight[:, None] == 0, IGNORED)
        head: Any = self.hf.get_output_embeddings().weight
        if self.wiring.layout.vocabulary:
            return self._divided_loss(self._enter_head(x).flatten(0, 1), head, targets.flatten())
        mine = self.wiring.my_positions()
        own = self._loss(x.flatten(0, 1), head, targets[:, mine.start : mine.stop].flatten())
        total: Tensor = SummedLoss.apply(own, self.wiring.group)  # type: ignore[no-untyped-call]
        return total

    def _settings(self, x: Tensor) -> dict[str, Any]:
        """What every block is told beside ``x``: rotary positions, of all that its attention's queries are."""
        body = self.hf.base_model
        if not hasattr(body, "rotary_emb"):
            return {}
        positions = range(self.wiring.length) if self.wiring.layout.attention else self.wiring.my_positions()
        ids = torch.arange(positions.start, positions.stop, device=x.device)[None]
        return {"position_embeddings": body.rotary_emb(x, position_ids=ids)}

    def _norm(self, x: Tensor) -> Tensor:
        body = self.hf.base_model
        normed: Tensor = (body.ln_f if hasattr(body, "ln_f") else body.norm)(x)
        return normed
