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
    ("int8", {"rounding": "stochastic", "block_size": 104}),
    ("int8", {"hadamard": True}),
    ("int4", {}),
    ("int4", {"block_size": 24, "error_feedback": {"decay": 0.9}}),
    ("int4", {"hadamard": True, "error_feedback": True}),
    ("int4", {"hadamard": True, "rounding": "stochastic"}),
    ("uniform", {}),
    ("uniform", {"levels": 1, "clip_sigmas": 1.2, "block_size": 64, "error_feedback": True}),
    ("uniform", {"levels": 2, "bits": 4, "hadamard": True, "rounding": "stochastic", "scales": "bf16"}),
    ("int4", {"block_size": 96, "scales": "bf16", "error_feedback": True}),
    ("uniform", {"levels": 3, "clip_sigmas": 2.0, "hadamard": True, "error_feedback": {"dtype": "bf16"}}),
    ("fp8", {}),
    ("fp8", {"format": "e5m2", "block_size": 40}),
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
    ("onebit", {"group_size": 56, "error_feedback": False}),
    ("signsgd", {}),
    ("signsgd", {"group_size": 104, "error_feedback": False}),
    ("signsgd", {"mode": "majority"}),
    ("signsgd", {"mode": "majority", "group_size": 64, "min_numel": 300}),
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
    ("topk", {"values": {"method": "qsgd", "bits": 4}, "ratio": 0.1}),
    ("topk", {"values": {"method": "nc", "rounding": "nearest"}, "order": "quantize_first", "ratio": 0.1}),
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
PROJECTIONS: Rows = [
    ("zero", {}),
    ("powersgd", {}),
    ("powersgd", {"rank": 1}),
    ("powersgd", {"rank": 2, "min_compression_rate": 0.1, "error_feedback": False}),
    ("powersgd", {"rank": 3, "min_compression_rate": 0.1, "warm_start": False, "error_feedback": {"dtype": "bf16"}}),
    ("lowrank", {}),
    ("lowrank", {"rank": 1, "lines": 0.0, "line_scales": False, "values": "int4", "error_feedback": False}),
    (
        "lowrank",
        {"rank": 2, "lines": 0.1, "values": "int4", "rest": "identity", "error_feedback": {"decay": 0.9}},
    ),
    ("ecsq", {}),
    ("ecsq", {"step": 0.7, "dead_zone": 0.5, "columns": False, "error_feedback": False}),
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
    ("topk", {"layers": {"*.bias": "none", "embed.*": "int8"}}),
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
    ("delta", {"values": {"method": "uniform", "block_size": 96, "scales": "bf16"}, "predict": 0.8}),
    ("delta", {"values": {"method": "lowrank", "rank": 1, "lines": 0.1}}),
    ("delta", {"values": {"method": "ecsq", "dead_zone": 0.7, "columns": False}, "predict": 0.8}),
    ("delta", {"mode": "grid"}),
    ("delta", {"mode": "grid", "step": 0.2}),
    ("delta", {"mode": "lossless"}),
    ("delta", {"mode": "lossless", "min_numel": 300}),
    ("delta", {"layers": {"*.bias": {"method": "delta", "mode": "lossless"}}}),
]
FAMILIES: list[Rows] = [CASTS, UNIFORM, QUANTISERS, SPARSE, PROJECTIONS, WRAPPERS, ENTROPY, DELTA]
