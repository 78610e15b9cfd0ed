"""What differs between torch 2.11 and 2.13, in one place. Also every private attribute of FSDP2 that we touch."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from comm_compress.segments import Segment, segments_of

# torch 2.13 renamed the flat collectives and warns about the old names
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# 2.13 only: reduce a parameter without a gradient as zeros, so that a unit's gradient keeps its size
UNUSED_AS_ZEROS = "reduce_scatter_unused_params"


def param_groups(module: FSDPModule) -> list[Any]:
    """FSDP2's parameter groups of one module: a list in 2.13, one or None in 2.11."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def segments(model: nn.Module, group: Any, world: int) -> tuple[Segment, ...]:
    """Which parameter of ``model`` lies where in a row of this group; empty when one is not sharded over dim 0."""
    names = {id(p): name for name, p in model.named_parameters()}
    if any(p.fsdp_placement.dim != 0 for p in group.fsdp_params):
        return ()
    shapes = [(names[id(p.sharded_param)], tuple(p._orig_size)) for p in group.fsdp_params]
    return segments_of(shapes, world)
