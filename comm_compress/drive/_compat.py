"""What differs between torch 2.11 and 2.13 in its collectives."""

from __future__ import annotations

import torch.distributed as dist

# torch 2.13 renamed the flat collectives and warns about the old names
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
