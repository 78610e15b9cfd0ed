"""How much a draft saves in decoding on this machine: tokens per pass of the target, and time per token."""

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
    """Decoding with ``num_drafts`` drafts before each pass of the target.

    ``tau``: tokens per pass; ``lookup_tau``: the same with drafts that `lookup` copies. ``acceptance[i]``: how often
    draft i is kept where the drafts before it were. ``ms``: milliseconds per token, median over prompts.
    ``same_output``: how many answers are equal to those without drafts. ``lookup_tau`` and ``same_output`` are None
    where answers are drawn, because drawn answers differ by design.
    """

    num_drafts: int
    tau: float
    lookup_tau: float | None
    acceptance: list[float]
    ms: float
    same_output: int | None


@dataclass(frozen=True)
class Speed:
    """The speed over ``prompts`` prompts: ``plain_ms`` per token without drafts (a median), and with drafts."""

    prompts: int
    plain_ms: float
    drafting: list[Drafting]

    def faster_by(self, drafting: Drafting) -> float:
        """The time per token without drafts over the time with them."""
        return self.plain_ms / drafting.ms


def speed_of(values: dict[str, Any]) -> Speed:
    """The `Speed` that `dataclasses.asdict` turned into ``values``."""
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
    """Decodes every prompt without drafts and with each number in ``counts``, by the same code and with batch size 1.

    The order of these changes from prompt to prompt. The first prompt is decoded once more before, to warm up.
    """
    numbers = [0, *counts]
    answers: dict[int, list[Generated]] = {number: [] for number in numbers}
    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    for i, prompt in enumerate([prompts[0], *prompts]):
        for number in _rotated(numbers, i):
            start = time.perf_counter()
            answer = speculate(target, draft, prompt, max_new_tokens, number, sampling, stop)
            took = time.perf_counter() - start
            if i:  # before that: to warm up
                answers[number].append(answer)
                seconds[number].append(took)
    ms = {number: _median_ms(answers[number], seconds[number]) for number in numbers}
    drafting = [_drafting(count, answers[count], ms[count]) for count in counts]
    if sampling.is_greedy:
        drafting = [_compared(drafts, answers[drafts.num_drafts], answers[0], prompts) for drafts in drafting]
    return Speed(len(prompts), ms[0], drafting)


def _drafting(count: int, answers: Sequence[Generated], ms: float) -> Drafting:
    tokens, passes = sum(len(a.tokens) - 1 for a in answers), sum(a.passes for a in answers)
    accepted = [sum(answer.accepted[i] for answer in answers) for i in range(count)]
    judged = [sum(answer.judged[i] for answer in answers) for i in range(count)]
    return Drafting(
        num_drafts=count,
        tau=tokens / max(passes, 1),
        lookup_tau=None,
        acceptance=[a / max(1, j) for a, j in zip(accepted, judged, strict=True)],
        ms=ms,
        same_output=None,
    )


def _compared(
    drafts: Drafting, answers: Sequence[Generated], plain: Sequence[Generated], prompts: Sequence[list[int]]
) -> Drafting:
    """``drafts`` with the comparisons that only greedy answers allow: with prompt lookup and with plain answers."""
    tokens = sum(len(answer.tokens) - 1 for answer in answers)
    copied = sum(lookup_passes(p, answer.tokens, drafts.num_drafts) for p, answer in zip(prompts, answers, strict=True))
    same = sum(ours.tokens == theirs.tokens for ours, theirs in zip(answers, plain, strict=True))
    return replace(drafts, lookup_tau=tokens / max(copied, 1), same_output=same)


def _median_ms(answers: Sequence[Generated], seconds: Sequence[float]) -> float:
    return statistics.median(1e3 * s / len(answer.tokens) for answer, s in zip(answers, seconds, strict=True))


def _rotated(numbers: Sequence[int], i: int) -> list[int]:
    first = i % len(numbers)
    return [*numbers[first:], *numbers[:first]]


def speed_table(speed: Speed) -> str:
    """The speed as a text table, with one line for each number of drafts."""
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
