"""A model whose forward is what it is trained to make small: the FSDP2 root, gathered while head and loss run."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel


class Objective(nn.Module, ABC):
    """``hf`` and its loss. `forward` sums over a batch; the mean is that sum by `num_targets`."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf

    @abstractmethod
    def forward(self, batch: Tensor, weight: Tensor | None = None) -> Tensor:
        """The summed training loss, a scalar; with ``weight`` (evaluation) the sums that `Evaluation.of` reads.

        Rows with ``weight`` 0 (float ``[B]``) are padding and are not counted.
        """

    @abstractmethod
    def num_targets(self, batch: Tensor) -> int:
        """How many tokens are predicted in ``batch``."""
