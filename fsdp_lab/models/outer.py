"""How replicas that train by themselves synchronise, as the settings say (--outer)."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_utils import PreTrainedModel

import comm_compress as cc
from fsdp_lab.settings.groups import CommConfig


def how_replicas_synchronise(module: nn.Module, config: CommConfig, seed: int) -> dict[str, Any]:
    """The keywords of `cc.outer.attach` and `cc.outer.VirtualReplicas` for ``module``, the method among them."""
    rate, momentum = config.outer_step
    return {
        "method": config.outer_compress,
        "every": config.outer_every,
        "outer_optimizer": cc.outer.nesterov(rate, momentum) if momentum else cc.outer.averaging(rate),
        "all_gather": config.outer_gather,
        "exchange": config.outer_exchange,
        "fragments": config.outer_fragments,
        "overlap": config.outer_overlap,
        "mixing": config.outer_mixing,
        "by_gradient": _by_gradient(module, config.outer_by_gradient),
        "gradient_every": config.outer_gradient_every,
        "gradient_method": config.gradient_method,
        "seed": seed,
        "count_stock": True,
    }


def _by_gradient(module: nn.Module, which: str) -> list[str]:
    """The names of the parameters that a replica does not move by itself: none, embeddings or all."""
    if which == "all":
        return [name for name, p in module.named_parameters() if p.requires_grad]
    return embeddings_of(module) if which == "embeddings" else []


def embeddings_of(module: nn.Module) -> list[str]:
    """The names of the parameters of ``module.hf``'s embedding of tokens and of its head, if they are trained.

    Positions are not among them: every replica sees all of these.
    """
    hf: PreTrainedModel = module.get_submodule("hf")
    tables = (hf.get_input_embeddings(), hf.get_output_embeddings())
    found = {id(p) for one in tables if isinstance(one, nn.Module) for p in one.parameters(recurse=False)}
    return [name for name, p in module.named_parameters() if id(p) in found and p.requires_grad]
