"""A calibration whose parameters are known, because it was written from them."""

from __future__ import annotations

from typing import Any

# seconds; a call's latency, work a byte, share of the link
EXCHANGE, GATHER, SCATTER = (1e-3, 1e-9, 0.9), (2e-3, 2e-9, 0.6), (2e-3, 4e-9, 0.45)
UNITS = {"root": 1_000_000, "h.0": 500_000, "h.1": 250_000}
BITS = {"identity": 32.0, "bf16": 16.0, "int8": 8.0}


def document(cores: int = 2, ranks: int = 2) -> dict[str, Any]:
    """What `experiments.links.calibrate` would write of such a machine."""
    return {
        "machine": {"cores": cores},
        "collectives": [line for kind in KINDS.items() for line in _collectives(*kind, ranks)],
        "steps": [step(method, ranks) for method in BITS] + [step("none", ranks)],
    }


def step(method: str, ranks: int) -> dict[str, Any]:
    """A line of `experiments.links.step_times`: encoding takes 1 ms and 1 ns a byte, decoding 2 ms and 0.5 ns."""
    ops = {op: {unit: _call(method, n, ranks) for unit, n in UNITS.items()} for op in ("reduce_scatter", "all_gather")}
    return {
        "model": "blocks",
        "ranks": ranks,
        "prefetch": 1,
        "method": f"{method} + {method}",
        "own_ms": {"forward": 10.0, "backward": 20.0, "update": 4.0},
        "unit_forward_ms": {"root": 0.0, "h.0": 3.0, "h.1": 1.0},
        "unit_elements": UNITS,
        "ops": ops,
    }


def _call(method: str, n: int, ranks: int) -> dict[str, float]:
    if method == "none":
        keys = ("calls", "elements", "sent_bytes", "extra_collectives", "encode_ms", "wire_ms", "decode_ms")
        return dict.fromkeys(keys, 0.0)
    elements = n * (ranks - 1) / ranks
    return {
        "calls": 1,
        "elements": elements,
        "sent_bytes": elements * BITS[method] / 8,
        "extra_collectives": 0,
        "wire_ms": 0.0,
        "encode_ms": 1 + 4 * n * 1e-6,
        "decode_ms": 2 + 4 * n * 0.5e-6,
    }


KINDS = {"exchange": EXCHANGE, "all_gather": GATHER, "reduce_scatter": SCATTER, "all_reduce": (1e-3, 0.0, 1.0)}


def _collectives(kind: str, costs: tuple[float, float, float], ranks: int) -> list[dict[str, Any]]:
    alpha, per_byte, share = costs
    lines = [{"kind": kind, "ranks": ranks, "rate": None, "bytes": 8, "seconds": alpha}]
    for size in (1 << 20, 1 << 22):
        lines.append({"kind": kind, "ranks": ranks, "rate": None, "bytes": size, "seconds": alpha + per_byte * size})
        lines.append({"kind": kind, "ranks": ranks, "rate": 8e7, "bytes": size, "seconds": size / (1e7 * share)})
    return lines
