"""What `attach` is asked to do with which units, and whether it can be done: looked at before anything is changed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Op
from comm_compress.integrations import allreduce
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.hooks import Comm, CompressedAllReduce, Unit, require_segments
from comm_compress.registry import AnyMethod, chosen

CARRIED = (torch.float32, torch.bfloat16, torch.float16)


class Methods(NamedTuple):
    """The methods of a model's collectives; where one is None, FSDP2's own collective stays."""

    reduce_scatter: Compressor | None
    all_gather: Compressor | None
    all_reduce: Compressor | None
    all_reduce_gather: Compressor | None

    @classmethod
    def built(cls, **methods: AnyMethod | None) -> Methods:
        """Build each from the form in which it was given. ValueErrors begin with the argument's name."""
        return cls(**{name: chosen(name, method) for name, method in methods.items()})

    @property
    def reduce_gradients(self) -> bool:
        """Is a collective that carries gradients compressed?"""
        return self.reduce_scatter is not None or self.all_reduce is not None

    @property
    def inexact_hop(self) -> str | None:
        """The methods that carry gradients between replicas and round them; None when no such method does."""
        hops = (self.all_reduce, self.all_reduce_gather)
        return " and ".join(hop.name for hop in hops if hop is not None and not hop.traits.lossless) or None

    def uncounted(self, units: list[Unit]) -> tuple[Op, ...]:
        """The operations that are left to FSDP2, where nobody counts them."""
        methods: list[tuple[Op, Compressor | None]] = [
            ("reduce_scatter", self.reduce_scatter),
            ("all_gather", self.all_gather),
        ]
        if any(unit.meshes.replicas is not None for unit in units):
            methods.append(("all_reduce", self.all_reduce))
        return tuple(op for op, method in methods if method is None)


def units_of(model: nn.Module) -> list[Unit]:
    """Return every parameter group of every FSDP2 module that has parameters of its own.

    Modules that `fully_shard` was given together, as a list, are one unit: "norm+head".
    """
    units, names = [], dict[tuple[int, ...], list[str]]()
    sharded = [(name or "root", module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    for name, module in sharded:
        groups = _compat.param_groups(module)
        names.setdefault(tuple(map(id, groups)), []).append(name)
        for group in groups:
            _compat.find_parameters(group)
    of_parameters = {id(p): name for name, p in model.named_parameters()}
    for name, module in sharded:
        groups = _compat.param_groups(module)
        together = names[tuple(map(id, groups))]
        for i, group in enumerate(groups if name == together[0] else []):
            full_name = "+".join(together) + (f"[{i}]" if len(groups) > 1 else "")
            meshes = _compat.meshes(group)
            if meshes is None:
                raise ValueError(f"unit {full_name!r} is replicated, not sharded: use comm_compress.ddp")
            units.append(Unit(full_name, group, _compat.parameters(of_parameters, group), meshes))
    if not units:
        raise ValueError("attach: the model has no FSDP2 unit with parameters; call fully_shard on it first")
    return units


def check(units: list[Unit], methods: Methods) -> None:
    """ValueError when a method cannot do what is asked of it, or a unit's traffic would not all be counted."""
    for method in methods:
        if method is not None:
            method.check_names([name for unit in units for name, _ in unit.parameters])
    for unit in units:
        _check_free(unit)
        _check_methods(unit, methods)
        _check_dtypes(unit, methods)
        _check_replicas(unit, methods)


def _check_free(unit: Unit) -> None:
    group = unit.group
    if any(
        isinstance(comm, Comm | CompressedAllReduce)
        for comm in (group._reduce_scatter_comm, group._all_gather_comm, group._all_reduce_hook)
    ):
        raise ValueError(f"unit {unit.name!r} already has compressed collectives; call detach() on the first handle")


def _check_methods(unit: Unit, methods: Methods) -> None:
    allreduce.check_gather("all_gather", methods.all_gather)
    for compressor in (methods.reduce_scatter, methods.all_gather):
        if compressor is not None:
            allreduce.check_ranks(compressor, unit.meshes.shard.size())
    if methods.reduce_scatter is not None:
        if not methods.reduce_scatter.traits.for_gradients:
            raise ValueError(f"reduce_scatter: {methods.reduce_scatter.name} is for parameters (all_gather) only")
        if any(p.sharded_param.requires_grad for _, p in unit.parameters):
            require_segments(unit.apart(methods.reduce_scatter), unit.state("reduce_scatter", 0))


def _check_dtypes(unit: Unit, methods: Methods) -> None:
    reduced, gathered = _compat.reduced_dtypes(unit.group), _compat.gathered_dtypes(unit.group)
    for op, compressor, dtypes in (
        ("reduce_scatter", methods.reduce_scatter, reduced),
        ("all_gather", methods.all_gather, gathered),
    ):
        if compressor is not None and (others := dtypes - set(CARRIED)):
            raise ValueError(
                f"{op}: unit {unit.name!r} moves {', '.join(sorted(map(str, others)))}, and methods carry float32, "
                "bfloat16 and float16: set MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)"
            )
    if methods.all_gather is not None and len(gathered) > 1:
        raise ValueError(
            f"unit {unit.name!r} has parameters of several dtypes ({', '.join(sorted(map(str, gathered)))}), which "
            "FSDP2 gathers as bytes that no codec can carry: set MixedPrecisionPolicy(param_dtype=...), put them into "
            "separate units, or attach without all_gather"
        )


def _check_replicas(unit: Unit, methods: Methods) -> None:
    replicas = unit.meshes.replicas
    if replicas is None:
        if methods.all_reduce is not None:
            raise ValueError(f"all_reduce: unit {unit.name!r} is sharded over a 1-D mesh, which has no replicas")
    elif methods.all_reduce is not None:
        allreduce.check("all_reduce", methods.all_reduce, methods.all_reduce_gather, replicas.size())
        if unit.group._all_reduce_hook is not None:
            raise ValueError(f"unit {unit.name!r} already has an all-reduce hook, which all_reduce would replace")
    elif methods.reduce_scatter is not None:
        raise ValueError(
            f"unit {unit.name!r} is sharded over a 2-D mesh (HSDP): without all_reduce, its traffic between replicas, "
            'usually the slower links, would go uncompressed and uncounted; pass all_reduce="identity" '
            "to have it exact and counted"
        )
    if methods.all_reduce_gather is not None and methods.all_reduce is None:
        raise ValueError("all_reduce_gather is the second half of all_reduce, which is not given")


def frozen_advice(units: list[Unit]) -> str:
    """Say what to do about parameters that are gathered at every use and never change; empty when they are few."""
    elements = still = size = 0
    for unit in units:
        for _, p in unit.parameters if unit.meshes.shard.size() > 1 else ():
            elements += p._orig_size.numel()
            if not p.sharded_param.requires_grad:
                still += p._orig_size.numel()
                size += p._orig_size.numel() * _compat.gathered_dtype(unit.group, p).itemsize
    if 2 * still <= elements:
        return ""
    return (
        f"comm_compress: {100 * still / elements:.0f} % of the sharded parameters are frozen, and FSDP2 gathers them "
        "at every use; attach(..., keep_frozen=True) sends them once, for which every rank keeps "
        f"{size / 1e6:.1f} MB"
    )
