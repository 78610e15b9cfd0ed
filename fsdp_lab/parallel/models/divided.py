"""A model divided over ranks: what all of them have in common, whatever they are trained to do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.parallel.division.split import Division, divide
from fsdp_lab.parallel.division.wiring import Wiring


class Divided(Objective):
    """What each rank of ``wiring`` runs of ``hf``, which is divided in place.

    All ranks of the wiring get the same batch, and the same loss. Activations between the parts are ``[B, positions,
    H]``: this rank's positions where the layout divides them, else all.
    """

    def __init__(self, hf: PreTrainedModel, wiring: Wiring) -> None:
        super().__init__(hf)
        self.wiring = wiring
        self.division: Division = divide(hf, wiring)

    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """As the undivided model's `Objective.forward`; ``batch`` and ``weight`` are equal on all ranks."""
        return self.loss(self.through(self.blocks.values(), self.embed(batch)), batch, weight)

    @abstractmethod
    def embed(self, batch: Tensor) -> Tensor:
        """What the first block gets: the embeddings of a batch."""

    @abstractmethod
    def loss(self, x: Tensor, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """What `forward` gives, from what the last block has made."""

    @abstractmethod
    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The modules with parameters in front of the blocks, and behind them."""

    def num_sums(self, weight: Tensor | None) -> int:
        """How many numbers `forward` gives, with or without ``weight``."""
        return 1 if weight is None else 2

    @property
    def blocks(self) -> dict[str, nn.Module]:
        """The transformer blocks in order, by name."""
        return blocks_of(self.hf)

    def replicated(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """The parameters whose gradients must be summed over the ranks (`Division.summed`), by block."""
        return self.units(self.division.summed)

    def units(self, names: Collection[str] | None = None) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """The parameters of these names (None: all) that this rank has, by block."""
        units: dict[str, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in self.hf.named_parameters():
            if names is None or name in names:
                block = next((b for b in self.blocks if name.startswith(f"{b}.")), "others")
                units.setdefault(block, []).append((name, parameter))
        return units

    def words(self, tokens: Tensor) -> Tensor:
        """The embeddings of ``tokens`` int64 ``[B, T]``, and from here on the length of the sequences under way."""
        self.wiring.length = tokens.shape[1]
        if not self.wiring.layout.vocabulary:  # each rank embeds its own positions
            tokens = self.mine(tokens)
        embedded: Tensor = self.hf.get_input_embeddings()(tokens)
        return embedded

    def mine(self, of_positions: Tensor) -> Tensor:
        """This rank's positions of something that has all of them in its second dimension."""
        here = self.wiring.my_positions()
        return of_positions[:, here.start : here.stop]

    def positions(self, device: torch.device) -> Tensor:
        """The numbers of this rank's positions between the parts, int64."""
        here = self.wiring.my_positions()
        return torch.arange(here.start, here.stop, device=device)

    def through(self, blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
        """What some of the blocks make of ``x``."""
        settings = self._settings(x)
        for block in blocks:
            x = block(x, attention_mask=None, **settings)
        return x

    def _settings(self, x: Tensor) -> dict[str, Any]:
        """What every block is told beside ``x``: rotary positions, of all that its attention's queries are."""
        body = self.hf.base_model
        if not hasattr(body, "rotary_emb"):
            return {}
        positions = range(self.wiring.length) if self.wiring.layout.attention else self.wiring.my_positions()
        ids = torch.arange(positions.start, positions.stop, device=x.device)[None]
        return {"position_embeddings": body.rotary_emb(x, position_ids=ids)}
