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
    ("topk", {"ratio": 0.05, "indices": "packed"}),
    ("topk", {"ratio": 0.05, "indices": "rice", "error_feedback": False}),
    ("topk", {"ratio": 0.3, "indices": "bitmap", "values": "int8"}),
    ("topk", {"selection": "chunked", "chunk_size": 64, "ratio": 0.05}),
    ("topk", {"selection": "chunked", "chunk_size": 100, "k": 3, "indices": "packed", "values": "bf16"}),
    ("topk", {"values": {"method": "int8", "block_size": 32}, "indices": "int32", "ratio": 0.1}),
    ("topk", {"values": "bf16", "order": "quantize_first", "ratio": 0.1}),
    ("topk", {"values": {"method": "thresholdv", "quantile": 0.5}, "ratio": 0.1}),
    ("randomk", {}),
    ("randomk", {"scaling": "unbiased", "ratio": 0.25}),
    ("randomk", {"k": 5, "error_feedback": False}),
    ("randomk", {"values": "int8", "ratio": 0.1}),
    ("randomk", {"scaling": "unbiased", "values": "bf16", "ratio": 0.1}),
    ("randomk", {"values": {"method": "thresholdv", "threshold": 0.5}, "ratio": 0.2}),
    ("thresholdv", {}),
    ("thresholdv", {"threshold": 0.5}),
    ("thresholdv", {"threshold": 3.0, "indices": "elias_fano", "values": "int8"}),
    ("thresholdv", {"quantile": 0.9, "indices": "bitmap", "error_feedback": False}),
    ("dgc", {}),
    ("dgc", {"ratio": 0.02, "warmup_ratio_steps": 3, "clip_unit_norm": 1.0}),
    ("dgc", {"ratio": 0.05, "momentum_masking": False, "values": "int8", "indices": "rice"}),
]
WRAPPERS: Rows = [
    ("int8", {"warmup_steps": 2}),
    ("int8", {"min_numel": 300}),
    ("topk", {"warmup_steps": 1, "error_feedback": {"dtype": "int8", "reset_every": 3}}),
    ("int8", {"layers": {"*.weight": {"method": "topk", "ratio": 0.1}}}),
    ("topk", {"layers": {"*.bias": "none", "*.nothing": "int8"}}),
]
FAMILIES: list[Rows] = [CASTS, UNIFORM, SPARSE, WRAPPERS]
