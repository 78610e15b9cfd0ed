"""Every way of being unfair that we know, planted: by name the severity, the check that must find it, and the rows."""

from __future__ import annotations

from typing import Any

from analysis.rows.reading import Row
from tests.analysis.planted_rows import SEEDS, arm, died, diverged, fair, row

NAN = float("nan")
CLEAN = {"cpu": "a CPU", "cores": 2, "ram_gb": 8.0, "gpus": [], "host": "0123456789ab"}


def but(method: str, **changes: Any) -> list[Row]:
    """The fair rows, those of one method changed."""
    parameters = method if method != "none" else "none"
    kept = [r for r in fair() if r["compress_method"] != method]
    worse = {"none": 0.0, "identity": 0.0, "bf16": 0.0001, "int8": 0.01, "int4": 0.05}[method]
    return [*kept, *arm(method, worse, parameters=parameters, **changes)]


def without(*methods: str) -> list[Row]:
    return [r for r in fair() if r["compress_method"] not in methods]


def tried(method: str, *rates: float, worse: float = 0.0) -> list[Row]:
    """All seeds at every learning rate, the one nearest 0.004 best."""
    return [r for rate in rates for r in arm(method, worse + abs(rate - 0.004), learning_rate=rate)]


def local(day: int, kind: str, **step: float) -> list[Row]:
    """All seeds of local steps of that kind, by an outer ``step`` of its own; ``day``: of the year, when they ran."""
    said = {"outer": kind, "outer_every": 30, "outer_compress": "int8", "outer_gather": "none"}
    defaults = {"outer": "none", "outer_learning_rate": None, "outer_momentum": None}
    runs = []
    for r in arm("none", 0.02):
        when, name = f"2026-02-{day:02d}{r['time_utc'][10:]}", f"{kind}-{day}-{r['seed']}"
        config = r["config"] | {"outer_learning_rate": None, "outer_momentum": None} | said | step
        runs.append(Row({**r, "time_utc": when, "run_name": name, "arm_settings": defaults, "config": config}))
    return runs


