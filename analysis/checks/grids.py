"""Which values arms had to choose among, where those grew beyond an edge by one rule for all."""

from __future__ import annotations

import json
from collections.abc import Iterable

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, Values, mean_loss
from analysis.rows.reading import is_number

_WITH_AN_INSIDE = 3
_BELOW, _ABOVE = -1, 1


def candidates(comparison: Comparison) -> dict[Arm, set[Values]]:
    """The values that each arm tried, but for those beyond the edge of what all tried, where these are no advantage.

    They are none where all arms tried more on a side whose best of the common values was the last one there, and of the
    others, whose best lies inside, none has a better one beyond. It needs three common values of one number.
    """
    tried = {runs.arm: set(runs.trials) for runs in comparison.arms}
    common = set.intersection(*tried.values()) if tried else set()
    if len(common) < _WITH_AN_INSIDE or not _are_of_one_number(set().union(*tried.values())):
        return tried
    best = {runs.arm: _best(runs, common) for runs in comparison.arms}
    of_all = {runs.arm: _best(runs, runs.trials) for runs in comparison.arms}
    for side in (_BELOW, _ABOVE):
        edge = max(common, key=lambda values: side * _number(values))
        beyond = {arm: {v for v in values if side * (_number(v) - _number(edge)) > 0} for arm, values in tried.items()}
        ended_there = {arm for arm, values in best.items() if values == edge}
        gained = {arm for arm, more in beyond.items() if of_all[arm] in more}
        if all(beyond[arm] for arm in ended_there) and gained <= ended_there:
            tried = {arm: values - beyond[arm] for arm, values in tried.items()}
    return tried


def _best(runs: ArmRuns, among: Iterable[Values]) -> Values:
    return min(among, key=lambda values: mean_loss(runs.trials[values].values()))


def _are_of_one_number(tried: Iterable[Values]) -> bool:
    return all(len(values) == 1 and is_number(_number(values)) for values in tried)


def _number(values: Values) -> float:
    return json.loads(values[0][1])  # type: ignore[no-any-return]
