"""Head and loss of a causal model: whole logits, or loss and gradient of a chunk of tokens at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.models.architectures.causal_lm import CausalLM
from fsdp_lab.models.architectures.linear_loss import HeadLoss, LinearCrossEntropy
from fsdp_lab.models.architectures.objective import Objective


def install(module: Objective, implementation: str) -> None:
    """Take the loss by ``implementation``; a masked model's is its own, which is whole logits."""
    if isinstance(module, CausalLM):
        module.loss = head_loss(implementation)


def head_loss(implementation: str) -> HeadLoss:
    """The loss by its name in `fsdp_lab.settings.operators.table`."""
    if implementation == "chunked-128mb":
        return LinearCrossEntropy(IGNORED, 128 << 20)
    return {"whole": whole, "torch": of_torch, "liger": of_liger}.get(implementation) or LinearCrossEntropy(IGNORED)


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """All logits ``[N, V]`` in the dtype of ``hidden``, then in float32, and the gradients of both."""
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=IGNORED, reduction="sum")


def of_torch(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """torch's own, from 2.13 on; in float32 only, since its result has the dtype of ``hidden``."""
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(hidden, weight, targets, ignore_index=IGNORED, reduction="sum", options=options)


def of_liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The fused linear cross-entropy of Liger Kernel (Hsu et al., arXiv 2410.10989), for CUDA."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    loss: Tensor = liger_fused_linear_cross_entropy(hidden, weight, targets, ignore_index=IGNORED, reduction="sum")
    return loss.float()
