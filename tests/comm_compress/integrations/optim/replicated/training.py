"""Parameters of odd shapes, gradients of every replica, and the same training on virtual and on real ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import comm_compress as cc

# a chunk that no side divides well, a prime number of rows, more than one chunk, a scalar, three dimensions
SHAPES = {"wide": (6, 17), "vector": (67,), "prime": (67, 4), "large": (128, 96), "scalar": (), "cube": (4, 3, 5)}
FRAGMENTS = [["wide", "vector"], ["prime", "large"], ["scalar", "cube"]]
STEPS = 4
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "demo": lambda r: cc.optim.DeMo(r, lr=0.01, weight_decay=0.1, method="dct k=5 values=int8"),
    "demo by another method": lambda r: cc.optim.DeMo(r, lr=0.01, method="topk ratio=0.1 indices=rice"),
    "onebit_adam": lambda r: cc.optim.OneBitAdam(r, lr=0.01, freeze_after=2),
    "dion": lambda r: cc.optim.Dion(r, ("wide", "prime", "large"), lr=0.01),
    "ef21_muon": lambda r: cc.optim.EF21Muon(r, ("wide", "prime"), lr=0.01, weight_decay=0.1, back="signsgd"),
    "ef21_muon, back as it is": lambda r: cc.optim.EF21Muon(r, ("large",), lr=0.01, method="int4"),
    "zero_one_adam": lambda r: cc.optim.ZeroOneAdam(r, lr=0.01, weight_decay=0.1, freeze_after=3, variance_scaler=1),
    "zero_one_adam, gradients": lambda r: cc.optim.ZeroOneAdam(
        r, lr=0.01, weight_decay=0.1, freeze_after=3, variance_scaler=1, until_freeze="gradients"
    ),
}
# a step exactly, one in signs, one of each replica alone, one in signs: a NaN in the third is nobody else's
LOCAL_STEPS: dict[str, Make] = {
    "zero_one_adam, local steps": lambda r: cc.optim.ZeroOneAdam(
        r, lr=0.01, weight_decay=0.1, freeze_after=1, local_scaler=1, max_local_steps=2
    )
}


def model() -> nn.Module:
    generator, made = torch.Generator().manual_seed(0), nn.Module()
    for name, shape in SHAPES.items():
        made.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
    return made


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    """Neighbours that move alike, and some noise; scales far apart between parameters."""
    generator, found = torch.Generator().manual_seed(100 * step + rank), {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        noise = torch.randn(shape, generator=generator)
        found[name] = (noise.cumsum(-1) if shape else noise) * 10.0 ** (-i)
    return found


def give(module: nn.Module, rank: int, step: int) -> None:
    for name, gradient in gradients(rank, step).items():
        module.get_parameter(name).grad = gradient


def rows_by_hand(values: Mapping[str, np.ndarray], world: int) -> np.ndarray:
    """Row d: the d-th part of every parameter's first dimension, filled up with zeros."""
    rows = []
    for name, shape in SHAPES.items():
        each = math.ceil((*shape, 1)[0] / world)
        padded = np.zeros((each * world, math.prod(shape[1:])))
        padded[: (*shape, 1)[0]] = values[name].reshape((*shape, 1)[0], -1)
        rows.append(padded.reshape(world, -1))
    return np.concatenate(rows, 1)


def parameters_by_hand(rows: np.ndarray) -> dict[str, np.ndarray]:
    """What `rows_by_hand` laid out."""
    found, start = {}, 0
    for name, shape in SHAPES.items():
        size = math.ceil((*shape, 1)[0] / len(rows)) * math.prod(shape[1:])
        found[name] = rows[:, start : start + size].reshape(-1)[: math.prod(shape)].reshape(shape)
        start += size
    return found


def signs_by_hand(x: np.ndarray) -> np.ndarray:
    """Signs with the mean magnitude of every 1,024 neighbours."""
    out = np.empty_like(x)
    for start in range(0, x.size, 1024):
        group = x[start : start + 1024]
        out[start : start + 1024] = np.where(group >= 0, 1, -1) * np.abs(group).mean()
    return out


class TwoWayByHand:
    """A mean in signs, there and back, with what each way lost fed back."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.width = sum(math.ceil((*s, 1)[0] / world) * math.prod(s[1:]) for s in SHAPES.values())
        self._worker_errors = np.zeros((world, world, self.width))
        self._server_errors = np.zeros((world, self.width))

    def mean(self, of_each: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The mean of what every replica has."""
        sent = []
        for rank, values in enumerate(of_each):
            target = rows_by_hand(values, self.world) + self._worker_errors[rank]
            sent.append(np.stack([signs_by_hand(row) for row in target]))
            self._worker_errors[rank] = target - sent[-1]
        target = np.mean(sent, 0) + self._server_errors
        back = np.stack([signs_by_hand(row) for row in target])
        self._server_errors = target - back
        return parameters_by_hand(back)


class Virtual:
    """A model of ``world`` virtual replicas with the optimizer that ``make`` makes of them."""

    def __init__(self, world: int, make: Make, fragments: Any = 1) -> None:
        self.model = model()
        self.replicas = cc.optim.VirtualReplicas(self.model, world, fragments=fragments, seed=5)
        self.optimizer = make(self.replicas)

    def step(self, number: int, spoiled: int | None = None) -> None:
        """``spoiled``: the replica with a NaN among its gradients."""
        for rank in range(self.replicas.world):
            give(self.model, rank, number)
            if rank == spoiled:
                self.model.get_parameter("large").grad[3, 4] = torch.nan  # type: ignore[index]
            self.replicas.collect(rank)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seen(self, rank: int) -> dict[str, Any]:
        """What the real replica ``rank`` must have seen, too."""
        return {
            "weights": digest(self.model.state_dict()),
            "optimizer": digest_of_optimizer(self.optimizer),
            "states": digest(self.replicas.state_dicts()[rank]),
            "sent": self.replicas.ledgers[rank].totals("optimizer").sent_bytes,
        }


def real(make: Make, fragments: Any) -> dict[str, Any]:
    """The same on this rank."""
    mine = model()
    replicas = cc.optim.between(mine, fragments=fragments, seed=5)
    optimizer = make(replicas)
    with cc.audit(replicas) as audit:
        for step in range(STEPS):
            give(mine, dist.get_rank(), step)
            optimizer.step()
            optimizer.zero_grad()
    sent = replicas.ledger.totals("optimizer").sent_bytes
    rounded = 2 * dist.get_world_size() * 2 * STEPS * 3 if "Dion" in type(optimizer).__name__ else 0
    assert abs(audit.sent_bytes - sent) <= rounded, "parts of the network's own all-reduce are rounded up"
    return {
        "weights": digest(mine.state_dict()),
        "optimizer": digest_of_optimizer(optimizer),
        "states": digest(replicas.state_dict()),
        "sent": sent,
    }


def digest(values: Any) -> str:
    """The bits of all tensors and plain values, as one word."""
    found = hashlib.sha256()
    _feed(found, values)
    return found.hexdigest()[:16]


def digest_of_optimizer(optimizer: torch.optim.Optimizer) -> str:
    return digest(optimizer.state_dict()["state"])


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            found.update(str(key).encode())
            _feed(found, value[key])
    elif isinstance(value, Tensor):
        found.update(value.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    else:
        found.update(repr(value).encode())
