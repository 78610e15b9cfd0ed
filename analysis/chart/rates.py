"""Which learning rate each arm is judged at, chosen from the rows of a sweep that tried several, as a file for sweeps.

    python -m analysis.chart.rates results/chart_rates.jsonl --out results/chart_rates.json

Of an arm's candidates the one with the lowest mean loss over its tuning seeds is chosen; a run that failed counts as
infinite. A recipe that says ``rates: results/chart_rates.json`` then runs every arm at the rate chosen for it. The file
also has what was tried and how it ended, so that the choice can be checked.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from analysis.statistics.tuning import Choice, Tuning, tuning
from analysis.tables.formats import Table
from analysis.tables.options import add_selection, rows_of
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Choose, write the file, show what was tried."""
    parser = program("analysis.chart.rates", __doc__)
    add_selection(parser)
    parser.add_argument("--out", type=new_file(".json"), metavar="FILE.json", help="default: only shown")
    options = parser.parse_args(argv)
    with user_errors("chart rates"):
        trials = tuning(rows_of(options))
    print(table(trials).text())
    if options.out is not None:
        options.out.write_text(json.dumps(document(trials, options.file), indent=1) + "\n")
        print(f"\n{options.out}: {len(trials.choices)} arms")
    return 0


def document(trials: Tuning, files: Sequence[Path]) -> dict[str, Any]:
    """What a recipe reads, and what was tried. An infinite mean loss (a run failed) is null."""
    return {
        "setting": trials.setting.label,
        "rows": [str(path) for path in files],
        "seeds": sorted(trials.seeds),
        "chosen": {choice.arm.label: choice.tuned for choice in trials.choices.values()},
        "tried": {choice.arm.label: _tried(choice) for choice in trials.choices.values()},
    }


def _tried(choice: Choice) -> list[dict[str, Any]]:
    return [
        {
            **{name: json.loads(text) for name, text in values},
            "mean_loss": None if math.isinf(choice.losses[values]) else choice.losses[values],
            "seeds": sorted(runs),
        }
        for values, runs in choice.trials.items()
    ]


def table(trials: Tuning, called: Mapping[str, str] = MappingProxyType({})) -> Table:
    """Every arm with the mean loss of each of its candidates; the one chosen is marked. ``called``: short names of
    arms, by their labels."""
    lines = []
    for choice in trials.choices.values():
        cells = [
            f"{', '.join(text for _, text in values)}: {loss:.4f}{' *' * (values == choice.values)}"
            for values, loss in choice.losses.items()
        ]
        lines.append([called.get(choice.arm.label, choice.arm.label), "  ".join(cells)])
    seeds = ", ".join(map(str, sorted(trials.seeds)))
    note = f"Seed {seeds}. *: chosen, the lowest mean; inf: a run failed."
    return Table(f"{trials.setting.label}: validation loss by candidate", ("arm", "tried"), lines, note, left=(0, 1))


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
