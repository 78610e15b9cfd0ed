"""Cells: one training run each, as the product of what a recipe varies, in the order in which they run.

Seed by seed: every arm has its first seed before any has its second, and the baseline comes first. So an interrupted
sweep is a smaller fair one, and the machine's moods are spread over the arms.

The arms of a seed see the same tokens and start from the same weights, because the trainer takes both from the seed
alone: `models.build` seeds the initialisation, `batches.loader` the order of the data (of a draft
`fsdp_lab.eagle.training.model` and `fsdp_lab.eagle.data.chats`), and compressors draw from a counter of their own
(docs/design/architecture.md). Their world sizes and models are equal within a comparison.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.sweeps.recipe.arms import Arm
from experiments.sweeps.recipe.recipe import Recipe, Shaped
from experiments.sweeps.recipe.trainers import VIRTUAL, AnyConfig, Trainer, trainer_of
from fsdp_lab.settings.methods import complaints_about
from fsdp_lab.settings.reading.fields import ConfigError


class Key(NamedTuple):
    """What makes two runs the same cell: the settings' digest, the ranks, and the link (None: this machine's own)."""

    config_hash: str
    world_size: int
    link_rate: float | None
    link_delay_ms: float | None


@dataclass(frozen=True)
class Cell:
    """One training run. ``config`` is resolved; ``processes`` are started for it; ``varied`` has the recipe's choices
    as text."""

    number: int  # from 1, in the order of running
    arm: Arm
    seed: int
    trainer: Trainer
    config: AnyConfig
    processes: int
    link: Shaped | None
    varied: Mapping[str, str]

    @property
    def world_size(self) -> int:
        """The number of ranks, whether real or virtual."""
        return virtual_ranks(self.config) or self.processes

    @property
    def key(self) -> Key:
        """The cell's key, as `key_of` finds it in the cell's rows."""
        rate, delay = self.link.as_in_rows if self.link else (None, None)
        return Key(self.config.digest(), self.world_size, rate, delay)

    @property
    def work(self) -> int | None:
        """The cell's work in the trainer's unit, over all ranks; None when the length of the data decides."""
        return self.trainer.work(self.config, self.world_size)


def key_of(row: Mapping[str, Any]) -> Key:
    """The cell that a results row is of.

    A row from before a setting was added is taken to have the setting's default, which is what its run did.
    """
    digest, trainer = row["config_hash"], trainer_of(row)
    if row["config"].keys() != trainer.config.specs().keys():
        digest = _digest_with_defaults(digest, trainer, json.dumps(row["config"]))
    return Key(digest, row["world_size"], row.get("link_rate_asked"), row.get("link_delay_ms"))


@functools.cache  # results files are read again and again
def _digest_with_defaults(digest: str, trainer: Trainer, config: str) -> str:
    try:
        return trainer.config.of(**json.loads(config)).digest()
    except ValueError:  # it has settings that there are no more
        return digest


def virtual_ranks(config: AnyConfig) -> int:
    """How many ranks one process stands for; 0 where every rank has its own."""
    return int(config.resolved().get(VIRTUAL, 0))


def cells_of(recipe: Recipe) -> list[Cell]:
    """All cells of a recipe. ValueError for settings that fit no model, or when two cells are the same run."""
    worlds, tuned = _worlds(recipe), _tuned(recipe)
    choices = itertools.product(recipe.seeds, recipe.subjects, worlds, recipe.links, tuned, recipe.arms)
    own = sorted({key for subject in recipe.subjects for key in subject} - recipe.trainer.named_by.keys())
    cells = [_cell(number, recipe, own, *choice) for number, choice in enumerate(choices, start=1)]
    known: dict[Key, Cell] = {}
    for cell in cells:
        if cell.key in known:
            twin = known[cell.key]
            raise ValueError(
                f"{recipe.name}: cells {twin.number} and {cell.number} are the same run ({cell.arm.label})"
            )
        known[cell.key] = cell
    _check_optimizers(recipe, cells)
    return cells


def _check_optimizers(recipe: Recipe, cells: Sequence[Cell]) -> None:
    """ValueError for an arm whose methods its cells' optimizer cannot use: an arm alone does not know which that is."""
    checked = {}
    for cell in cells:
        optimizer = cell.config.resolved().get("optimizer")
        if optimizer is not None and (cell.arm.label, optimizer) not in checked:
            checked[cell.arm.label, optimizer] = complaints_about(cell.config.comm, optimizer)
    for (label, _), complaints in checked.items():
        if complaints:
            raise ValueError(f"{recipe.name}: {label}: {'; '.join(complaints)}")


def varying(cells: Sequence[Cell]) -> list[str]:
    """Which of the recipe's choices, arm and seed aside, differ between cells."""
    names = list(cells[0].varied) if cells else []
    return [name for name in names if len({cell.varied[name] for cell in cells}) > 1]


def _worlds(recipe: Recipe) -> Iterator[tuple[int, int]]:
    """Pairs (processes, virtual ranks) that the recipe asks for."""
    yield from ((size, 0) for size in recipe.world_sizes)
    yield from ((1, size) for size in recipe.virtual_world_sizes)


def _tuned(recipe: Recipe) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*recipe.tune.values()):
        yield dict(zip(recipe.tune, values, strict=True))


def _cell(
    number: int,
    recipe: Recipe,
    own: Sequence[str],
    seed: int,
    subject: Mapping[str, Any],
    world: tuple[int, int],
    link: Shaped | None,
    tuned: Mapping[str, Any],
    arm: Arm,
) -> Cell:
    trainer, (processes, virtual) = recipe.trainer, world
    ranks = {VIRTUAL: virtual} if virtual else {}
    unsaid = {"save_model": False, "tensorboard": False}
    tuned = {**tuned, **({} if recipe.rates is None else recipe.rates.of(arm))}
    values = {**unsaid, **recipe.common, **subject, **ranks, **tuned, **arm.settings, **arm.training, "seed": seed}
    try:
        config = trainer.complete(trainer.config.of(**values))
    except ConfigError as error:
        raise ValueError(f"{recipe.name}: {arm.label}: {'; '.join(error.complaints)}") from None
    except ValueError as error:
        raise ValueError(f"{recipe.name}: {error}") from None
    varied = {
        trainer.noun: str(next(subject[name] for name in trainer.named_by if subject.get(name))),
        "ranks": f"{virtual} virtual" if virtual else str(processes),
        "link": str(link or "-"),
        **{name: str(config.resolved()[name]) for name in own},  # what some subjects set for themselves
        **{name: str(value) for name, value in tuned.items()},
    }
    return Cell(number, arm, seed, trainer, config, processes, link, varied)
