"""From turns to a row for each variant, and from rows to a table in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bench.computation.operators.arms import BEST, NAIVE, Arm
from experiments.bench.computation.operators.checks import GRADIENT, LOSS, complaints
from experiments.bench.computation.operators.measure import PHASES, Turn

_HEAD = (
    "| variant | s a step (interval) | of best's | tokens/s | MFU | MFU, all parameters | peak GB "
    "| forward | backward | optimizer | as naive? |"
)


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Two of ``values`` that enclose the median of what they are drawn from, and the chance that they do.

    The narrowest pair of order statistics with a chance of at least 95 %, or with fewer than 6 values the extremes,
    whose chance is lower: n independent values are all on one side of the median with chance 2^(1-n).
    """
    ordered, n = sorted(values), len(values)
    outside, weight, k = 0.0, 0.5 ** (n - 1), 0  # outside: the chance that the median is not in [k, n-1-k]
    outside = weight
    while k + 1 < n - 1 - (k + 1):
        weight = weight * (n - k) / (k + 1)
        if outside + weight > 0.05:
            break
        outside, k = outside + weight, k + 1
    return ordered[k], ordered[n - 1 - k], 1 - outside


def rows(
    turns: Mapping[str, Sequence[Turn | None]],
    arms: Sequence[Arm],
    failed: Mapping[str, str],
    tokens: int,
    peaks: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """A row for each variant: medians over all timed steps of its turns, and what is not as in the naive one.

    ``turns``: of each variant by repeat; None where it failed (``failed`` says why). ``tokens``: of a step. ``peaks``:
    the device's FLOP/s by dtype.
    """
    reference = next((turn for turn in turns[NAIVE] if turn is not None), None)
    named = {arm.name: arm for arm in arms}
    lines = []
    for arm in arms:
        measured = [turn for turn in turns[arm.name] if turn is not None]
        row: dict[str, Any] = {"variant": arm.name, "asked": dict(arm.operators), "dtype": arm.dtype}
        if not measured:
            lines.append({**row, "failed": failed.get(arm.name, "not run")})
            continue
        row |= _figures(measured, tokens, peaks[arm.dtype])
        row["of_best"] = _paired(turns[arm.name], turns[BEST])
        row["complaints"] = [failed[arm.name]] if arm.name in failed else []
        row["complaints"] += ["the naive one did not run: not compared"] if reference is None else []
        if reference is not None:
            dtype = "bf16" if "bf16" in (arm.dtype, named[NAIVE].dtype) else "fp32"
            for turn in measured:
                theirs = (reference.losses, reference.gradients)
                row["complaints"] += complaints(turn.losses, turn.gradients, *theirs, dtype)
        row["complaints"] = list(dict.fromkeys(row["complaints"]))
        lines.append(row)
    return lines


def _figures(measured: Sequence[Turn], tokens: int, peak: float | None) -> dict[str, Any]:
    first = measured[0]
    steps = [seconds for turn in measured for seconds in turn.steps()]
    step, (low, high, chance) = statistics.median(steps), median_interval(steps)
    every = 6 * first.num_parameters + _attention(first)
    peaks_gb = [turn.peak_gb for turn in measured if turn.peak_gb is not None]
    return {
        "operators": first.operators,
        "step_s": step,
        "step_s_interval": [low, high],
        "interval_chance": chance,
        "steps_timed": len(steps),
        "tokens_per_s": tokens / step,
        "flops_per_token": first.flops_per_token,
        "mfu": None if peak is None else tokens / step * first.flops_per_token / peak,
        "mfu_all_parameters": None if peak is None else tokens / step * every / peak,
        "peak_gb": max(peaks_gb) if peaks_gb else None,
        "first_steps_s": statistics.median(turn.first_s for turn in measured),
        **{f"{p}_s": statistics.median(s for turn in measured for s in turn.seconds[p]) for p in PHASES},
        "losses": first.losses,
    }


def _attention(turn: Turn) -> float:
    """The FLOP a token of attention: what is not six times a parameter that multiplies."""
    return turn.flops_per_token - 6 * turn.multiplying


def _paired(mine: Sequence[Turn | None], best: Sequence[Turn | None]) -> list[float] | None:
    """A step of this variant over one of the best in the same repeat: the median over the repeats, least and most."""
    shares = [
        statistics.median(a.steps()) / statistics.median(b.steps())
        for a, b in zip(mine, best, strict=True)
        if a is not None and b is not None
    ]
    return [statistics.median(shares), min(shares), max(shares)] if shares else None


def markdown(result: Mapping[str, Any]) -> str:
    """The page of one model: its setting, the table, what is not measured here."""
    where, shape = result["machine"], result["setting"]
    device = where["gpu"] or f"{where['cpu']}, {shape['threads']} thread{'s' * (shape['threads'] > 1)}"
    lines = [
        f"# Operators of {shape['model']}",
        "",
        f"Made by `{result['command']}`.",
        "",
        f"{device}; torch {where['torch']}; one rank under FSDP2; {shape['batch_size']} x {shape['length']} random "
        f"tokens a step, {shape['dtype']}; {shape['repeats']} repeats of all variants in turn, {shape['steps']} timed "
        f"steps in each after {shape['warm_up']} that are not; a model built anew in each turn.",
        "",
        _HEAD,
        "|" + "---|" + "---:|" * 9 + "---|",
        *map(_line, result["rows"]),
        "",
        *_legend(result),
        "",
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['variant']} | {row['failed']} |" + " |" * 9
    low, high = row["step_s_interval"]
    best = row["of_best"]
    cells = [
        row["variant"],
        f"{row['step_s']:.3f} ({low:.3f} to {high:.3f})",
        "" if best is None else f"{best[0]:.2f} ({best[1]:.2f} to {best[2]:.2f})",
        f"{row['tokens_per_s']:,.0f}",
        _percent(row["mfu"]),
        _percent(row["mfu_all_parameters"]),
        "" if row["peak_gb"] is None else f"{row['peak_gb']:.2f}",
        *(f"{row[f'{phase}_s']:.3f}" for phase in PHASES),
        "yes" if not row["complaints"] else "no: " + "; ".join(row["complaints"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _legend(result: Mapping[str, Any]) -> list[str]:
    measured = [row for row in result["rows"] if "failed" not in row]
    chance = min((row["interval_chance"] for row in measured), default=0.0)
    peaks = ", ".join(f"{d} {p / 1e12:.3g} TFLOP/s" for d, p in result["peak_flops"].items() if p is not None)
    lines = [
        f"Seconds are medians over timed steps; the interval has two of the measured steps as its ends and holds the "
        f'median with a chance of {100 * chance:.0f} % or more, if steps are independent. "Of best\'s": over the best '
        "variant's in the same repeat, the median repeat (least to most). A difference within the intervals means "
        "nothing.",
        "",
        "MFU = (6 N + 12 L H Q T) x tokens/s / peak (docs/trainer/operators.md). N: parameters that multiply, "
        f'without the embeddings looked up, {result["multiplying"]:,}; "all parameters": N is all '
        f"{result['num_parameters']:,}, as nanoGPT and its descendants count. "
        f"Peak: {peaks or 'not known'} ({result['peak_source']}).",
        "",
        f"As naive: losses of all steps within {LOSS['fp32']:g} of the naive ones ({LOSS['bf16']:g} where one of the "
        f"two is bf16), norms of each gradient in the first step within {GRADIENT['fp32']:g} "
        f"({GRADIENT['bf16']:g}), and none zero.",
        "",
        *(f"- {v['variant']}: {_shown(v['operators'])}" for v in measured if v["variant"] in (NAIVE, BEST)),
    ]
    if result["not_here"]:
        lines += ["", "Not measured here:", ""]
        lines += [f"- {n['operator']}: {n['implementation']} {n['reason']}" for n in result["not_here"]]
    return lines


def _shown(operators: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {implementation}" for name, implementation in operators.items())
