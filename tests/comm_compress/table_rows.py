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
QUANTISERS: Rows = [
    ("int8", {"rounding": "stochastic", "block_size": 100}),
    ("int8", {"hadamard": True}),
    ("int4", {}),
    ("int4", {"block_size": 30, "error_feedback": {"decay": 0.9}}),
    ("int4", {"hadamard": True, "error_feedback": True}),
    ("int4", {"hadamard": True, "rounding": "stochastic"}),
    ("fp8", {}),
    ("fp8", {"format": "e5m2", "block_size": 33}),
    ("fp8", {"error_feedback": True}),
    ("qsgd", {}),
    ("qsgd", {"bits": 1}),
    ("qsgd", {"bits": 8, "norm": "l2"}),
    ("qsgd", {"bits": 3, "norm": "l2", "bucket_size": 64}),
    ("qsgd", {"bits": 6, "levels": 5, "error_feedback": True}),
    ("nc", {}),
    ("nc", {"bits": 8}),
    ("nc", {"rounding": "nearest"}),
    ("nc", {"bits": 8, "rounding": "nearest", "error_feedback": True}),
    ("terngrad", {}),
    ("terngrad", {"clip_sigmas": 0, "bucket_size": None}),
    ("terngrad", {"packing": "base3", "bucket_size": 64, "error_feedback": True}),
    ("onebit", {}),
    ("onebit", {"group_size": 50, "error_feedback": False}),
    ("signsgd", {}),
    ("signsgd", {"group_size": 100, "error_feedback": False}),
    ("signsgd", {"mode": "majority"}),
    ("signsgd", {"mode": "majority", "group_size": 64, "min_numel": 300}),
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
FAMILIES: list[Rows] = [CASTS, UNIFORM, QUANTISERS, SPARSE, WRAPPERS]
