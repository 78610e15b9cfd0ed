"""A profile as text tables: where a step's time goes, and what its collectives move."""

from __future__ import annotations

from fsdp_lab.trace.breakdown import Times
from fsdp_lab.trace.profile import Profile
from fsdp_lab.trace.reading.steps import PHASES

_LABELS = {  # field of `Times` -> its name in the table
    "compute": "compute",
    "communication": "communication",
    "communication_under_compute": "  hidden behind compute",
    "exposed_communication": "  exposed",
    "compression": "compression",
    "compression_under_compute": "  hidden behind compute",
    "exposed_compression": "  exposed",
    "idle": "idle",
    "total": "total",
}


def table(profile: Profile) -> str:
    """The table of phases and the table of collectives, as `python -m fsdp_lab.trace` prints them."""
    return "\n".join([*_heading(profile), "", *_phases(profile), "", *_collectives(profile)])


def short_table(profile: Profile) -> str:
    """The summary that a training run prints at its end: times of the whole step, and the table of collectives."""
    whole = profile.mean.whole
    times = {
        "compute": whole.compute,
        "exposed communication": whole.exposed_communication,
        "exposed compression": whole.exposed_compression,
        "idle": whole.idle,
    }
    shares = ", ".join(f"{name} {ms:.1f} ms ({ms / whole.total:.0%})" for name, ms in times.items())
    return "\n".join([*_heading(profile), f"  {shares}", *_collectives(profile)])


def _heading(profile: Profile) -> list[str]:
    first, numbers = profile.ranks[0], sorted({len(rank.steps) for rank in profile.ranks})
    ranks = _count(len(profile.ranks), "rank")
    if len(profile.ranks) < first.world:
        ranks = f"{len(profile.ranks)} of {_count(first.world, 'rank')}"
    steps = _count(numbers[0], "step") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} steps"
    lines = [f"profile: {steps} on {ranks} ({first.device}, {first.backend or 'no backend named'})"]
    least, most = profile.overlap_ratio, profile.overlap_ratio_at_most
    if least is not None and most is not None:
        lines.append(f"overlap ratio {least:.2f}: the share of communication that compute hides")
        if most - least > 0.005:
            lines[-1] += f" (at most {most:.2f}: a trace does not tell when a prefetched message arrived)"
    return lines


def _phases(profile: Profile) -> list[str]:
    mean, slowest = profile.mean, profile.slowest
    columns: dict[str, Times] = {phase: mean.phases[phase] for phase in PHASES} | {"step": mean.whole}
    if len(profile.ranks) > 1:
        columns[f"rank {slowest.rank}"] = slowest.mean.whole
    lines = [f"{'ms a step, mean':25s}" + "".join(f"{name:>12s}" for name in columns)]
    for name, text in _LABELS.items():
        lines.append(f"{text:25s}" + "".join(f"{getattr(times, name):12.1f}" for times in columns.values()))
    if len(profile.ranks) > 1:
        lines.append(f"rank {slowest.rank} is the slowest: longest busy, so the others wait for it")
    return lines


def _collectives(profile: Profile) -> list[str]:
    heads = ("count", "ms", "of step", "of comm.", "exposed ms", "raw MB", "sent MB", "raw GB/s", "sent GB/s")
    lines = [f"{'collectives, a step':25s}" + "".join(f"{head:>12s}" for head in heads)]
    for op, t in profile.mean.collectives.items():
        raw, sent = (None if b is None else b / 1e6 for b in (t.raw_bytes, t.sent_bytes))
        shares = (profile.mean.share_of_step(op), profile.mean.share_of_communication(op))
        cells = [f"{t.count:12.4g}", f"{t.milliseconds:12.1f}", *map(_percent, shares), f"{t.exposed:12.1f}"]
        cells += [_number(x) for x in (raw, sent, t.raw_gbps, t.sent_gbps)]
        lines.append(f"{op:25s}" + "".join(cells))
    return lines if len(lines) > 1 else ["no collectives in these steps"]


def _number(value: float | None) -> str:
    return f"{'?':>12s}" if value is None else f"{value:12.3f}"


def _percent(share: float | None) -> str:
    return f"{'?':>12s}" if share is None else f"{100 * share:10.1f} %"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")
