"""Rows of the whole field whose truth is planted: a committed row of `none` with other optimizers, bits and losses."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis.rows.reading import Row, read

REFERENCE = Path(__file__).resolve().parents[3] / "results/reference/fresh_weights/bar.jsonl"
SEEDS, TUNING_SEEDS, RATES = (1, 2, 3, 4), (11,), (0.0006, 0.002, 0.006)
BEST = 0.002  # the planted rate at which every arm loses least
REPLICAS = {"dp_replicas": 2}
DEMO = {"optimizer": "demo", "optimizer_compress": "dct", **REPLICAS}
MUON = {"optimizer": "muon"}
LOCAL = {"outer": "diloco", "outer_every": 30, **REPLICAS}
HALF = {"comm_compress": "bf16", "param_compress": "bf16"}
ARMS: Mapping[str, tuple[float, Mapping[str, float], Mapping[str, Any]]] = {
    # how much worse, bits by operation, settings
    "none": (0.0, {"reduce_scatter": 32, "all_gather": 56}, {}),
    "bf16 + bf16": (0.0002, {"reduce_scatter": 16, "all_gather": 28}, HALF),
    "none, by muon": (-0.01, {"reduce_scatter": 32, "all_gather": 56, "optimizer": 8}, MUON),
    "none, optimizer dct, by demo, 2 replicas": (0.03, {"optimizer": 0.64}, DEMO),
    "none, every 30 diloco, 2 replicas": (0.2, {"outer": 0.3}, LOCAL),
    "topk + int8": (0.3, {"reduce_scatter": 1, "all_gather": 14}, {"comm_compress": "topk", "param_compress": "int8"}),
}

SHORT = {
    "none, by muon": "muon",
    "none, optimizer dct, by demo, 2 replicas": "demo dct",
    "none, every 30 diloco, 2 replicas": "every 30 diloco",
}


def short(arm: str) -> str:
    """What the chart calls an arm of `ARMS`."""
    return SHORT.get(arm, arm)


@functools.cache
def reference() -> Row:
    """A committed row of `none`."""
    return next(row for row in read(REFERENCE).rows if row["compress_method"] == "none")


Arms = Mapping[str, tuple[float, Mapping[str, float], Mapping[str, Any]]]


def row(arm: str, seed: int, rate: float = BEST, worse: float = 0.0, arms: Arms = ARMS, **changes: Any) -> Row:
    """A run of an arm of ``arms``. ``worse``: nats beyond the planted ones; ``changes`` go to the row or its config."""
    by_arm, bits, settings = arms[arm]
    base = json.loads(json.dumps(dict(reference())))
    steps, parameters = base["steps"], base["num_parameters"]
    sent = {op: round(wanted / 8 * parameters * steps / 2) for op, wanted in bits.items()}
    off = 0.0 if rate == BEST else 0.05
    luck = 0.02 * (seed % 3) + 0.0004 * ((seed * 7 + len(arm)) % 5)  # the second part is not shared by arms
    hour = list(arms).index(arm) % 24
    base["config"] |= {"learning_rate": rate, "seed": seed, "results_path": "planted.jsonl", **settings}
    base |= {
        "seed": seed,
        "run_name": f"{arm}-{rate}-{seed}",
        "time_utc": f"2026-11-{10 + seed % 15:02d}T{hour:02d}:{RATES.index(rate) * 10:02d}:00Z",
        "compress_method": base["config"]["comm_compress"],
        "param_compress_method": base["config"]["param_compress"],
        "val_loss": 4.6 + luck + by_arm + off + worse,
        "data_digest": f"{seed:032x}",
        "bytes_compressed_by_op": sent,
        "bytes_compressed_total": sum(sent.values()),
        "elements_by_op": dict.fromkeys(bits, parameters * steps // 2),
        "bytes_raw_by_op": dict.fromkeys(bits, 4 * parameters * steps // 2),
        "grad_rel_error": None,
        "loss_curve": None,
    }
    for name, value in changes.items():
        (base["config"] if name in base["config"] or name in settings else base)[name] = value
    return Row(base)


def judged(arms: Iterable[str] = ARMS, seeds: Iterable[int] = SEEDS, **changes: Any) -> list[Row]:
    """A run of every arm with every seed that judges, at the best rate."""
    return [row(arm, seed, **changes) for seed in seeds for arm in arms]


def tuned(arms: Iterable[str] = ARMS, seeds: Iterable[int] = TUNING_SEEDS) -> list[Row]:
    """A run of every arm at every rate with the tuning seeds."""
    return [row(arm, seed, rate) for seed in seeds for rate in RATES for arm in arms]


def write(path: Path, rows: Iterable[Row]) -> Path:
    """The rows as a results file."""
    path.write_text("".join(json.dumps(dict(one)) + "\n" for one in rows))
    return path
