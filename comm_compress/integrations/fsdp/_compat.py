"""What differs between torch 2.11 and 2.13, in one place. Also every private attribute of FSDP2 that we touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from comm_compress.core.segments import Segment, segments_of

# 2.13 only, `set_reduce_scatter_unused_params`: reduce a parameter without a gradient as zeros
UNUSED_AS_ZEROS = "reduce_scatter_unused_params"


def param_groups(module: FSDPModule) -> list[Any]:
    """Return FSDP2's parameter groups of one module: a list in 2.13, one or None in 2.11."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def find_parameters(group: Any) -> None:
    """Have this group look for its parameters where they are now.

    A loader (transformers' `from_pretrained` with a `DistributedConfig`) may have put other objects in the places of
    the parameters that `fully_shard` saw. FSDP2 looks for them when its first forward begins; we do the same here.
    """
    if group.is_sharded:
        for p in group.fsdp_params:
            p.reset_sharded_param()


def parameters(names: Mapping[int, str], group: Any) -> list[tuple[str, Any]]:
    """Return (name, FSDP2's record of it) of this group's parameters, in the order of their columns.

    ``names``: of all the model's parameters, by `id`, after every group has found its own (`find_parameters`).
    """
    owners = [(p._module_info.module, p._module_info.param_name) for p in group.fsdp_params]
    return [(names[id(getattr(*owner))], p) for owner, p in zip(owners, group.fsdp_params, strict=True)]


def segments(parameters: list[tuple[str, Any]], world: int) -> tuple[Segment, ...]:
    """Return which parameter lies where in a row of a group; empty when one is not sharded over dim 0."""
    if any(p.fsdp_placement.dim != 0 for _, p in parameters):
        return ()
    return segments_of([(name, tuple(p._orig_size)) for name, p in parameters], world)


