"""Values that runs should have in common: most columns are asked once for all arms, with the answers of asking each."""

from __future__ import annotations

import random

from analysis.checks.differences import differing, distinct
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.reading import Row
from tests.analysis.planted_rows import SEEDS, died, row

VALUES = (None, 1, 1.0, True, "1", float("nan"), [1, 2], {"a": 1}, '{"a": 1}')


def by_asking_every_arm(comparison: Comparison) -> tuple[list[str], tuple[Arm, ...]]:
    by_arm = {
        runs.arm: distinct(r.get("backend") for r in runs.runs.values() if r["status"] == "ok")
        for runs in comparison.arms
    }
    texts = [text for some in by_arm.values() for text in some]
    values = [text for place, text in enumerate(texts) if text == "NaN" or text not in texts[:place]]
    own = [] if comparison.baseline is None else by_arm[comparison.baseline.arm]
    if len(values) < 2 or len(own) != 1:
        return values, ()
    return values, tuple(arm for arm, some in by_arm.items() if set(some) - set(own))


def test_what_differs_is_what_asking_every_arm_tells() -> None:
    generator = random.Random(8)
    for _ in range(300):
        values = generator.sample(VALUES, generator.choice((1, 1, 2, 3)))
        methods = ("none", "bf16", "int8", "int4")[generator.randint(0, 1) :]
        rows = [
            died(method, seed)
            if generator.random() < 0.1
            else Row({**row(method, seed), "backend": generator.choice(values)})
            for method in methods
            for seed in SEEDS
        ]
        (comparison,) = comparisons(rows)
        assert differing(comparison, lambda one: one.get("backend")) == by_asking_every_arm(comparison)
