"""Which measurement of a method predicts what it costs in quality, before anything is trained with it.

    python -m analysis.costs results/reference/fresh_weights/sweeps.jsonl
        [--screen results/reference/errors/update_error.jsonl] [--select COLUMN=VALUE ...] [--decided 1] [--markdown]

The screen (`experiments.fidelity.update_error`) gives every method the captured gradients or parameters of a few
steps, which takes seconds; the rows are trainings, which take minutes each. For every measure of the screen, over the
arms that compress gradients alone, then over those that compress parameters alone:

- **rank correlation** with the cost: Spearman's, over all arms, with the 95 % interval over methods drawn again (an
  arm's neighbours have the same method, so arms are not drawn one by one);
- **a power law** of the measure, and of each pair of measures: fitted to the logarithm of the cost by least squares,
  over the arms that cost at least ``--decided`` percent (the logarithm of chance says nothing), and asked for the arms
  of each method in turn after it was fitted to all others. Shown: the median and the worst factor that it is off.

Of the best law every arm's cost is shown, measured and predicted; where too few arms cost anything for a law, all
measures. Cost: the mean difference of the validation loss, in nats a token, over the seeds that an arm shares with the
baseline.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.costs.laws import Law, correlation, interval, law
from analysis.costs.screened import KINDS, MEASURES, Kind, Screened, read_screen, screened
from analysis.rows.comparing.comparisons import comparisons
from analysis.statistics.tuning import in_order, one_setting
from analysis.tables.formats import Table
from analysis.tables.options import add_selection, rows_of
from fsdp_lab.settings.flag_values import a_file, real
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

SCREEN = Path(__file__).resolve().parents[2] / "results/reference/errors/update_error.jsonl"
ENOUGH = 6  # arms that a law is fitted to
SHOWN = 5  # laws of two measures
HEADS = ("measured of a method", "rank correlation with its cost", "powers", "median factor", "worst")


def tables(arms: Sequence[Screened], kind: Kind, decided: float) -> Iterator[Table]:
    """The measures one by one, the laws of two, and the arms of the best law. Laws: of costs from ``decided`` on."""
    names = [name for name in MEASURES[kind] if all(name in arm.measures for arm in arms)]
    costly = [arm for arm in arms if math.expm1(arm.nats) >= decided]
    has_laws = len(costly) >= ENOUGH and len({arm.method for arm in costly}) > 2
    alone = [law(costly, (name,)) for name in names] if has_laws else []
    lines = []
    for number, name in enumerate(names):
        low, high = interval(arms, name)
        lines.append(
            [name, f"{correlation(arms, name):.2f} [{low:.2f}, {high:.2f}]", *_off(alone[number : number + 1])]
        )
    methods = len({arm.method for arm in arms})
    note = f"{len(arms)} arms of {methods} methods; laws: {len(costly)} arms that cost {100 * decided:g} % or more."
    yield Table(f"What predicts the cost of compressed {kind}", HEADS, lines, note)
    if not has_laws:
        yield _measured(arms, names, kind)
        return
    pairs = sorted((law(costly, pair) for pair in itertools.combinations(names, 2)), key=_median)
    lines = [[" and ".join(one.measures), *_off([one])] for one in pairs[:SHOWN]]
    yield Table(f"The best laws of two measures, {kind}", ("measures", *HEADS[2:]), lines)
    yield _arms(min([*alone, *pairs], key=_median))


def _measured(arms: Sequence[Screened], names: Sequence[str], kind: Kind) -> Table:
    """Every arm's cost beside its measures."""
    lines = [
        [
            arm.label,
            f"{arm.nats:.3f}",
            f"{100 * math.expm1(arm.nats):+.1f} %",
            *(f"{arm.measures[n]:.2g}" for n in names),
        ]
        for arm in sorted(arms, key=lambda one: one.nats)
    ]
    return Table(f"Cost of compressed {kind}", ("arm", "cost, nats", "of PPL", *names), lines)


def _arms(best: Law) -> Table:
    """Every arm's cost, measured and predicted."""
    lines = [
        [arm.label, f"{arm.nats:.3f}", f"{100 * math.expm1(arm.nats):+.1f} %", f"{nats:.3f}", f"{nats / arm.nats:.2f}"]
        for arm, nats in sorted(best.predicted, key=lambda pair: pair[0].nats)
    ]
    heads = ("arm", "cost, nats", "of PPL", "predicted, nats", "predicted / measured")
    note = "Each arm by a law that was not fitted to its method."
    return Table(f"Cost by {' and '.join(best.measures)}", heads, lines, note)


def _median(one: Law) -> float:
    return statistics.median(one.factors)


def _off(laws: Sequence[Law]) -> list[str]:
    """The cells of a law; of no law dashes."""
    if not laws:
        return ["-", "-", "-"]
    (one,) = laws
    powers = ", ".join(f"{power:.2f}" for power in one.powers)
    return [powers, f"{_median(one):.2f}", f"{max(one.factors):.1f}"]


def main(argv: Sequence[str]) -> int:
    """Join rows and screen, and print the tables; returns the exit code."""
    parser = program("analysis.costs", __doc__)
    add_selection(parser)
    parser.add_argument("--screen", type=a_file, default=SCREEN, help="file of fidelity update_error --json")
    parser.add_argument("--baseline", default="none", metavar="ARM", help="what costs are counted from")
    parser.add_argument(
        "--decided", type=real(above=0), default=1.0, metavar="PERCENT", help="the least cost of a law's arms"
    )
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    options = parser.parse_args(argv)
    with user_errors("predict quality"):
        lines = read_screen(options.screen.read_text(), str(options.screen))
        compared = one_setting(comparisons(in_order(rows_of(options)), options.baseline), "the rows")
        if compared.baseline is None:
            raise ValueError(f"the rows have no arm {options.baseline!r}, so nothing costs anything; run it")
        by_kind = {kind: screened(compared, lines, kind) for kind in KINDS}
        if not any(by_kind.values()):
            raise ValueError("no arm of the rows, compressing one kind of traffic alone, has a line in the screen")
    for kind, arms in by_kind.items():
        for table in tables(arms, kind, options.decided / 100) if arms else ():
            print(table.markdown() if options.markdown else table.text(), end="\n\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