def trainable(parameters: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return those that a gradient's rows hold: FSDP2 gathers frozen parameters, but has no gradients of them."""
    return [(name, p) for name, p in parameters if p.sharded_param.requires_grad]


def shards(parameters: list[tuple[str, Any]]) -> dict[str, Tensor]:
    """Return this rank's part of each parameter, with FSDP2's padding, flat, before it is cast to be gathered."""
    return {name: p._sharded_param_data for name, p in parameters}


def held(parameter: Any) -> str:
    """Which part of a parameter this rank's FSDP2 group holds: "tp=1" when tensor or expert parallelism shards it
    over another mesh dimension, "" when the group holds all of it: a plain tensor, or a DTensor replicated there.
    """
    if not parameter.is_dtensor:
        return ""
    # of the parameter that `fully_shard` was given; the attribute's name is 2.13's or 2.11's
    spec = getattr(parameter, "_unsharded_dtensor_spec", None) or parameter._tp_spec
    names = spec.mesh.mesh_dim_names or [f"dim{i}" for i in range(spec.mesh.ndim)]
    return ",".join(
        f"{name}={spec.mesh.get_local_rank(i)}"
        for i, (name, placement) in enumerate(zip(names, spec.placements, strict=True))
        if not placement.is_replicate()
    )


def unreduced(group: Any) -> dict[int, Tensor]:
    """Return the local gradients that ``post_backward`` is about to reduce, by the id of FSDP2's record of each."""
    gradients = {}
    for p in group.fsdp_params:
        if hasattr(p, "_unsharded_param"):
            gradient = p.unsharded_accumulated_grad
            gradient = p.unsharded_param.grad if gradient is None else gradient
            if gradient is None and getattr(group, UNUSED_AS_ZEROS, False) and p.unsharded_param.requires_grad:
                gradient = p.unsharded_param  # stands for the zeros that FSDP2 makes
            if gradient is not None:
                gradients[id(p)] = gradient
    return gradients


def give_zeros(parameter: Any, like: Tensor) -> Tensor:
    """Let FSDP2 find zeros of the dtype of ``like``, another gradient of the group, as the parameter's gradient."""
    parameter.unsharded_accumulated_grad = torch.zeros_like(parameter.unsharded_param, dtype=like.dtype)
    return parameter.unsharded_accumulated_grad  # type: ignore[no-any-return]


def keeps_gradients(group: Any) -> bool:
    """Is there a gradient of an earlier backward that the next one will be added to?"""
    return group._partial_reduce_output is not None or any(p.sharded_param.grad is not None for p in group.fsdp_params)


@contextmanager
def undivided(group: Any) -> Iterator[float]:
    """Inside, FSDP2 leaves the group's sums (float32 or bfloat16) as they are; yields what it would divide them by."""
    factor = group.gradient_divide_factor
    group.gradient_divide_factor = 1.0
    try:
        yield float(group.mesh_info.shard_process_group.size()) if factor is None else factor
    finally:
        group.gradient_divide_factor = factor


def sharded_numel(parameters: list[tuple[str, Any]]) -> int:
    """Return how many elements one rank's row has, padding included."""
    return sum(p.padded_sharded_param_size.numel() for _, p in parameters)


def gathered_dtypes(group: Any) -> set[torch.dtype]:
    """The dtypes that this group's all-gather would have to carry at once; FSDP2 sends bytes when there are several."""
    return {gathered_dtype(group, p) for p in group.fsdp_params}


def gathered_dtype(group: Any, parameter: Any) -> torch.dtype:
    """Return the dtype that one of the group's parameters is gathered in."""
    cast, own = group.mp_policy.param_dtype, parameter.sharded_param
    return cast if cast is not None and own.is_floating_point() else own.dtype  # type: ignore[no-any-return]


def reduced_dtypes(group: Any) -> set[torch.dtype]:
    """Return the dtypes that the gradients of this group are reduced in."""
    policy = group.mp_policy
    cast = policy.reduce_dtype or policy.param_dtype
    return {cast or p.sharded_param.dtype for _, p in trainable([("", p) for p in group.fsdp_params])}


def masters(group: Any) -> list[Tensor]:
    """The float32 shards ``[n_i]`` that FSDP2 rounds to gather them, in order; empty when it rounds none.

    Of a group that is sharded now: not of one that backward gathers from fewer ranks than it was sharded over.
    """
    if not all(p.param_dtype is not None and p.orig_dtype == torch.float32 for p in group.fsdp_params):
        return []
    return [p._sharded_param_data for p in group.fsdp_params]


class Meshes(NamedTuple):
    """The process groups of one parameter group: ranks that share the parameters, and replicas of this shard."""

    info: Any
    shard: dist.ProcessGroup
    replicas: dist.ProcessGroup | None


def meshes(group: Any) -> Meshes | None:
    """Return the process groups of a parameter group; None for one that is replicated only."""
    info = group.mesh_info
    if not hasattr(info, "shard_process_group"):
        return None
    return Meshes(info, info.shard_process_group, info.replicate_process_group if group._is_hsdp else None)


def forward_prefetch(module: FSDPModule) -> list[Any]:
    """The states that a module was told to prefetch in forward (`set_modules_to_forward_prefetch`)."""
    return list(module._get_fsdp_state()._states_to_forward_prefetch)


def backward_prefetch(module: FSDPModule) -> list[Any]:
    """The states that a module was told to prefetch in backward (`set_modules_to_backward_prefetch`)."""
    return list(module._get_fsdp_state()._states_to_backward_prefetch)


def last_forward(outermost: FSDPModule) -> list[FSDPModule]:
    """The modules with parameters of their own whose forward ended in that of ``outermost``, in the order of ending."""
    ended = [group.modules[0] for group in outermost._get_fsdp_state()._comm_ctx.post_forward_order]
    ended = [m for i, m in enumerate(ended) if i == 0 or m is not ended[i - 1]]  # several groups of one module
    earlier = [i for i, m in enumerate(ended[:-1]) if m is outermost]
    return ended[earlier[-1] + 1 :] if earlier else ended


def in_backward() -> bool:
    """Does autograd run a backward pass on this thread right now?"""
    return current_backward() != -1


def current_backward() -> int:
    """The number of the backward that autograd runs right now, the innermost one; -1: none."""
    return int(torch._C._current_graph_task_id())


def when_backward_ends(callback: Callable[[], None]) -> None:
    """Have the backward under way call ``callback`` at its end, after what FSDP2 has it do there."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def only_views_totals(group: Any, reduced: list[tuple[str, Any]]) -> bool:
    """Are the gradients of ``reduced`` going to be views of the reduce-scatter's output, and nothing else done with it?

    So it is, apart from a division, unless FSDP2 sums the output over replicas, casts it, adds it to gradients that are
    kept, moves it to other memory, or calls hooks of the user's.
    """
    if group.device.type != "cpu" or group._is_hsdp or group._all_reduce_hook is not None:
        return False
    if group.mesh_info.shard_process_group.size() == 1:  # FSDP2 reduces nothing then, but divides
        return False
    own = {p.sharded_param.dtype for _, p in reduced}
    if len(own) != 1 or own != reduced_dtypes(group) or not own <= {torch.float32, torch.bfloat16}:
        return False
    return not any(
        p.sharded_param.grad is not None
        or p.offload_to_cpu
        or getattr(p.sharded_param, "_post_accumulate_grad_hooks", None)
        for _, p in reduced
    )


def drop_pending_gather(group: Any) -> None:
    """Wait for an all-gather that nobody has waited for, and forget it; as FSDP2 does when backward ends."""
    if group._all_gather_result is not None:
        work = group._all_gather_result.all_gather_work
        if isinstance(work, dist.Work):
            work.wait()
        group._all_gather_result = None
