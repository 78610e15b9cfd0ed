"""How replicas that train by themselves synchronise, as the settings say (--outer)."""

from __future__ import annotations

from typing import Any

import comm_compress as cc
from fsdp_lab.settings.groups import CommConfig


def how_replicas_synchronise(config: CommConfig, seed: int) -> dict[str, Any]:
    """The keywords of `cc.outer.attach` and `cc.outer.VirtualReplicas`, the method among them."""
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
        "seed": seed,
        "count_stock": True,
    }
