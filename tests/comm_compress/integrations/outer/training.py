"""A small model, its data, and the same training with real replicas and with virtual ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import comm_compress as cc

STEPS = 9
SPARSE = {"method": "topk", "selection": "chunked", "chunk_size": 32, "k": 3, "error_feedback": {"decay": 0.95}}
RUNS: dict[str, dict[str, Any]] = {
    "stock": {"every": 3},
    "identity": {"every": 3, "method": "identity"},
    "diloco": {"every": 4, "method": "identity", "outer_optimizer": cc.outer.nesterov()},
    "int8 both ways": {"every": 2, "method": "int8", "all_gather": "int8", "outer_optimizer": cc.outer.nesterov()},
    "feedback both ways": {"every": 2, "method": "binned feedback", "all_gather": "binned feedback"},
    "sparseloco": {"every": 3, "method": SPARSE, "exchange": "all_gather"},
    "sparse, means gathered": {"every": 3, "method": SPARSE},
    "streaming": {
        "every": 5,
        "method": {"method": "int4", "rounding": "stochastic"},
        "fragments": [["first", "scale"], ["last"], ["frozen", "norm"]],
        "overlap": 3,
        "mixing": 0.5,
        "outer_optimizer": cc.outer.nesterov(),
    },
    "by gradient": {"every": 3, "method": "int8", "all_gather": "int8", "by_gradient": ["first", "scale"]},
    "by gradient, sparse": {"every": 4, "method": SPARSE, "by_gradient": ["last.weight"], "gradient_every": 2},
    "gradients apart": {
        **{"every": 3, "method": "binned", "exchange": "all_gather", "by_gradient": ["first", "scale"]},
        **{"gradient_every": 2, "gradient_method": "topk ratio=0.5"},
    },
    "gradients apart from stock": {"every": 3, "by_gradient": ["first"], "gradient_method": "int8"},
    "powersgd": {"every": 4, "method": {"method": "powersgd", "rank": 1}},
    "powersgd by owners": {
        "every": 2,
        "method": {"method": "powersgd", "rank": 2, "min_compression_rate": 0.1, "values": "int8", "rest": "int4"},
        "by_gradient": ["first"],
    },
}


class Net(nn.Module):
    """Matrices of odd sizes, dropout, a scalar, and a parameter that does not train (but for its bias)."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 17), nn.LayerNorm(17)
        self.frozen, self.last = nn.Linear(17, 17), nn.Linear(17, 5)
        self.frozen.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(torch.tanh(self.norm(self.first(x))))
        return self.last(self.frozen(h)) * self.scale  # type: ignore[no-any-return]


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(4, 6, generator=generator), torch.randint(5, (4,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def farthest(models: Iterable[nn.Module], expected: nn.Module) -> float:
    """The largest distance of an element of any of the models from its like in the one that is expected."""
    return max(
        float((p - q).detach().abs().max())
        for model in models
        for p, q in zip(model.parameters(), expected.parameters(), strict=True)
    )


def backward(model: nn.Module, rank: int, step: int) -> float:
    loss = loss_of(model, rank, step)
    loss.backward()
    return loss.item()


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def inner_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, handle: cc.outer.Handle | None = None
) -> float:
    loss = backward(model, rank, step)
    if handle is not None:
        handle.reduce_gradients()
    update(optimizer)
    return loss


def inner_steps(replicas: cc.outer.VirtualReplicas, step: int) -> list[float]:
    """One inner step of every virtual replica; their losses."""
    losses = []
    for rank in range(replicas.world):
        with replicas.replica(rank) as module:
            losses.append(backward(module, rank, step))
    replicas.reduce_gradients()
    for optimizer in replicas.optimizers:
        update(optimizer)
    return losses


def digest(tensors: Iterable[Tensor]) -> str:
    """The bits of all elements, as one word."""
    found = hashlib.sha256()
    for t in tensors:
        here = t.detach()
        here = here.to_local() if isinstance(here, DTensor) else here
        found.update(here.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def flat(state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A state dict's tensors as lists and its plain values, by path."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = value.tolist() if isinstance(value, Tensor) else value
    return found


def counts(totals: cc.Totals) -> tuple[int, ...]:
    return (totals.calls, totals.elements, totals.raw_bytes, totals.sent_bytes, totals.extra_collectives)


def real(settings: Mapping[str, Any], observe: Callable[[Any, nn.Module], None] | None = None) -> dict[str, Any]:
    """What this rank sees of one run."""
    model = Net()
    handle = cc.outer.attach(model, seed=3, **settings)
    optimizer, losses, applied = adam(p for p in model.parameters() if p.requires_grad), [], []
    torch.manual_seed(50)
    for step in range(STEPS):
        losses.append(inner_step(model, optimizer, dist.get_rank(), step, handle))
        if names := handle.step():
            applied.append((step, names, digest(model.parameters()), digest(handle.outer.values.values())))
    return {
        "losses": losses,
        "applied": applied,
        "weights": digest(model.parameters()),
        "state": flat(handle.state_dict()),
        "counts": counts(handle.ledger.totals("outer")),
        "bits": handle.bits,
    }


def virtual(world: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each virtual replica sees of the same run."""
    model = Net()
    torch.manual_seed(50)
    replicas = cc.outer.VirtualReplicas(model, world, adam, seed=3, **settings)
    losses: list[list[float]] = [[] for _ in range(world)]
    applied: list[list[Any]] = [[] for _ in range(world)]
    for step in range(STEPS):
        for mine, loss in zip(losses, inner_steps(replicas, step), strict=True):
            mine.append(loss)
        if names := replicas.step():
            for rank, module in enumerate(replicas.models):
                outer = digest(replicas.outer.values.values())
                applied[rank].append((step, names, digest(module.parameters()), outer))
    states = replicas.state_dicts()
    return [
        {
            "losses": losses[rank],
            "applied": applied[rank],
            "weights": digest(replicas.models[rank].parameters()),
            "state": flat(states[rank]),
            "counts": counts(replicas.ledgers[rank].totals("outer")),
            "bits": replicas.bits,
        }
        for rank in range(world)
    ]
