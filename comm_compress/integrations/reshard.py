"""Compressors' states for another number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress.core.segments import Segment, flatten, segments_of, unflatten
from comm_compress.wrappers.error_feedback import INT8, from_int8, to_int8

Saved = Mapping[str, Any]


def reshard(
    states: Sequence[Mapping[str, Saved]], new_world: int, keep: Literal["sum", "mean"] = "sum"
) -> list[dict[str, dict[str, Any]]]:
    """Return what ``new_world`` ranks load instead of ``states``: every old rank's `Handle.state_dict`, in any order.

    Tensor by tensor:

    - what accumulates gradients, a float ``[W, n]`` tensor in the layout of the unit's rows (error feedback's residual,
      a momentum), is summed over the old ranks per coordinate; each new rank gets 1 / new_world of the sum, in the
      new rows' layout. So the sum over ranks is kept, per coordinate; with ``keep="mean"`` the mean is: the
      right choice when gradients are averaged over ranks (FSDP2's and DDP's default) and what is left over
      should move the parameters as far as it would have;
    - what is the same on all old ranks and has no side that depends on their number (a basis, a threshold, the number
      of the collective) is kept;
    - the parameters that an all-gather remembers (``[W, n]``, the same on all ranks) move to the new layout;
    - what means left out on their way back, ``[1, n]`` on the rank that sums a row, moves with its elements;
    - anything else is left out, so that it starts afresh, with a warning that names it.

    Padding that FSDP2 adds to rows is dropped. With as many ranks as before, states come back as they are.
    Raises ValueError when a rank's state is missing, or is of another run.
    """
    if new_world < 1:
        raise ValueError(f"new_world = {new_world}: must be 1 or more")
    if not states or any(s.keys() != states[0].keys() for s in states):
        raise ValueError("reshard: needs the states of all ranks of one run; their units differ")
    new: list[dict[str, dict[str, Any]]] = [{} for _ in range(new_world)]
    lost: list[str] = []
    for key in states[0]:
        entries = sorted((s[key] for s in states), key=lambda entry: int(entry["rank"]))
        _check(key, entries)
        if "layouts" not in entries[0]:
            for rank, mine in enumerate(new):
                mine[key] = {**entries[0], "world": new_world, "rank": rank, **_gradients(entries, rank, new_world)}
            continue
        for rank, mine in enumerate(new):
            if new_world == len(states):
                mine[key] = dict(entries[rank])
            else:
                mine[key] = {"world": new_world, "rank": rank, "layouts": entries[0]["layouts"], "tensors": {}}
        if new_world != len(states):
            for name, tensors in _moved(key, entries, new_world, keep, lost).items():
                for mine, tensor in zip(new, tensors, strict=True):
                    mine[key]["tensors"][name] = tensor
            for mine in new:
                mine[key]["names"] = sorted(mine[key]["tensors"])
    if lost:
        warnings.warn(f"reshard: depends on the number of ranks and starts afresh: {', '.join(lost)}", stacklevel=2)
    return new


def _gradients(entries: Sequence[Saved], rank: int, new_world: int) -> dict[str, Any]:
    """Return what a new rank has of the gradients that replicas with local steps add up: its own, or all ranks' mean,
    as the mean over replicas is taken of them."""
    if "gradients" not in entries[0]:
        return {}
    if new_world == len(entries):
        return {"gradients": entries[rank]["gradients"]}
    sums = [entry["gradients"]["sums"] for entry in entries]
    means = {name: torch.stack([one[name] for one in sums]).mean(0) for name in sums[0]}
    return {"gradients": {**entries[0]["gradients"], "sums": means}}


def _check(key: str, entries: Sequence[Saved]) -> None:
    world = len(entries)
    if any(entry["world"] != world for entry in entries) or [entry["rank"] for entry in entries] != [*range(world)]:
        seen = ", ".join(f"{entry['rank']} of {entry['world']}" for entry in entries)
        raise ValueError(
            f"reshard: {key}: needs each rank's state once, got ranks {seen} in {world} states (states of a 2-D mesh "
            "cannot be moved to another number of ranks: start afresh)"
        )
    if "layouts" not in entries[0]:  # no compressor's state
        return
    if any(entry["layouts"][""] != entries[0]["layouts"][""] for entry in entries):
        raise ValueError(f"reshard: {key}: the ranks' states are of different parameters")
    if any(absent := {*entry.get("names", ())} - entry["tensors"].keys() for entry in entries):
        raise ValueError(f"reshard: {key}: a rank's state is not whole, it lacks {', '.join(sorted(absent))}")


def _moved(key: str, entries: Sequence[Saved], new_world: int, keep: str, lost: list[str]) -> dict[str, list[Tensor]]:
    """Return each surviving tensor's new versions, one for every new rank."""
    moved: dict[str, list[Tensor]] = {}
    old_world = len(entries)
    for name in entries[0]["tensors"]:
        if name.endswith("residual_scales"):
            continue  # goes with its residual
        prefix = name[: name.rfind("/") + 1]
        shapes = [(n, tuple(shape)) for n, shape in entries[0]["layouts"].get(prefix, [])]
        old = segments_of(shapes, old_world)
        versions = [_dense(entry["tensors"], name) for entry in entries if name in entry["tensors"]]
        in_rows = bool(old) and all(v.shape == (old_world, old[-1].stop) for v in versions)
        alike = len(versions) == old_world and all(torch.equal(v, versions[0]) for v in versions)
        gathers = key.startswith(("all_gather/", "optimizer/")) or "gather" in prefix.split("/")
        if in_rows and not gathers and versions[0].is_floating_point():
            rows = _relaid(torch.stack([v.double() for v in versions]).sum(0), old, new_world)
            share = (rows / (new_world if keep == "sum" else old_world)).to(versions[0].dtype)
            for n, tensor in _stored(entries[0]["tensors"], name, share).items():
                moved[n] = [tensor.clone() for _ in range(new_world)]
        elif name.endswith("gather/residual") and old and all(v.shape == (1, old[-1].stop) for v in versions):
            rows = _relaid(torch.cat(versions), old, new_world)
            for owner in range(new_world):
                for n, tensor in _stored(entries[0]["tensors"], name, rows[owner : owner + 1]).items():
                    moved.setdefault(n, []).append(tensor.clone())
        elif in_rows and gathers and alike:
            moved[name] = [_relaid(versions[0], old, new_world) for _ in range(new_world)]
        elif alike and not _of_this_size(versions[0], old_world, old):
            moved[name] = [versions[0].clone() for _ in range(new_world)]
        else:
            lost.append(f"{key}: {name}")
    return moved


def _of_this_size(tensor: Tensor, world: int, segments: Sequence[Segment]) -> bool:
    return tensor.shape[:1] == (world,) or (bool(segments) and segments[-1].stop in tensor.shape)


def _relaid(rows: Tensor, old: Sequence[Segment], new_world: int) -> Tensor:
    return flatten(unflatten(rows, old), new_world)


def _dense(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the tensor ``name``, or what an int8 residual with its scales stands for."""
    scales = tensors.get(f"{name}_scales")
    codes = tensors[name]
    return codes if scales is None else from_int8(codes, scales, torch.empty_like(codes, dtype=torch.float32))


def _stored(tensors: Mapping[str, Tensor], name: str, rows: Tensor) -> dict[str, Tensor]:
    """Return ``rows`` in the form that the old state had: the inverse of `_dense`."""
    if f"{name}_scales" not in tensors:
        return {name: rows}
    codes = torch.empty_like(rows, dtype=torch.int8)
    scales = rows.new_empty(rows.shape[0], INT8.blocks(rows.shape[1]))
    to_int8(rows, codes, scales)
    return {name: codes, f"{name}_scales": scales}
