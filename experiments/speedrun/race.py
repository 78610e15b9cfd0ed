"""The runs of an entry and of the baselines beside it: their settings, their seeds, and how they take turns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.speedrun.task import BF16, ENTRY, NONE, Task, Track, digest_of_settings
from experiments.sweeps.recipe.arms import Arm
from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.recipe import Shaped
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError


@dataclass(frozen=True)
class Race:
    """An entry on a track. ``own``: settings other than the task's. ``plugin``: the sha256 of its file, or none.

    ``runs`` of the entry, with seeds from number ``first`` on (0; a second try of the same entry has later ones)."""

    task: Task
    track: Track
    ranks: int
    runs: int
    own: Mapping[str, Any]
    plugin: str | None = None
    first: int = 0

    @property
    def baseline_runs(self) -> int:
        """How many runs each baseline has."""
        return min(self.runs, 1 if self.task.is_rehearsal else self.track.baseline_runs)

    def settings(self, arm: str) -> dict[str, Any]:
        """Every setting of an arm, by name; seed and places aside."""
        return self.task.settings(self.ranks, self.own if arm == ENTRY else self.task.baselines[arm])

    def digests(self) -> dict[str, str]:
        """Each arm by the digest of its settings. ValueError: the entry is one of the baselines."""
        digests = {digest_of_settings(self.settings(arm)): arm for arm in (NONE, BF16)}
        own = digest_of_settings(self.settings(ENTRY))
        if own in digests:
            raise ValueError(f"these are the settings of the baseline {digests[own]!r}, which runs beside every entry")
        return {**digests, own: ENTRY}

    def seeds(self, arm: str) -> list[int]:
        """The seeds of an arm's runs, in order: the baselines have the entry's first ones."""
        count = self.runs if arm == ENTRY else self.baseline_runs
        return [self._seed(number) for number in range(self.first, self.first + count)]

    def _seed(self, number: int) -> int:
        """Follows from all that was entered: nobody chooses a seed, and settings tuned on some runs have other seeds
        when they are changed."""
        entered = f"{self.task.name} {self.track.name} {self.ranks} {digest_of_settings(self.settings(ENTRY))}"
        drawn = hashlib.sha256(f"{entered} {self.plugin or '-'} {number}".encode()).digest()
        return int.from_bytes(drawn[:4], "big")

    def order(self) -> list[tuple[str, int]]:
        """Arm and seed of every run, in the order of running.

        Each arm's runs are spread evenly over the session, the second half in the reverse order of the first, so that
        a machine that grows slower or faster does so for all arms: entry, none, bf16, entry, entry, bf16, none, entry.
        """
        placed = []
        for rank, arm in enumerate((ENTRY, NONE, BF16)):
            seeds = self.seeds(arm)
            for number, seed in enumerate(seeds):
                place = (number + 0.5) / len(seeds)
                turn = rank if place <= 0.5 else -rank
                placed.append((place, turn, arm, seed))
        return [(arm, seed) for _, _, arm, seed in sorted(placed)]

    def cells(self, link: bool = True) -> list[Cell]:
        """The runs as cells of a sweep, in their order. ``link`` false: without one, for a rehearsal.

        ValueError for settings that do not go together; a plugin's methods must be importable."""
        shaped = Shaped(self.track.rate) if link else None
        return [self._cell(number, *run, shaped) for number, run in enumerate(self.order(), start=1)]

    def _cell(self, number: int, arm: str, seed: int, link: Shaped | None) -> Cell:
        settings = self.settings(arm)
        try:
            config = LANGUAGE_MODEL.complete(TrainConfig.of(**{**settings, "seed": seed}))
        except ConfigError as error:
            raise ValueError(f"{arm}: {'; '.join(error.complaints)}") from None
        assert isinstance(config, TrainConfig)
        assert digest_of_settings(config.resolved()) == digest_of_settings(settings), "nothing is left open"
        varied = {"model": str(settings["model"]), "ranks": str(self.ranks), "link": str(link or "-")}
        return Cell(number, Arm(arm, settings), seed, LANGUAGE_MODEL, config, self.ranks, link, varied)
