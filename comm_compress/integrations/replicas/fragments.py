"""Parts of a model that replicas exchange one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Named = nn.Module | Iterable[tuple[str, nn.Parameter]]


class Fragment(NamedTuple):
    """Trainable parameters by name. What is exchanged of one that is a DTensor is this rank's part of it."""

    name: str
    parameters: dict[str, nn.Parameter]

    def local(self) -> dict[str, Tensor]:
        """The memory that this rank trains, by name; writing to it changes the model."""
        return {name: local(p) for name, p in self.parameters.items()}


def local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter, detached, in the parameter's own memory."""
    mine = parameter.detach()
    return mine.to_local() if isinstance(mine, DTensor) else mine


def held(parameter: Tensor) -> str:
    """Say which part of a parameter this rank has: "shard=1", or "" where it has all of it."""
    if not isinstance(parameter, DTensor):
        return ""
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or [f"dim{i}" for i in range(mesh.ndim)]
    return ",".join(
        f"{name}={mesh.get_local_rank(i)}"
        for i, (name, placement) in enumerate(zip(names, parameter.placements, strict=True))
        if not placement.is_replicate()
    )


def trainable(model: Named) -> dict[str, nn.Parameter]:
    """Return the parameters to synchronise. ValueError when there are none, or one is of a dtype without a method."""
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    parameters = {name: p for name, p in named if p.requires_grad}
    if not parameters:
        raise ValueError("replicas: no parameter requires a gradient, so there is nothing to synchronise")
    for name, p in parameters.items():
        if p.dtype not in FLOATS:
            raise ValueError(f"{name}: parameters of {p.dtype} cannot be synchronised, only fp32, bf16 and fp16")
    if len(devices := {p.device.type for p in parameters.values()}) > 1:
        raise ValueError(f"replicas: parameters lie on several kinds of devices: {', '.join(sorted(devices))}")
    return parameters


def set_apart(
    parameters: Mapping[str, nn.Parameter], names: Sequence[str]
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the other parameters, and those that ``names`` name: parameters, or modules with all that is below them.

    ValueError where a name fits nothing.
    """
    chosen: dict[str, nn.Parameter] = {}
    for prefix in names:
        chosen |= {name: parameters[name] for name in _inside(parameters, prefix, "by_gradient")}
    others = {name: p for name, p in parameters.items() if name not in chosen}
    return others, {name: p for name, p in parameters.items() if name in chosen}  # in the model's order


def divide(parameters: Mapping[str, nn.Parameter], fragments: int | Sequence[Sequence[str]]) -> list[Fragment]:
    """Divide ``parameters`` into fragments.

    A number: so many runs of neighbours, of about equal size. Otherwise each fragment names modules or parameters:
    "blocks.0" means all parameters below it. ValueError where a parameter is in none or several of them, or a name fits
    nothing. No parameters make no fragment.
    """
    if not parameters and fragments == 1:
        return []
    groups = _neighbours(parameters, fragments) if isinstance(fragments, int) else _chosen(parameters, fragments)
    return [
        Fragment(f"fragment{number}", {name: parameters[name] for name in group}) for number, group in enumerate(groups)
    ]


def _neighbours(parameters: Mapping[str, nn.Parameter], number: int) -> list[list[str]]:
    if not 1 <= number <= len(parameters):
        raise ValueError(f"fragments = {number}: must be from 1 to the number of parameters, {len(parameters)}")
    groups: list[list[str]] = [[]]
    left, total = len(parameters), sum(p.numel() for p in parameters.values())
    done = 0
    for name, p in parameters.items():
        open_groups = number - len(groups)
        full = (done + p.numel() / 2) * number >= total * len(groups)
        if groups[-1] and open_groups and (full or left <= open_groups):
            groups.append([])
        groups[-1].append(name)
        done, left = done + p.numel(), left - 1
    return groups


def _inside(parameters: Mapping[str, nn.Parameter], prefix: str, argument: str) -> list[str]:
    """Return the names of the parameter or of the module ``prefix``. ValueError, about ``argument``: there are none."""
    inside = [name for name in parameters if name == prefix or name.startswith(f"{prefix}.")]
    if not inside:
        raise ValueError(f"{argument}: {prefix!r} names no trainable parameter and no module with any")
    return inside


def _chosen(parameters: Mapping[str, nn.Parameter], fragments: Sequence[Sequence[str]]) -> list[list[str]]:
    if not fragments or any(isinstance(group, str) for group in fragments):
        raise ValueError(f"fragments = {fragments!r}: must be a number, or a list of lists of names")
    owner: dict[str, int] = {}
    for number, group in enumerate(fragments):
        for prefix in group:
            for name in _inside(parameters, prefix, f"fragments[{number}]"):
                if owner.setdefault(name, number) != number:
                    raise ValueError(f"{name} is in fragments {owner[name]} and {number}: it must be in one")
    if missing := [name for name in parameters if name not in owner]:
        raise ValueError(f"fragments: {', '.join(missing[:5])} in none of them: every parameter must be in one")
    groups = [[name for name in parameters if owner[name] == number] for number in range(len(fragments))]
    if empty := [number for number, group in enumerate(groups) if not group]:
        raise ValueError(f"fragments[{empty[0]}]: empty")
    return groups
