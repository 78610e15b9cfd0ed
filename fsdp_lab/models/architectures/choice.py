"""What a model is trained to do, by its family."""

from __future__ import annotations

from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.causal_lm import CausalLM
from fsdp_lab.models.architectures.masked_lm import MaskedLM
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.settings.models.masked import MASKED


def objective(hf: PreTrainedModel) -> Objective:
    """``hf`` with the loss of its family: of masked tokens and pairs for BERT, else of the next token."""
    return MaskedLM(hf) if hf.config.model_type in MASKED else CausalLM(hf)
