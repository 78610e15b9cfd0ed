"""Rows sorted into comparisons: runs that differ in nothing but how they communicate, and in their seed.

Comparison   one setting (model, data, steps, world size, link, ...)
  ArmRuns    one way of communicating, at the best of the values that were tuned
    Row      one seed
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from analysis.rows.comparing.arms import Arm, spelling
from analysis.rows.comparing.canonical import canonical
from analysis.rows.comparing.settings import TUNED, Setting, Settings
from analysis.rows.quality import loss_of
from analysis.rows.reading import Row

Values = tuple[tuple[str, Any], ...]  # tuned settings by name, values as canonical JSON


@dataclass(frozen=True)
class ArmRuns:
    """An arm's runs by seed, failed ones among them, with one choice of the tuned settings' values.

    ``tuned`` are the values chosen; ``trials`` the runs of every candidate by its values, the chosen one among them;
    ``repeated`` further rows of a seed that has its run already (retries, second starts)."""

    arm: Arm
    runs: dict[int, Row]
    tuned: dict[str, Any] = field(default_factory=dict)
    trials: dict[Values, dict[int, Row]] = field(default_factory=dict)
    repeated: list[Row] = field(default_factory=list)

    @property
    def candidates(self) -> int:
        """How many choices of the tuned settings' values were tried."""
        return max(len(self.trials), 1)

    @cached_property
    def ended_well(self) -> list[Row]:
        """Runs that finished with a finite loss, by seed."""
        return [row for _, row in sorted(self.runs.items()) if not failed(row)]

    @cached_property
    def failures(self) -> list[Row]:
        """Runs that failed or whose loss is not finite, by seed."""
        return [row for _, row in sorted(self.runs.items()) if failed(row)]

    @cached_property
    def losses(self) -> dict[int, float | None]:
        """Validation loss by seed, nats a token (of drafts: `quality.loss_of`). None: the run failed or diverged."""
        return {seed: None if failed(row) else loss_of(row) for seed, row in self.runs.items()}


@dataclass(frozen=True)
class Comparison:
    """The arms that were run in one setting. ``baseline`` is one of them; None: the setting has no such arm.

    ``only_tuned`` are further arms, of which there are tuning runs and none that judge."""

    setting: Setting
    arms: list[ArmRuns]
    baseline: ArmRuns | None
    only_tuned: tuple[Arm, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """The runs that are compared, arm by arm."""
        return [row for runs in self.arms for row in runs.runs.values()]

    @property
    def rivals(self) -> list[ArmRuns]:
        """All arms but the baseline."""
        return [runs for runs in self.arms if runs is not self.baseline]

    @cached_property
    def by_arm(self) -> dict[Arm, ArmRuns]:
        """The runs of each arm."""
        return {runs.arm: runs for runs in self.arms}

    @cached_property
    def by_label(self) -> dict[str, list[ArmRuns]]:
        """The runs of the arms by label. Two may have the same: one of rows that are older than a setting."""
        found: dict[str, list[ArmRuns]] = {}
        for runs in self.arms:
            found.setdefault(runs.arm.label, []).append(runs)
        return found

    def arm(self, label: str) -> ArmRuns:
        """The arm of that label. ValueError lists the labels that there are."""
        found = self.by_label.get(label) or self.by_label.get(spelling(label))
        if found:
            return found[0]
        there = ", ".join(repr(runs.arm.label) for runs in self.arms)
        raise ValueError(f"no arm {label!r} in the comparison ({self.setting.label}); it has {there}")


def comparisons(
    rows: Iterable[Row], baseline: str = "none", tuned: Sequence[str] = TUNED, across_training: bool = False
) -> list[Comparison]:
    """The comparisons that the rows make, the one with the most runs first; arms in the order of the rows.

    ``baseline`` is an arm's label, however it is written, or a method's name where only one arm has that method. Of an
    arm's candidates (values of the ``tuned`` settings) the one with the most seeds is chosen, and among equals the one
    with the lowest mean loss, where a failed run counts as infinite. ``across_training``: optimizers, local steps and
    copies of the weights are a part of the arm (`setting_roles.TRAINING`)."""
    grouped: dict[Setting, dict[Arm, dict[Values, list[Row]]]] = {}
    settings = Settings(tuned, across_training)
    for row in rows:
        values = tuple((name, canonical(row["config"].get(name))) for name in tuned)
        arms = grouped.setdefault(settings.of(row), {})
        arms.setdefault(Arm.of(row, across_training), {}).setdefault(values, []).append(row)
    result = []
    for setting, by_arm in grouped.items():
        arms_here = [_arm_runs(arm, trials) for arm, trials in by_arm.items()]
        result.append(Comparison(setting, arms_here, _baseline(arms_here, baseline)))
    return sorted(result, key=lambda c: -sum(len(runs.runs) for runs in c.arms))


def titles(comparisons: Sequence[Comparison]) -> list[str]:
    """A title for every comparison: its setting's label and, where an earlier one has the same label, what differs from
    that."""
    first: dict[str, Setting] = {}
    said = []
    for setting in (comparison.setting for comparison in comparisons):
        twin = first.setdefault(setting.label, setting)
        unlike = ", ".join(setting.differences(twin))
        said.append(f"{setting.label} ({unlike})" if unlike else setting.label)
    return said


def failed(row: Mapping[str, Any]) -> bool:
    """Did the run end badly, or with a loss that is not finite?"""
    return row.get("status") != "ok" or loss_of(row) is None


def mean_loss(rows: Iterable[Row]) -> float:
    """The mean loss; infinite as soon as one of the runs failed."""
    losses = (None if failed(row) else loss_of(row) for row in rows)
    return statistics.fmean(float("inf") if loss is None else loss for loss in losses)


def _arm_runs(arm: Arm, rows_by_values: Mapping[Values, list[Row]]) -> ArmRuns:
    trials = {values: _by_seed(rows) for values, rows in rows_by_values.items()}
    chosen = next(iter(trials))
    if len(trials) > 1:
        chosen = min(trials, key=lambda values: (-len(trials[values]), mean_loss(trials[values].values())))
    runs = trials[chosen]
    repeated = [row for row in rows_by_values[chosen] if row is not runs[row["seed"]]]
    tuned = {name: json.loads(text) for name, text in chosen}
    return ArmRuns(arm, dict(sorted(runs.items())), tuned, trials, repeated)


def _by_seed(rows: Iterable[Row]) -> dict[int, Row]:
    """One run for each seed: the last that ended well, since a failed cell may be tried again; otherwise the last."""
    chosen: dict[int, Row] = {}
    for row in rows:
        if row["seed"] not in chosen or not failed(row) or failed(chosen[row["seed"]]):
            chosen[row["seed"]] = row
    return chosen


def _baseline(arms: Sequence[ArmRuns], name: str) -> ArmRuns | None:
    names = (name, spelling(name))
    labelled = [runs for runs in arms if runs.arm.label in names]
    if labelled:
        return max(labelled, key=lambda runs: len(runs.runs))
    alike = [runs for runs in arms if runs.arm.gradients == name and not runs.arm.training]
    family = [runs for runs in alike if runs.arm.parameters in (name, "none")]
    return family[0] if len(family) == 1 else None