ALL = ("none", "identity", "bf16", "int8")
TUNED = [r for method in ALL for r in tried(method, 0.002, 0.004, 0.008)]
BEFORE: dict[str, Any] = {"run_name": "before", "wall_time_s": 1.0}
NO_SPREAD = [row("int8", s, worse) for s, worse in zip(SEEDS, (-0.05, -0.049, -0.051), strict=True)]
PLANTED: dict[str, tuple[str, str, list[Row]]] = {  # what is wrong -> (severity, check, rows)
    "no baseline": ("error", "no_baseline", without("none")),
    "one seed": ("error", "one_seed", [r for r in fair() if r["seed"] == 1]),
    "two seeds": ("warning", "few_seeds", [r for r in fair() if r["seed"] < 3]),
    "only float32": ("error", "no_16_bit_baseline", without("bf16")),
    "gradients alone in bf16": ("error", "no_16_bit_baseline", [
        *without("bf16"), *arm("bf16", parameters="none")]),
    "bf16 that all died": ("error", "no_16_bit_baseline", [*without("bf16"), *[died("bf16", s) for s in SEEDS]]),
    "bf16 that died once": ("error", "seeds_without_16_bits", [*without("bf16"), *arm("bf16", 0.0001, seeds=(1, 2)),
        diverged("bf16", 3)]),
    "no denominators": ("warning", "no_16_bit_baseline", but("int8", elements_by_op=None)),
    "no identity": ("error", "no_identity_on_gloo", without("identity")),
    "fewer tokens": ("error", "different_tokens", but("int8", tokens_seen=99)),
    "unknown tokens": ("error", "different_tokens", [Row({**r, "tokens_seen": NAN}) for r in fair()]),
    "another corpus": ("error", "different_tokens", but("int8", dataset_tokens=5)),
    "other validation": ("error", "different_tokens", but("int8", val_tokens=5)),
    "another order": ("error", "other_stream", [
        Row({**r, "data_digest": "f" * 32}) if r["run_name"] == "int8-int8-2" else r for r in fair()]),
    "an order not known": ("warning", "other_stream", but("int8", data_digest=None)),
    "weights of another start": ("error", "other_start", [
        Row({**r, "start_digest": f"{(r['run_name'] == 'int8-int8-2'):032x}"}) for r in fair()]),
    "pairs of two CPUs": ("warning", "pairs_of_two_processors", but("int8", hardware=CLEAN | {"cpu": "another"})),
    "compressed weights judged": ("error", "different_tokens", but("int8", eval_weights="replicas")),
    "seeds apart": ("error", "seeds_not_shared", [*without("int8"), *arm("int8", 0.01, seeds=(4, 5, 6))]),
    "more seeds": ("warning", "seeds_not_shared", [*without("int8"), *arm("int8", 0.01, seeds=(1, 2, 3, 4))]),
    "a run dropped": ("error", "missing_runs", [
        *[r for method in ("none", "identity", "bf16") for r in arm(method, seeds=(1, 2, 3, 4))],
        *arm("int8", 0.01, seeds=(1, 2, 4))]),
    "baseline died": ("error", "baseline_failed", [
        *fair()[:2], died("none", 3), *fair()[3:]]),
    "made again": ("warning", "repeated_runs", [*fair(), died("int8", 1, **BEFORE)]),
    "until it was good": ("warning", "repeated_runs", [row("int8", 1, 0.9, **BEFORE), *fair()]),
    "tuned alone": ("error", "unequal_tuning", [*tried("int8", 0.003, 0.004, 0.005), *without("int8")]),
    "tuned in secret": ("error", "unequal_tuning", but("int8", learning_rate=0.002)),
    "tuned with other values": ("error", "other_candidates", [
        *[r for r in TUNED if r["compress_method"] != "int8"], *tried("int8", 0.003, 0.004, 0.008)]),
    "best at the edge": ("warning", "best_at_the_edge", [
        r for method in ALL for r in tried(method, 0.004, 0.008)]),
    "a better one with fewer seeds": ("warning", "tuned_otherwise", [
        *[r for r in TUNED if r["compress_method"] != "int8"], *tried("int8", 0.004, 0.008),
        row("int8", 1, -0.2, learning_rate=0.002)]),
    "an outer rate for one": ("warning", "unequal_outer_rates", [
        *fair(), *local(1, "diloco"), *local(2, "diloco", outer_learning_rate=1.0), *local(3, "local_sgd")]),
    "another CPU": ("error", "mixed_hardware", [
        Row({**r, "hardware": CLEAN | {"cpu": "another"}}) if r["seed"] == 3 else r for r in fair()]),
    "another GPU": ("error", "mixed_hardware", but("int8", hardware=CLEAN | {"gpus": ["one"]})),
    "another backend": ("error", "mixed_hardware", but("int8", backend="virtual")),
    "another machine": ("warning", "mixed_hardware", but("int8", hardware=CLEAN | {"host": "else"})),
    "another allocator": ("error", "mixed_allocators", [
        Row({**r, "versions": {**r["versions"], "malloc": f"{r['compress_method'] == 'int8'}"}}) for r in fair()]),
    "another commit": ("warning", "mixed_versions", but("int8", git_commit="b" * 40)),
    "another torch": ("warning", "mixed_versions", but("int8", versions={"python": "3.11.7", "torch": "2.12.0"})),
    "not committed": ("warning", "dirty_checkout", but("int8", git_dirty=True)),
    "baseline without prefetch": ("error", "other_schedule", but("none", fsdp_prefetch=0)),
    "baseline that waits": ("error", "other_schedule", [
        Row({**r, "arm_settings": {"fsdp_overlap_reduce": 2},
             "config": r["config"] | {"fsdp_overlap_reduce": 2 * (r["compress_method"] != "none")}}) for r in fair()]),
    "too good": ("warning", "better_than_uncompressed", [*without("int8"), *NO_SPREAD]),
    "at the same time": ("error", "overlapping_runs", [
        Row({**r, "wall_time_s": 3700.0}) if r["run_name"] == "int8-int8-2" else r for r in fair()]),
    "bytes that are not true": ("error", "untrusted_bytes", but("int8", bytes_trusted=False)),
    "cold": ("error", "warm_up_counted", but("int8", warmup_steps_excluded=0)),
}  # fmt: skip
ALSO = {"pairs of two CPUs": {("error", "mixed_hardware")}}
"""What else is wrong with planted rows, which cannot have the one fault without the other."""
