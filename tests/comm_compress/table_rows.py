"""The table's rows, one list a family."""

from __future__ import annotations

from typing import Any

Rows = list[tuple[str, dict[str, Any]]]

CASTS: Rows = [
    ("identity", {}),
    ("bf16", {}),
    ("fp16", {}),
    ("bf16", {"error_feedback": {"dtype": "bf16"}}),
]
UNIFORM: Rows = [
    ("int8", {}),
    ("int8", {"block_size": 32}),
    ("int8", {"scale": "global"}),
    ("int8", {"error_feedback": True}),
    ("int8", {"scale": "global", "error_feedback": True}),
]
SPARSE: Rows = [
    ("topk", {}),
    ("topk", {"ratio": 0.2, "error_feedback": False}),
    ("topk", {"k": 3, "error_feedback": {"decay": 0.5}}),
]
WRAPPERS: Rows = [
    ("int8", {"warmup_steps": 2}),
    ("int8", {"min_numel": 300}),
    ("topk", {"warmup_steps": 1, "error_feedback": {"dtype": "int8", "reset_every": 3}}),
    ("int8", {"layers": {"*.weight": {"method": "topk", "ratio": 0.1}}}),
    ("topk", {"layers": {"*.bias": "none", "*.nothing": "int8"}}),
]
ENTROPY: Rows = [
    ("int8", {"entropy": "rans"}),
    ("int8", {"entropy": "zstd"}),
    ("int8", {"entropy": "rans", "error_feedback": True}),
    ("identity", {"entropy": "zstd"}),
    ("bf16", {"entropy": "rans"}),
    ("topk", {"entropy": "rans"}),
]
DELTA: Rows = [
    ("delta", {}),
    ("delta", {"values": {"method": "int8", "entropy": "rans", "block_size": 2048}}),
    ("delta", {"mode": "lossless"}),
    ("delta", {"mode": "lossless", "min_numel": 300}),
    ("delta", {"layers": {"*.bias": {"method": "delta", "mode": "lossless"}}}),
]
FAMILIES: list[Rows] = [CASTS, UNIFORM, SPARSE, WRAPPERS, ENTROPY, DELTA]
