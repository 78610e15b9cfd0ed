"""Which rows (slices along the first dimension) of a parameter a rank holds, and the whole of it."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def rows_of_rank(rows: int, rank: int, world: int) -> slice:
    """FSDP2's rule: each rank holds ceil(rows / W) rows of dim 0; the last ranks hold fewer, or none."""
    each = -(-rows // world)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))


def held(parameter: Tensor) -> tuple[Tensor, slice]:
    """The rows of ``parameter`` that this process holds, as a tensor to write to, and their place in the whole."""
    if not isinstance(parameter, DTensor):
        return parameter.detach(), slice(0, parameter.shape[0])
    mesh = parameter.device_mesh
    local: Tensor = parameter.to_local().detach()
    rows = rows_of_rank(parameter.shape[0], mesh.get_local_rank(), mesh.size())
    assert local.shape[0] == rows.stop - rows.start, "FSDP2 shards dim 0 evenly"
    return local, rows


def whole(parameter: Tensor) -> Tensor:
    """All rows of ``parameter``, gathered from every rank where it is sharded; then all ranks call this together."""
    rows = parameter.detach()
    return rows.full_tensor() if isinstance(rows, DTensor) else rows
