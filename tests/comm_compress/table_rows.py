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
PROJECTIONS: Rows = [
    ("zero", {}),
    ("powersgd", {}),
    ("powersgd", {"rank": 1}),
    ("powersgd", {"rank": 2, "min_compression_rate": 0.1, "error_feedback": False}),
    ("powersgd", {"rank": 3, "min_compression_rate": 0.1, "warm_start": False, "error_feedback": {"dtype": "bf16"}}),
    ("sketch", {}),
    ("sketch", {"sketch_rows": 3, "columns": 50, "k": 5, "oversample": 2, "keep": "k"}),
    ("sketch", {"sketch_ratio": 0.5, "ratio": 0.1, "error_feedback": False}),
    ("gradiveq", {}),
    ("gradiveq", {"slice_size": 8, "dimensions": 2, "basis_warmup": 1, "refresh_every": 3}),
    ("gradiveq", {"slice_size": 8, "energy_loss": 0.3, "basis_warmup": 0, "refresh_every": 2, "centre": True}),
    ("gradiveq", {"slice_size": 4, "ratio": 0.5, "basis_warmup": 2, "sample_steps": 2, "error_feedback": True}),
]
WRAPPERS: Rows = [
    ("int8", {"warmup_steps": 2}),
    ("int8", {"min_numel": 300}),
    ("topk", {"warmup_steps": 1, "error_feedback": {"dtype": "int8", "reset_every": 3}}),
    ("int8", {"layers": {"*.weight": {"method": "topk", "ratio": 0.1}}}),
    ("topk", {"layers": {"*.bias": "none", "*.nothing": "int8"}}),
]
FAMILIES: list[Rows] = [CASTS, UNIFORM, SPARSE, PROJECTIONS, WRAPPERS]
