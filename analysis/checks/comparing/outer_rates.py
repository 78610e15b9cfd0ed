"""Had every arm with an outer step the same chance to find its outer rate and momentum?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from analysis.checks.comparing.wording import arms_of, finding, labels
from analysis.checks.finding import Finding
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison

_STEP = ("outer_learning_rate", "outer_momentum")


def unequal_outer_rates(comparison: Comparison) -> Iterator[Finding]:
    """Whoever may choose among more outer rates and momenta wins more often; each of them makes an arm of its own.

    Arms that only tuning rows have are counted, too. A warning, not an error: every judged one is shown with its own
    rate and momentum, and arms without an outer step have nothing of the kind to choose.
    """
    tried = dict[Arm, set[Arm]]()
    for arm in (*(runs.arm for runs in comparison.arms), *comparison.only_tuned):
        if _has_outer_step(arm):
            tried.setdefault(_without_step(arm), set()).add(arm)
    judged = dict[int, list[ArmRuns]]()
    for runs in comparison.arms:
        if _has_outer_step(runs.arm):
            judged.setdefault(len(tried[_without_step(runs.arm)]), []).append(runs)
    if len(judged) > 1:
        counts = "; ".join(f"{count}: {labels(arms)}" for count, arms in sorted(judged.items()))
        what = f"arms had unequal numbers of outer rates and momenta ({counts}); those without an outer step have none"
        advice = "try the same for every arm that has an outer step, and say how many"
        favoured = [runs for count, arms in judged.items() if count > min(judged) for runs in arms]
        yield finding("warning", unequal_outer_rates, comparison, what, advice, "quality", arms_of(favoured))


def _has_outer_step(arm: Arm) -> bool:
    """Where all goes by its gradients, replicas take no step alone, and there is nothing for an outer one to do."""
    return arm.takes_local_steps and json.loads(dict(arm.further).get("outer_by_gradient", '"none"')) != "all"


def _without_step(arm: Arm) -> Arm:
    return replace(arm, further=tuple(pair for pair in arm.further if pair[0] not in _STEP))
