"""What a draft saves in decoding, on this machine: tokens a pass of the target, and time a token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsdp_lab.eagle.decoding.chain import Generated, Sampling, speculate
from fsdp_lab.eagle.decoding.lookup import lookup_passes
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target


@dataclass(frozen=True)
class Drafting:
    """Decoding with so many drafts a pass of the target.

    ``tau``: tokens a pass; ``lookup_tau``: with drafts that `lookup` copies. ``acceptance[i]``: of draft i, those
    before given. ``ms``: a token, median over prompts. ``same_output``: how many answers are the plain ones.
    ``lookup_tau`` and ``same_output`` are None where answers are drawn: they differ by design.
    """

    num_drafts: int
    tau: float
    lookup_tau: float | None
    acceptance: list[float]
    ms: float
    same_output: int | None


@dataclass(frozen=True)
class Speed:
    """Of decoding ``prompts`` prompts plainly, ``plain_ms`` a token (median over prompts), and with drafts."""

    prompts: int
    plain_ms: float
    drafting: list[Drafting]

    def faster_by(self, drafting: Drafting) -> float:
        """Plain time over time with drafts."""
        return self.plain_ms / drafting.ms


def speed_of(values: dict[str, Any]) -> Speed:
    """From what `dataclasses.asdict` made of it."""
    return Speed(values["prompts"], values["plain_ms"], [Drafting(**drafting) for drafting in values["drafting"]])


def measure_speed(
    target: Target,
    draft: Draft,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    counts: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
) -> Speed:
    """Decode every prompt plainly and with each of ``counts`` drafts a pass, by the same code, batch 1.

    Who comes first changes from prompt to prompt; the first prompt is decoded twice, and counts once.
    """
    ways = [0, *counts]
    made: dict[int, list[Generated]] = {way: [] for way in ways}
    seconds: dict[int, list[float]] = {way: [] for way in ways}
    for i, prompt in enumerate([prompts[0], *prompts]):
        for way in _rotated(ways, i):
            start = time.perf_counter()
            answer = speculate(target, draft, prompt, max_new_tokens, way, sampling, stop)
            took = time.perf_counter() - start
            if i:  # before that: to warm up
                made[way].append(answer)
                seconds[way].append(took)
    ms = {way: _median_ms(made[way], seconds[way]) for way in ways}
    drafting = [_drafting(count, made[count], ms[count]) for count in counts]
    if sampling.is_greedy:
        drafting = [_compared(drafts, made[drafts.num_drafts], made[0], prompts) for drafts in drafting]
    return Speed(len(prompts), ms[0], drafting)


def _drafting(count: int, made: Sequence[Generated], ms: float) -> Drafting:
    tokens, passes = sum(len(g.tokens) - 1 for g in made), sum(g.passes for g in made)
    accepted = [sum(g.accepted[i] for g in made) for i in range(count)]
    judged = [sum(g.judged[i] for g in made) for i in range(count)]
    return Drafting(
        num_drafts=count,
        tau=tokens / max(passes, 1),
        lookup_tau=None,
        acceptance=[a / max(1, j) for a, j in zip(accepted, judged, strict=True)],
        ms=ms,
        same_output=None,
    )


def _compared(
    drafts: Drafting, made: Sequence[Generated], plain: Sequence[Generated], prompts: Sequence[list[int]]
) -> Drafting:
    """With what greedy answers, and only they, can be compared with."""
    tokens = sum(len(g.tokens) - 1 for g in made)
    copied = sum(lookup_passes(prompt, g.tokens, drafts.num_drafts) for prompt, g in zip(prompts, made, strict=True))
    same = sum(ours.tokens == theirs.tokens for ours, theirs in zip(made, plain, strict=True))
    return replace(drafts, lookup_tau=tokens / max(copied, 1), same_output=same)


def _median_ms(made: Sequence[Generated], seconds: Sequence[float]) -> float:
    return statistics.median(1e3 * s / len(g.tokens) for g, s in zip(made, seconds, strict=True))


def _rotated(ways: Sequence[int], i: int) -> list[int]:
    first = i % len(ways)
    return [*ways[first:], *ways[:first]]


def speed_table(speed: Speed) -> str:
    """As text, one line for each number of drafts."""
    lines = [
        f"decoding, {speed.prompts} prompts, batch 1; plainly {speed.plain_ms:.1f} ms a token (medians over prompts)",
        "drafts   tokens a pass   by lookup   ms a token   faster by   same answer   accepted, those before given",
    ]
    for d in speed.drafting:
        copied = "-" if d.lookup_tau is None else f"{d.lookup_tau:.2f}"
        same = "-" if d.same_output is None else f"{d.same_output} of {speed.prompts}"
        accepted = " ".join(f"{x:.2f}" for x in d.acceptance)
        lines.append(
            f"{d.num_drafts:>6}   {d.tau:>13.2f}   {copied:>9}   {d.ms:>10.1f}   {speed.faster_by(d):>8.2f}x"
            f"   {same:>11}   {accepted}"
        )
    if any(d.same_output is not None and d.same_output < speed.prompts for d in speed.drafting):
        lines.append("answers part where a pass over several tokens rounds otherwise than one over a single token")
    return "\n".join(lines)
