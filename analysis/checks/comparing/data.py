"""Did all arms see the same tokens in the same order, and begin with the same weights?"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.checks.comparing.wording import arms_of, column, finding, labels, listed, within_seeds
from analysis.checks.differences import by_seed, differing, differing_by_seed, distinct
from analysis.checks.finding import Finding
from analysis.rows.comparing.comparisons import Comparison

TOKEN_COLUMNS = ("dataset", "dataset_tokens", "max_length", "val_tokens", "tau_prompts", "eval_weights")


def different_tokens(comparison: Comparison) -> Iterator[Finding]:
    """All arms must see the same tokens, as many of them, and be judged by the same validation tokens.

    Their number is compared within a seed, since conversations in another order fill other batches."""
    advice = "do not compare: run the odd ones again with the data of the others"
    for name in TOKEN_COLUMNS:
        values, unlike = differing(comparison, column(name))
        if len(values) > 1:
            what = f"{name} differs: {listed(values)}"
            yield finding("error", different_tokens, comparison, what, advice, arms=unlike)
    seeds, unlike = differing_by_seed(comparison, column("tokens_seen"))
    if seeds:
        first = distinct(row.get("tokens_seen") for row in by_seed(comparison)[seeds[0]].values())
        more = f" (and {len(seeds) - 1} more seeds)" if len(seeds) > 1 else ""
        what = f"tokens_seen differs among the runs of seed {seeds[0]}: {listed(first)}{more}"
        yield finding("error", different_tokens, comparison, what, advice, arms=unlike)


def other_stream(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one seed must train on the same sequences in the same order; rows without a digest cannot say."""
    means = "other sequences, or another order"
    advice = "do not compare: find out which settings, files or versions dealt other data"
    yield from within_seeds("error", other_stream, comparison, "data_digest", means, advice)
    silent = [runs for runs in comparison.arms if any(not row.get("data_digest") for row in runs.ended_well)]
    if silent:
        what = f"unknown whether the runs saw the same sequences, no data_digest: {labels(silent, comparison)}"
        advice = "nothing, if settings and version are the same; else run again with this version"
        yield finding("warning", other_stream, comparison, what, advice, arms=arms_of(silent))


def other_start(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one seed that go on must begin with the same saved weights: a start trained anew elsewhere is another."""
    means = "they began with different weights"
    advice = "do not compare: run the odd ones again from the weights of the others"
    yield from within_seeds("error", other_start, comparison, "start_digest", means, advice, "quality")
