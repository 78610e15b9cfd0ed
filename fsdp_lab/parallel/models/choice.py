"""The divided model of each family."""

from __future__ import annotations

from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.causal_lm import DividedCausalLM
from fsdp_lab.parallel.models.divided import Divided
from fsdp_lab.parallel.models.masked_lm import DividedMaskedLM
from fsdp_lab.settings.models.masked import MASKED


def divided_model(hf: PreTrainedModel, wiring: Wiring) -> Divided:
    """``hf`` divided over the ranks of ``wiring``, with the loss of its family. Raises ValueError as `divide` does."""
    return (DividedMaskedLM if hf.config.model_type in MASKED else DividedCausalLM)(hf, wiring)
