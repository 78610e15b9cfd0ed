"""Compressors as a communication hook of DistributedDataParallel."""

# no postponed annotations: DDP reads the hook's and wants the types themselves

import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from comm_compress.core.compressor import Compressor
from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.allreduce import GradientAllReduce
from comm_compress.integrations.handle import BaseHandle, check, load
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Handle(BaseHandle):
    """What `attach` installed on a DDP model: its ledger (operation "all_reduce", units "bucket0", ...) and its states.

    DDP forms its buckets anew after the first backward (after the second with ``static_graph``, never with
    ``find_unused_parameters``), in the order in which gradients arrived. Until then they go uncompressed (and counted),
    and nothing is remembered of them. From then on a state belongs to a bucket's number and its parameters, names
    and shapes: should a bucket come with others, its state starts afresh and a warning says so. What was loaded
    waits until its bucket comes; what does not fit is dropped with a warning.
    """

    def __init__(
        self, model: DistributedDataParallel, compressor: Compressor, all_gather: Compressor | None, seed: int
    ) -> None:
        super().__init__()
        self.compressor, self.all_gather, self.seed = compressor, all_gather, seed
        self._group: dist.ProcessGroup = model.process_group
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._provisional = 2 if model.static_graph else 0 if model.find_unused_parameters else 1
        self._reductions: dict[int, GradientAllReduce] = {}
        self._loaded: dict[str, Mapping[str, Any]] = {}
        self.steps: OptimizerSteps = OptimizerSteps(model)
        self._step = dict[int, int]()  # in which step a bucket was last reduced
        self._detached = False

    def _states(self) -> dict[str, State]:
        return {f"all_reduce/bucket{i}": reduction.state for i, reduction in self._reductions.items()}

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Put back what `state_dict` gave; each bucket's part when it is next reduced. Raises ValueError for another
        rank's or another world size's, for what is not whole, and for nothing."""
        if not states:
            raise ValueError(
                "no bucket's state to load: nothing had been reduced when it was saved (then go on without), or "
                'torch.distributed.checkpoint filled an empty template: give it {"comm": handle.rank_states()}'
            )
        here = State(rank=self._group.rank(), world=self._group.size())
        for key, saved in states.items():
            check(key, {**saved, "layouts": {"": []}}, here)
        self._reductions.clear()
        self._loaded = dict(states)

    def _state_dict(self) -> dict[str, dict[str, Any]]:
        """Save what was loaded and not used yet beside what the buckets hold."""
        return {**{key: dict(saved) for key, saved in self._loaded.items()}, **super()._state_dict()}

    def compare(self) -> NoReturn:
        """ValueError: only FSDP2's reduce-scatter can be compared with the exact gradient."""
        raise ValueError(
            "compare: the gradients of DDP's hook cannot be compared with the exact ones; comm_compress.attach on the "
            "model under FSDP2 can compare the same method"
        )

    def detach(self) -> None:
        """Give the reduction back to DDP's own all-reduce. DDP cannot lose a hook, so no other one can be attached."""
        self._detached = True
        self.steps.close()
        self._reductions.clear()
        self._loaded.clear()

    def reduce(self, bucket: Any) -> None:
        """Replace one bucket's gradients by their mean over ranks."""
        gradients, parameters = bucket.gradients(), bucket.parameters()
        named = [(self._names[id(p)], g) for p, g in zip(parameters, gradients, strict=True)]
        unit = f"bucket{bucket.index()}"
        goes_on = self._step.get(bucket.index()) == self.steps.number
        self._step[bucket.index()] = self.steps.number
        self._reduction(bucket.index(), named)(named, unit, self._group, self._group.size(), goes_on)
        if bucket.is_last() and self._provisional:
            self._provisional -= 1

    def _reduction(self, index: int, named: list[tuple[str, Tensor]]) -> GradientAllReduce:
        world, unit = self._group.size(), f"bucket{index}"
        layout = segments_of([(name, tuple(g.shape) or (1,)) for name, g in named], world)
        fresh = State(unit, self._group.rank(), world, self.seed, layout, lasting=False)
        if self._provisional:
            return GradientAllReduce(fresh, UNCOMPRESSED, None, self.ledger, self.workspaces, self._scale)
        known = self._reductions.get(index)
        if known is not None and known.state.segments == layout:
            return known
        if known is not None:
            warnings.warn(
                f"comm_compress: DDP's {unit} has other parameters than before: its state is reset", stacklevel=2
            )
        saved = self._loaded.pop(f"all_reduce/{unit}", None)
        if saved is not None:
            try:
                load({unit: saved}, {unit: fresh})
                fresh.segments = layout  # refused where it is of some of the parameters only
            except ValueError as e:
                warnings.warn(f"comm_compress: loaded state dropped: {e}", stacklevel=2)
                fresh = State(unit, self._group.rank(), world, self.seed, layout, lasting=False)
        self._reductions[index] = GradientAllReduce(
            fresh, self.compressor, self.all_gather, self.ledger, self.workspaces, self._scale
        )
        return self._reductions[index]


def attach(
    model: DistributedDataParallel, compressor: AnyMethod, all_gather: AnyMethod | None = None, seed: int = 0
) -> Handle:
    """Compress the gradient all-reduce of ``model``.

    Each bucket is reduce-scattered by ``compressor``, averaged in float32 on each part's owner, and brought back
    to all ranks by ``all_gather`` (exactly by default; any method for parameters, or one with error feedback), so
    that gradients stay equal on all ranks. Both may be given as names, labels, mappings or what `make` built. Buckets
    are laid out like FSDP2 units (`GradientAllReduce`).
    Raises ValueError for gradients that have no such layout (sparse, or not fp32, bf16 or fp16), for methods that
    cannot do it, when ``model`` already has a hook, and when it is not wrapped by DDP.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"ddp.attach: needs a model wrapped by DistributedDataParallel, got a {type(model).__name__}; for one that "
            "fully_shard (FSDP2) was called on use comm_compress.attach, and attach before torch.compile wraps it"
        )
    built, all_gather = chosen("compressor", compressor), chosen("all_gather", all_gather)
    if built is None:
        raise ValueError("compressor: none leaves DDP's own all-reduce as it is: do not attach")
    allreduce.check("compressor", built, all_gather, model.process_group.size())
    for method in (built, all_gather):
        if method is not None:
            method.check_names([name for name, _ in model.module.named_parameters()])
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{name}: sparse gradients have no rows that a method could compress; set sparse=False")
    for name, p in model.module.named_parameters():
        if p.requires_grad and p.dtype not in FLOATS:
            raise ValueError(f"{name}: gradients of {p.dtype} cannot be compressed, only fp32, bf16 and fp16")
    handle = Handle(model, built, all_gather, seed)
    try:
        model.register_comm_hook(handle, _hook)
    except RuntimeError as e:
        raise ValueError(f"attach: DDP takes one communication hook in its life, and this model has one: {e}") from None
    return handle


def _hook(handle: Handle, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    if handle._detached:
        return allreduce_hook(handle._group, bucket)  # type: ignore[no-any-return]
    buffer = bucket.buffer()
    if handle._group.size() > 1:
        handle.reduce(bucket)
    # on CUDA the future notes the stream's position, and DDP's own stream waits for it
    done: torch.futures.Future[Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
    done.set_result(buffer)
    return done
