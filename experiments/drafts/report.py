"""What a draft from nothing came to, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fsdp_lab.eagle.decoding.speed import Speed, speed_of
from fsdp_lab.eagle.training.positions import PositionScores, expected_tau


def report(results: Mapping[str, Any]) -> str:
    """The report as Markdown.

    ``results`` has the ``seconds`` of each part, the ``commands``, the ``training``'s row and the ``evaluation``'s
    results."""
    row, judged = results["training"], results["evaluation"]
    blocks = [
        ["# A draft from nothing"],
        _how(row, judged),
        _speed(speed_of(judged["speed"])),
        _positions([PositionScores(**values) for values in judged["positions"]]),
        [_minutes(results["seconds"])],
        ["## Commands"],
        (f"    {command}" for command in results["commands"]),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _how(row: Mapping[str, Any], judged: Mapping[str, Any]) -> Iterator[str]:
    machine, settings = row["hardware"], judged["settings"]
    gpus = f", {len(machine['gpus'])} GPUs" if machine["gpus"] else ""
    yield f"- Target: `{row['draft_target']}`; answers are its own, greedy."
    yield (
        f"- Draft: {row['num_parameters']:,} parameters, {row['steps']:,} steps, {row['tokens_seen']:,} tokens, "
        f"{row['tokens_per_s']:,.0f} a second; ranks: {row['world_size']}."
    )
    if row.get("features_read") is not None:
        yield (
            f"- The target's features: computed for {row['features_computed']:,} conversations, read from disk for "
            f"{row['features_read']:,}; the time of a step is of both."
        )
    yield (
        f"- Kept: the draft of step {row['tau_step']:,}, tau {row['tau']:.2f} on {row['tau_prompts']} questions that "
        "are in none of the figures below."
    )
    yield (
        f"- Below: held-out questions, greedy answers of at most {settings['max_new_tokens']} tokens, "
        f"{settings['dtype']}."
    )
    yield (
        f"- Machine: {machine['cpu']}, {machine['cores']} cores{gpus}; commit {(row['git_commit'] or 'unknown')[:12]}."
    )


def _speed(speed: Speed) -> Iterator[str]:
    yield f"{speed.prompts} questions, batch 1; plainly {speed.plain_ms:.1f} ms a token (medians over questions):"
    yield ""
    yield (
        "| drafts a pass | tokens a pass of the target (tau) | by prompt lookup | ms a token | faster by "
        "| the same answer | drafts accepted, those before given |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---|"
    for d in speed.drafting:
        accepted = ", ".join(f"{x:.2f}" for x in d.acceptance)
        yield (
            f"| {d.num_drafts} | {d.tau:.2f} | {d.lookup_tau:.2f} | {d.ms:.1f} | {speed.faster_by(d):.2f}x "
            f"| {d.same_output} of {speed.prompts} | {accepted} |"
        )
    yield ""
    yield "By prompt lookup: tau of drafts that are copied from what was said before, for comparison."


def _positions(table: list[PositionScores]) -> Iterator[str]:
    yield "| position | tokens | accuracy (sd) | given those before | loss (sd) |"
    yield "|---:|---:|---:|---:|---:|"
    for k, p in enumerate(table):
        accuracy, loss = f"{p.accuracy:.3f} ({p.accuracy_sd:.3f})", f"{p.loss:.3f} ({p.loss_sd:.3f})"
        yield f"| {k} | {p.tokens:,} | {accuracy} | {p.conditional:.3f} | {loss} |"
    yield ""
    yield f"By this table {len(table)} drafts a pass give {expected_tau(table):.2f} tokens a pass."


def _minutes(seconds: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value / 60:.1f}" for name, value in seconds.items())
    return f"Minutes: {parts}; together {sum(seconds.values()) / 60:.0f}."
