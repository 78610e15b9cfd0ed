"""Floating-point operations that a model's mathematics needs: from them follows its FLOPs utilisation (MFU).

Per token, forward and backward (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B):

    6 N + 12 L H Q T

N: parameters that multiply, that is all but embeddings looked up; a head counts, also one that shares the embedding's
weights. L layers, H heads of Q dimensions, T tokens in a sequence. Attention counts in full, as in the paper, although
causal kernels skip half of it; recomputed activations do not count: they are our choice, not the model's. Of a masked
model the parameters that see some positions only (head: masked tokens; pooler, pairs: the first) count by their share.
A frozen parameter counts 4 times, not 6: the gradients of activations pass it, and it has none of its own.
"""

from __future__ import annotations

from torch import nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.settings.models.masked import MASKED


def flops_per_token(model: PreTrainedModel, max_length: int) -> float:
    """FLOP per token of a training step with sequences of ``max_length`` tokens; a model on the meta device will do."""
    config = model.config
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = 12 * config.num_hidden_layers * heads * head_dim * max_length
    return float(sum(map(_flops, _multiplying(model))) - _spared(model, max_length) + attention)


def _flops(parameter: nn.Parameter) -> int:
    """What a parameter costs for a token that passes it: forward, and backward to its inputs and to itself."""
    return (6 if parameter.requires_grad else 4) * parameter.numel()


def _spared(model: PreTrainedModel, max_length: int) -> float:
    """The cost of parameters times the share of positions that do not pass them: none but in a masked model."""
    if model.config.model_type not in MASKED or not max_length:
        return 0
    head = sum(map(_flops, model.cls.predictions.parameters()))
    once = sum(_flops(p) for m in (model.bert.pooler, model.cls.seq_relationship) for p in m.parameters())
    return float(head * (1 - num_chosen(max_length) / max_length) + once * (1 - 1 / max_length))


def multiplying_parameters(model: PreTrainedModel) -> int:
    """How many parameters the body has without its embeddings, and the head."""
    return sum(p.numel() for p in _multiplying(model))


def _multiplying(model: PreTrainedModel) -> list[nn.Parameter]:
    looked_up = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    head = model.get_output_embeddings().weight
    return [*(p for p in model.parameters() if id(p) not in looked_up and p is not head), head]
