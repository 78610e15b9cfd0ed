"""Cells: one training run each, as the product of what a recipe varies, in the order in which they run.

Seed by seed: every arm has its first seed before any has its second, and the baseline comes first. So an interrupted
sweep is a smaller fair one, and the machine's moods are spread over the arms.

The arms of a seed see the same tokens and start from the same weights, because the trainer takes both from the seed
alone: `fsdp_lab.models.build` seeds the initialisation, `fsdp_lab.data.loader` the order of the data, and compressors
draw from a counter of their own (docs/architecture.md). Their world sizes and models are equal within a comparison.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.sweeps.arms import Arm
from experiments.sweeps.recipe import VIRTUAL, Recipe, Shaped
from fsdp_lab.config import TrainConfig
from fsdp_lab.presets import resolve
from fsdp_lab.settings import ConfigError


class Key(NamedTuple):
    """What makes two runs the same cell: the settings' digest, the ranks, and the link (None: this machine's own)."""

    config_hash: str
    world_size: int
    link_rate: float | None
    link_delay_ms: float | None


@dataclass(frozen=True)
class Cell:
    """``config`` is resolved; ``processes`` ranks are started for it; ``varied`` has the recipe's choices, as text."""

    number: int  # from 1, in the order of running
    arm: Arm
    seed: int
    config: TrainConfig
    processes: int
    link: Shaped | None
    varied: Mapping[str, str]

    @property
    def world_size(self) -> int:
        """Ranks, whether real or virtual."""
        return virtual_ranks(self.config) or self.processes

    @property
    def key(self) -> Key:
        """As `key_of` finds it in the cell's rows."""
        rate, delay = self.link.as_in_rows if self.link else (None, None)
        return Key(self.config.digest(), self.world_size, rate, delay)

    @property
    def tokens(self) -> int | None:
        """Trained on over all ranks; None when the length of the data decides."""
        optim, length = self.config.optim, self.config.data.max_length
        if optim.max_steps is None or optim.batch_size is None or length is None:
            return None
        return optim.max_steps * optim.batch_size * optim.gradient_accumulation_steps * length * self.world_size


def key_of(row: Mapping[str, Any]) -> Key:
    """The cell that a results row is of.

    A row from before a setting was added is taken to have the setting's default, which is what its run did.
    """
    digest = row["config_hash"]
    if row["config"].keys() != TrainConfig.specs().keys():
        digest = _digest_with_defaults(digest, json.dumps(row["config"]))
    return Key(digest, row["world_size"], row.get("link_rate_asked"), row.get("link_delay_ms"))


@functools.cache  # results files are read again and again
def _digest_with_defaults(digest: str, config: str) -> str:
    try:
        return TrainConfig.of(**json.loads(config)).digest()
    except ValueError:  # it has settings that there are no more
        return digest


def virtual_ranks(config: TrainConfig) -> int:
    """How many ranks one process stands for; 0 where every rank has its own."""
    return int(config.resolved().get(VIRTUAL, 0))


def cells_of(recipe: Recipe) -> list[Cell]:
    """All cells of a recipe. ValueError for settings that fit no model, or when two cells are the same run."""
    cells = [
        _cell(number, recipe, *choice)
        for number, choice in enumerate(
            itertools.product(recipe.seeds, recipe.models, _worlds(recipe), recipe.links, _tuned(recipe), recipe.arms),
            start=1,
        )
    ]
    known: dict[Key, Cell] = {}
    for cell in cells:
        if cell.key in known:
            twin = known[cell.key]
            raise ValueError(
                f"{recipe.name}: cells {twin.number} and {cell.number} are the same run ({cell.arm.label})"
            )
        known[cell.key] = cell
    return cells


def varying(cells: Sequence[Cell]) -> list[str]:
    """Which of the recipe's choices, arm and seed aside, differ between cells."""
    names = list(cells[0].varied) if cells else []
    return [name for name in names if len({cell.varied[name] for cell in cells}) > 1]


def _worlds(recipe: Recipe) -> Iterator[tuple[int, int]]:
    """(processes, virtual ranks)."""
    yield from ((size, 0) for size in recipe.world_sizes)
    yield from ((1, size) for size in recipe.virtual_world_sizes)


def _tuned(recipe: Recipe) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*recipe.tune.values()):
        yield dict(zip(recipe.tune, values, strict=True))


def _cell(
    number: int,
    recipe: Recipe,
    seed: int,
    model: Mapping[str, Any],
    world: tuple[int, int],
    link: Shaped | None,
    tuned: Mapping[str, Any],
    arm: Arm,
) -> Cell:
    processes, virtual = world
    ranks = {VIRTUAL: virtual} if virtual else {}
    unsaid = {"save_model": False, "tensorboard": False}
    values = {**unsaid, **recipe.common, **model, **ranks, **tuned, **arm.settings, "seed": seed}
    try:
        config = resolve(TrainConfig.of(**values), has_gpu=False)  # the model is named, so a GPU decides nothing
    except ConfigError as error:
        raise ValueError(f"{recipe.name}: {arm.label}: {'; '.join(error.complaints)}") from None
    except ValueError as error:
        raise ValueError(f"{recipe.name}: {error}") from None
    varied = {
        "model": str(model.get("model") or model["model_dir"]),
        "ranks": f"{virtual} virtual" if virtual else str(processes),
        "link": str(link or "-"),
        **{name: str(value) for name, value in tuned.items()},
    }
    return Cell(number, arm, seed, config, processes, link, varied)
