"""How an arm's cost grows with the size of the model, the length of the training, or another number.

    python -m analysis.costs.growth FILE... --along num_parameters [--at 125e6 1e9 7e9]
        [--select COLUMN=VALUE ...] [--baseline ARM] [--markdown]

Comparisons that differ in nothing but the number (a setting, or for ``num_parameters`` the model) are put side by side;
virtual ranks train as real ones do, and operators differ by rounding that both halves of a pair share, so that neither
keeps them apart.
For every arm that was run in two of them or more, the table has the change of PPL against the baseline at each value,
with its 95 % interval, and what ten times as much adds to it: the slope of a straight line through the differences of
validation loss, seed by seed, over the logarithm of the number. ``--at`` asks where that line is at other values. What
lies beyond the values that were run is marked as extrapolated: its interval takes the line for true, and nothing here
can show that it goes on straight.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.comparing.groups import labels
from analysis.rows.comparing.settings import Setting
from analysis.rows.reading import counted, is_number
from analysis.statistics.intervals import paired
from analysis.statistics.straight_line import Interval, straight_line
from analysis.tables.changes import change_text
from analysis.tables.formats import Table
from analysis.tables.options import add_selection, rows_of
from analysis.tables.unknown_names import check_baseline, check_settings
from fsdp_lab.settings.flag_values import real
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

SIZE = "num_parameters"
_MODEL = ("model", "model_dir", "vocab_size")
"""Settings in which models of several sizes differ, with the tokenizer that goes with each."""
_COMPUTED_BY = ("virtual_ranks", "operators")
"""Settings of what computes: they change times, and no difference between the arms of one comparison."""


@dataclass(frozen=True)
class Along:
    """Comparisons that differ in one number alone, by that number, smallest first. ``left_out``: how many others have
    a number that one of these has."""

    name: str
    values: Sequence[float]
    compared: Sequence[Comparison]
    left_out: int = 0


def along(compared: Sequence[Comparison], name: str) -> Along:
    """The largest group of comparisons that differ in nothing but ``name``; of several with one number the first.

    ValueError: it is no number of theirs, or there are no two of them with a baseline."""
    groups: dict[Setting, dict[float, list[Comparison]]] = {}
    ignored = {*_COMPUTED_BY, *(_MODEL if name == SIZE else (name,))}
    for comparison in compared:
        value = _value(comparison, name)
        if comparison.baseline is None or value is None:
            continue
        config = tuple(pair for pair in comparison.setting.config if pair[0] not in ignored)
        groups.setdefault(replace(comparison.setting, config=config), {}).setdefault(value, []).append(comparison)
    group = max(groups.values(), key=len, default={})
    if len(group) < 2:
        raise ValueError(
            f"--along {name}: there are no two comparisons with a baseline that differ in nothing but this number "
            "(a column or a setting, above 0)"
        )
    values = sorted(group)
    return Along(name, values, [group[value][0] for value in values], sum(len(same) - 1 for same in group.values()))


def _value(comparison: Comparison, name: str) -> float | None:
    """The number that all finished rows of a comparison have; None: not one number, or not above 0."""
    rows = [row for runs in comparison.arms for row in runs.ended_well]
    found = {row.setting(name) if row.get(name) is None else row[name] for row in rows}
    value = found.pop() if len(found) == 1 else None
    return float(value) if is_number(value) and value > 0 else None


def growth_table(found: Along, at: Sequence[float] = ()) -> Table:
    """A line an arm: its change at each value, what ten times as much adds, and the line at the values ``at``."""
    heads = ["arm", *(f"at {_number(value)}" for value in found.values), "ten times as much adds"]
    heads += [f"line at {_number(value)}{_beyond(found, value)}" for value in at]
    lines = []
    for label in labels(found.compared):
        cells, points, lost = [], list[tuple[float, float]](), False
        for value, comparison in zip(found.values, found.compared, strict=True):
            runs = comparison.by_label.get(label, [])
            if not runs or runs[0] is comparison.baseline or comparison.baseline is None:
                cells.append("-")
                continue
            change = paired(runs[0], comparison.baseline)
            cells.append(change_text(change, digits=2, percent=True))
            lost |= bool(change.lost)
            base = comparison.baseline.losses
            differences = ((loss, base.get(seed)) for seed, loss in runs[0].losses.items())
            points += [(math.log10(value), a - b) for a, b in differences if a is not None and b is not None]
        if sum(cell != "-" for cell in cells) > 1:
            lines.append([label, *cells, *_line(points, at, lost)])
    note = "Straight lines over the logarithm, through every seed's difference; intervals take the line for true."
    if found.left_out:
        note += f" Left out, with a number that is there already: {counted(found.left_out, 'comparison')} (--select)."
    return Table(f"Change of PPL against {found.name}", heads, lines, note)


def _line(points: Sequence[tuple[float, float]], at: Sequence[float], lost: bool) -> list[str]:
    try:
        fitted = straight_line(points)
    except ValueError:  # too few seeds
        return ["-"] * (1 + len(at))
    if lost:  # a line through those that are left would be kinder than the truth
        return ["-"] * (1 + len(at))
    return [_percent(fitted.slope_interval()), *(_percent(fitted.mean_at(math.log10(value))) for value in at)]


def _percent(interval: Interval) -> str:
    value, low, high = (100 * math.expm1(min(nats, 50.0)) for nats in interval)
    return f"{value:+.2f} % [{low:+.2f}, {high:+.2f}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _beyond(found: Along, value: float) -> str:
    return "" if found.values[0] <= value <= found.values[-1] else ", extrapolated"


def main(argv: Sequence[str]) -> int:
    """Read the rows, and print the table; returns the exit code."""
    parser = program("analysis.costs.growth", __doc__)
    add_selection(parser)
    parser.add_argument("--along", required=True, metavar="NAME", help=f"a column or a setting: {SIZE}, max_steps, ...")
    parser.add_argument("--at", type=real(above=0), nargs="+", default=[], metavar="VALUE", help="where else")
    parser.add_argument("--baseline", default="none", metavar="ARM", help="what changes are counted from")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    options = parser.parse_args(argv)
    with user_errors("predict growth"):
        rows = rows_of(options)
        check_settings([options.along], "--along", {name for row in rows for name in (*row, *row["config"])})
        compared = comparisons(rows, options.baseline, tuned=())
        check_baseline(options.baseline, compared)
        table = growth_table(along(compared, options.along), options.at)
    print(table.markdown() if options.markdown else table.text())
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
