"""Rows of a comparison whose truth is known, because it was planted: fair unless a change says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.rows.reading import Row

SEEDS = (1, 2, 3)
NOISE = {
    1: -0.02,
    2: 0.0,
    3: 0.02,
    4: 0.01,
    5: -0.01,
    6: 0.03,
}  # what a seed adds to every arm's loss: pairing removes it
LOSS = 5.0
BITS = {"none": 32.0, "identity": 32.0, "bf16": 16.0, "int8": 8.0, "int4": 4.0, "topk": 8.0, "qsgd": 8.0}
PARAMETERS, STEPS, TOKENS_A_STEP = 1_000_000, 100, 1024


def row(method: str = "none", seed: int = 1, worse: float = 0.0, parameters: str | None = None, **changes: Any) -> Row:
    """A run whose loss is ``LOSS + NOISE[seed] + worse`` nats, both directions carried by ``method``.

    ``changes`` go to the column of that name, or to ``config`` where only that has one; runs end an hour apart."""
    parameters = method if parameters is None else parameters
    sent = {
        op: round(BITS.get(name, 8.0) / 8 * PARAMETERS * STEPS / 2 * calls)
        for op, name, calls in (("reduce_scatter", method, 1), ("all_gather", parameters, 2))
    }
    elements = {"reduce_scatter": PARAMETERS * STEPS // 2, "all_gather": PARAMETERS * STEPS}
    hour = 10 * (list(BITS).index(method) if method in BITS else len(BITS)) + seed
    loss = LOSS + NOISE[seed] + worse
    config = {
        "model": "gpt2-nano",
        "max_length": 128,
        "max_steps": STEPS,
        "learning_rate": 0.004,
        "comm_compress": method,
        "comm_config_json": {},
        "param_compress": parameters,
        "param_config_json": {},
        "comm_dtype": "fp32",
        "fsdp_prefetch": 1,
        "fsdp_reshard": True,
        "seed": seed,
        "target_ppl": None,
        "virtual_ranks": 0,
        "results_path": f"{method}.jsonl",
    }
    values: dict[str, Any] = {
        "schema_version": 3,
        "status": "ok",
        "error": None,
        "run_name": f"{method}-{parameters}-{seed}",
        "time_utc": f"2026-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z",
        "world_size": 2,
        "backend": "gloo",
        "model": "gpt2-nano",
        "num_parameters": PARAMETERS,
        "dataset": "wiki-leads (embedded)",
        "dataset_tokens": 1_083_916,
        "data_digest": f"{seed:032x}",
        "max_length": 128,
        "steps": STEPS,
        "tokens_seen": STEPS * TOKENS_A_STEP,
        "compress_method": method,
        "compress_config": {},
        "param_compress_method": parameters,
        "param_compress_config": {},
        "comm_dtype": "fp32",
        "param_dtype": "fp32",
        "seed": seed,
        "config": config,
        "config_hash": f"{method}{parameters}{seed}",
        "step_time_ms_mean": 110.0,
        "step_time_ms_p50": 100.0,
        "warmup_steps_excluded": 5,
        "tokens_per_s": 10_000.0,
        "comm_ratio": 0.25,
        "elements_by_op": elements,
        "bytes_raw_by_op": {op: 4 * n for op, n in elements.items()},
        "bytes_compressed_by_op": sent,
        "bytes_compressed_total": sum(sent.values()),
        "nonfinite_steps": 0,
        "val_loss": loss,
        "val_ppl": 2.718281828459045**loss,
        "val_tokens": 23_495,
        "eval_weights": "fp32 shards, gathered uncompressed",
        "wall_time_s": 60.0,
        "link_rate_asked": None,
        "link_delay_ms": None,
        "bytes_trusted": None,
        "git_commit": "a" * 40,
        "git_dirty": False,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "hardware": {"cpu": "a CPU", "cores": 2, "ram_gb": 8.0, "gpus": [], "host": "0123456789ab"},
        "nonfinite_fields": [],
    }
    for name, value in changes.items():
        assert name in values or name in config, name
        if name in values:
            values[name] = value
        if name in config:
            config[name] = value
    return Row(values)


def arm(method: str, worse: float = 0.0, seeds: tuple[int, ...] = SEEDS, **changes: Any) -> list[Row]:
    """A run a seed."""
    return [row(method, seed, worse, **changes) for seed in seeds]


def diverged(method: str, seed: int, **changes: Any) -> Row:
    """A run that went through all its steps and whose loss is not finite, as the trainer writes it."""
    return row(method, seed, val_loss=None, val_ppl=None, nonfinite_fields=["val_loss", "val_ppl"], **changes)


def died(method: str, seed: int, **changes: Any) -> Row:
    """A run that failed before it measured anything."""
    lost = dict.fromkeys(("steps", "tokens_seen", "val_loss", "val_ppl", "tokens_per_s", "step_time_ms_p50"))
    return row(method, seed, **{"status": "failed", "error": "rank 1 died", **lost, **changes})


def divided(method: str, seed: int = 1, worse: float = 0.0, stock: int = 0) -> Row:
    """A run of tensor parallel ranks whose activations ``method`` carries forward, and bf16 backward (with none: none).

    A step moves 600 values forward and 200 back; ``stock``: values a step that torch's own collectives move beside."""
    backward = "none" if method == "none" else "bf16"
    elements = {"activations": 600 * STEPS, "activation_gradients": 200 * STEPS}
    widths = {"activations": BITS[method], "activation_gradients": BITS[backward]}
    if stock:
        elements["all_reduce"], widths["all_reduce"] = stock * STEPS, 32.0
    sent = {op: round(widths[op] / 8 * count) for op, count in elements.items()}
    plain = row("none", seed, worse, elements_by_op=elements, bytes_compressed_by_op=sent)
    hour = f"{10 * list(BITS).index(method) + seed:02d}"
    own = {
        "run_name": f"divided-{method}-{seed}",
        "time_utc": f"2026-02-{1 + int(hour) // 24:02d}T{int(hour) % 24:02d}:00:00Z",
        "bytes_compressed_total": sum(sent.values()),
        "config": {**plain["config"], "tp": 2, "activation": method, "activation_grad": backward},
        "config_hash": f"divided{method}{seed}",
    }
    return Row({**plain, **own})


def fair() -> list[Row]:
    """Baselines, int8 at the baseline's quality with a little spread, int4 clearly worse."""
    int8 = [row("int8", seed, worse) for seed, worse in zip(SEEDS, (0.0005, 0.001, 0.0015), strict=True)]
    int4 = [row("int4", seed, worse) for seed, worse in zip(SEEDS, (0.05, 0.052, 0.054), strict=True)]
    return [*arm("none"), *arm("identity"), *arm("bf16", 0.0001), *int8, *int4]


def write(path: Path, rows: list[Row]) -> Path:
    """As a results file."""
    path.write_text("".join(json.dumps(dict(r)) + "\n" for r in rows))
    return path
