"""At which values of what was tuned (the learning rate) each arm is judged: chosen on seeds of their own.

    tuning rows   every arm, every candidate, the tuning seeds: each arm's candidate with the lowest mean loss is chosen
    judged rows   every arm at the candidate chosen for it, on other seeds: what figures and tables are made of

A candidate that is chosen on the seeds that also judge it has their luck in it, and an arm with many candidates more of
it. So rows in which that happened are refused, with what was found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, Values, comparisons, mean_loss
from analysis.rows.comparing.settings import TUNED, Setting
from analysis.rows.reading import Row, is_number

MAY_DIFFER = ("max_steps", "warmup_steps", "eval_steps")
"""Settings in which tuning runs may differ from those that are judged: they may be shorter."""


@dataclass(frozen=True)
class Choice:
    """What was tried for one arm, and what was chosen.

    ``values`` are those chosen; ``trials`` the tuning runs of every candidate, by its values and by seed."""

    arm: Arm
    values: Values
    trials: Mapping[Values, dict[int, Row]]

    @property
    def tuned(self) -> dict[str, Any]:
        """The values that were chosen, by the setting's name."""
        return {name: json.loads(text) for name, text in self.values}

    @property
    def losses(self) -> dict[Values, float]:
        """The mean loss of every candidate over its tuning seeds; infinite as soon as one of its runs failed."""
        return {values: mean_loss(runs.values()) for values, runs in self.trials.items()}


@dataclass(frozen=True)
class Tuning:
    """The choices for all arms of one setting."""

    setting: Setting
    choices: Mapping[Arm, Choice] = field(default_factory=dict)

    @property
    def seeds(self) -> set[int]:
        """All seeds on which something was tried."""
        trials = [runs for choice in self.choices.values() for runs in choice.trials.values()]
        return {seed for runs in trials for seed in runs}


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows by the time at which they were written: what is made of them does not depend on their order in files."""
    return sorted(rows, key=lambda row: (str(row["time_utc"]), str(row["run_name"])))


def tuning(rows: Iterable[Row], tuned: Sequence[str] = TUNED) -> Tuning:
    """The choice for every arm that the tuning rows have. ValueError when they are not of one setting."""
    compared = one_setting(comparisons(in_order(rows), tuned=tuned, across_training=True), "the tuning rows")
    return Tuning(compared.setting, {runs.arm: _choice(runs) for runs in compared.arms})


def _choice(runs: ArmRuns) -> Choice:
    """The candidate with the lowest mean loss among those with most seeds; of equal ones the smallest value."""
    most = max(len(trial) for trial in runs.trials.values())
    tried = [values for values, trial in runs.trials.items() if len(trial) == most]
    chosen = min(tried, key=lambda values: (mean_loss(runs.trials[values].values()), _size(values)))
    return Choice(runs.arm, chosen, runs.trials)


def _size(values: Values) -> list[tuple[float, str]]:
    """By which candidates are ordered: numbers by their size, others as text."""
    decoded = [(json.loads(text), text) for _, text in values]
    return [(value if is_number(value) else math.inf, text) for value, text in decoded]


def judged(
    rows: Iterable[Row], chosen: Tuning | None = None, baseline: str = "none", tuned: Sequence[str] = TUNED
) -> Comparison:
    """The comparison of all arms, across optimizers and local steps, each at the values chosen for it.

    ``chosen`` None: nothing was tuned. An arm's ``trials`` are its tuning runs, so that checks of fairness see how many
    candidates it had. ValueError when rows are of several settings, when there is no baseline, and for every arm whose
    candidate was chosen on seeds that judge it."""
    compared = one_setting(comparisons(in_order(rows), baseline, tuned, across_training=True), "the judged rows")
    if compared.baseline is None:
        where = compared.setting.label
        raise ValueError(f"the judged rows have no arm {baseline!r} ({where}), so nothing to compare with; run it")
    if complaints := [*_of_setting(compared, chosen), *_of_selection(compared, chosen)]:
        raise ValueError("\n".join(complaints))
    arms = [_with_trials(runs, chosen) for runs in compared.arms]
    place = next(number for number, runs in enumerate(compared.arms) if runs is compared.baseline)
    only_tuned = () if chosen is None else tuple(arm for arm in chosen.choices if arm not in compared.by_arm)
    return replace(compared, arms=arms, baseline=arms[place], only_tuned=only_tuned)


def one_setting(compared: Sequence[Comparison], which: str) -> Comparison:
    """The one comparison that the rows make. ValueError: there is none, or they make several, with what differs."""
    if not compared:
        raise ValueError(f"{which}: none is left to compare")
    first, *others = compared
    if others:
        unlike = "; ".join(others[0].setting.differences(first.setting)[:4])
        raise ValueError(
            f"{which} are of {len(compared)} settings, which cannot be compared ({unlike}); choose one with --select"
        )
    return first


def _with_trials(runs: ArmRuns, chosen: Tuning | None) -> ArmRuns:
    choice = None if chosen is None else chosen.choices.get(runs.arm)
    return runs if choice is None else replace(runs, trials=dict(choice.trials))


def _of_setting(compared: Comparison, chosen: Tuning | None) -> list[str]:
    """A complaint when the tuning runs differ from the judged ones in more than their length."""
    if chosen is None:
        return []
    unlike = compared.setting.differences(chosen.setting)
    wrong = [text for text in unlike if text.split()[0] not in MAY_DIFFER]
    return [f"the tuning rows are of another setting than the judged ones: {'; '.join(wrong[:4])}"] if wrong else []


def _of_selection(compared: Comparison, chosen: Tuning | None) -> list[str]:
    """A complaint for each arm whose candidate was, or may have been, chosen on the seeds that judge it."""
    complaints = []
    for runs in compared.arms:
        tried = list(runs.trials)
        choice = None if chosen is None else chosen.choices.get(runs.arm)
        if choice is None and len(tried) > 1:
            complaints.append(
                f"{runs.arm.label}: several candidates ran with the seeds that judge it ({_said(tried)}), and no "
                "tuning rows choose among them: that would be selection; give --tuning FILE, with rows of other seeds"
            )
        elif choice is not None and (others := [values for values in tried if values != choice.values]):
            complaints.append(
                f"{runs.arm.label}: judged at {_said(others)}, where the tuning rows choose {_said([choice.values])}; "
                "run it at that, or leave these rows out (--select)"
            )
    both = set() if chosen is None else chosen.seeds & {seed for runs in compared.arms for seed in runs.runs}
    if both:
        seeds = ", ".join(map(str, sorted(both)))
        complaints.append(
            f"seed {seeds} is in the tuning rows and in the judged ones: what was chosen on a seed is not judged by it"
        )
    return complaints


def _said(candidates: Iterable[Values]) -> str:
    return "; ".join(", ".join(f"{name} {text}" for name, text in values) for values in candidates)
