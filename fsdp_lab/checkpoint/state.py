"""The state of a training as a checkpoint holds it, taken from the objects of this process and given back to them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_map_only

import comm_compress as cc
from fsdp_lab.checkpoint.files.reading import Checkpoint, Reader
from fsdp_lab.checkpoint.files.tensor_parts import placed
from fsdp_lab.checkpoint.protocols import SavedRun, Stateful
from fsdp_lab.checkpoint.rng import rng_state, set_rng_state
from fsdp_lab.models import Sharded
from fsdp_lab.models.model import Placed
from fsdp_lab.training.communication import Communication


class TrainingState:
    """Model, optimizer, schedule, data, compressors and random generators; ``also``: what else there is to go on from.

    ``data`` and ``also`` are states of each process.
    """

    def __init__(
        self,
        run: SavedRun,
        model: Sharded[Any],
        optimizer: Optimizer,
        schedule: LambdaLR,
        data: Stateful,
        comm: Communication,
        also: Stateful | None,
    ) -> None:
        self._run, self._ranks, self._model, self._optimizer = run, run.ranks, model, optimizer
        self._schedule, self._data, self._comm, self._also = schedule, data, comm, also

    def tensors(self) -> dict[str, Tensor]:
        """Model and optimizer; these very tensors, not copies. The optimizer has none before its first update."""
        tensors = self._model_tensors()
        if self._optimizer.state:  # asked for it, torch would make one, which an update that is still to come would see
            tensors |= self._optimizer_tensors()
        return tensors

    def own(self) -> dict[str, Any]:
        """What this process has beside its shards of the tensors, as plain values and tensors."""
        counts = self._comm.state_dict()
        return {
            "compressors": counts.pop("compressors"),
            "counts": counts,
            "data": json.dumps(self._data.state_dict()),  # its numbers may be longer than a tensor file takes
            "also": json.dumps(self._also.state_dict() if self._also else {}),
            "has_optimizer": bool(self._optimizer.state),
            "schedule": self._schedule.last_epoch,
            "rng": rng_state(self._ranks.device),
        }

    def load(self, reader: Reader, checkpoint: Checkpoint) -> dict[str, Any]:
        """Go on from ``checkpoint``; returns what the process whose place this one takes had of its own; collective."""
        own = reader.load_own(checkpoint)
        alike = len(own) == 1 and checkpoint.manifest.world == self._ranks.world
        mine = own[0] if alike else own[self._ranks.rank % len(own)]
        tensors = self._model_tensors()
        if mine["has_optimizer"]:
            tensors |= self._optimizer_tensors()
        self._or_anew("data", lambda: self._data.load_state_dict(json.loads(mine["data"])))
        if self._also is not None:
            self._also.load_state_dict(json.loads(mine["also"]))
        if self._comm.outer is None:
            self._or_anew("compressors", lambda: self._load_compressors(mine, own, alike))
        else:  # without what they agreed on, replicas that differ could not go on
            self._load_compressors(mine, own, alike)
        self._or_anew("counts", lambda: self._comm.load_counts(mine["counts"], checkpoint.manifest.step))
        reader.load_tensors(checkpoint, placed(tensors, self.pieces()))  # in place: shards and the optimizer's own
        self._set_schedule(mine["schedule"])
        if alike:
            set_rng_state(mine["rng"], self._ranks.device)
        return mine

    def pieces(self) -> dict[str, Placed]:
        """Which of `tensors` are pieces of whole ones."""
        first, pieces = self._model.first_names(), {}
        for name, piece in self._model.pieces().items():
            name = first.get(name, name)
            pieces[self._named(f"model.{name}")] = piece
            moments = (self._named(f"optimizer.state.{name}.{moment}") for moment in ("exp_avg", "exp_avg_sq"))
            pieces |= dict.fromkeys(moments, piece)
        return pieces

    def _named(self, name: str) -> str:
        """The name in a checkpoint: of a replica that trains by itself one of its own, as its weights are."""
        return name if self._model.replica is None else f"replica{self._model.replica}.{name}"

    def _model_tensors(self) -> dict[str, Tensor]:
        first, tensors = self._model.first_names(), get_model_state_dict(self._model.updated)
        return {self._named(f"model.{first.get(name, name)}"): value for name, value in tensors.items()}

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state = get_optimizer_state_dict(self._model.updated, self._optimizer, options=options)
        first, tensors = self._model.first_names(), {}
        for name, value in state.items():
            kind, _, rest = name.partition(".")
            parameter, _, moment = rest.rpartition(".")
            if isinstance(value, Tensor):
                tensors[self._named(f"optimizer.{kind}.{first.get(parameter, parameter)}.{moment}")] = value
        return tensors

    def _or_anew(self, what: str, load: Callable[[], None]) -> None:
        """Load, or say why ``what`` starts afresh where the user allowed changes."""
        try:
            load()
        except ValueError as error:
            if not self._run.config.run.resume_changed:
                raise
            self._run.say(f"{what} start afresh: {error}")

    def _load_compressors(self, mine: dict[str, Any], own: list[dict[str, Any]], alike: bool) -> None:
        states = mine["compressors"] if alike else self._resharded(own)
        device = self._ranks.device
        self._comm.load_compressors([{key: _on(device, entry) for key, entry in of_rank.items()} for of_rank in states])

    def _resharded(self, own: list[dict[str, Any]]) -> list[Any]:
        """The compressors' states of this process, made of those of another number of ranks."""
        ranks = self._ranks
        if ranks.parallel_dims is not None or any(":" in key for process in own for key in process["compressors"][0]):
            raise ValueError("compressors: their states cannot be carried over to ranks that are arranged otherwise")
        every = [state for process in own for state in process["compressors"]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            states = cc.reshard(every, ranks.world, keep="mean")[ranks.rank : ranks.rank + ranks.played]
        for warning in caught:
            self._run.say(f"resume: {warning.message}")
        return states

    def _set_schedule(self, step: int) -> None:
        """The learning rates of this run's own settings after ``step`` steps."""
        schedule = self._schedule
        rates = [base * factor(step) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule.load_state_dict(schedule.state_dict() | {"last_epoch": step, "_last_lr": rates})


def _on(device: torch.device, entry: dict[str, Any]) -> dict[str, Any]:
    """A compressor's saved state with its tensors where they are used."""
    moved: dict[str, Any] = tree_map_only(Tensor, lambda tensor: tensor.to(device), entry)
    return moved
