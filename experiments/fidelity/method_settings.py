"""Which settings stand for each method in our tables: its default first, then weaker and stronger ones."""

from __future__ import annotations

from typing import Any

import comm_compress as cc

Settings = dict[str, Any]

GRADIENT_METHODS: dict[str, list[Settings]] = {
    "identity": [{}],
    "bf16": [{}],
    "fp16": [{}],
    "fp8": [{}, {"format": "e5m2"}, {"block_size": 32}, {"block_size": 4096}],
    "int8": [
        {},
        {"block_size": 64},
        {"block_size": 2048},
        {"hadamard": True},
        {"scale": "global"},
        {"entropy": "rans"},
    ],
    "int4": [
        {},
        {"block_size": 32},
        {"block_size": 2048},
        {"hadamard": True},
        {"entropy": "rans"},
        {"entropy": "zstd"},
    ],
    "uniform": [
        {},
        {"levels": 1},
        {"levels": 7},
        {"levels": 1, "clip_sigmas": 1.2},
        {"levels": 7, "scales": "bf16", "block_size": 96},
    ],
    "taco": [{}, {"format": "e5m2", "group_size": 256}],
    "tahquant": [{}, {"high_share": 1.0}, {"high_share": 0.0}, {"outlier_ratio": None}],
    "qsgd": [{}, {"bits": 2, "bucket_size": 128}, {"bits": 2}, {"bits": 8}, {"norm": "l2"}],
    "nc": [{}, {"bits": 8}, {"rounding": "nearest"}, {"entropy": "rans"}],
    "terngrad": [{}, {"clip_sigmas": 0.0}, {"packing": "base3"}],
    "binned": [{}, {"num_bits": 1}, {"num_bits": 4}, {"range_sigmas": 6.0, "centre": "bin"}],
    "onebit": [{}, {"group_size": 128}, {"group_size": 8192}],
    "signsgd": [{}, {"mode": "majority"}, {"group_size": 128}],
    "topk": [
        {},
        {"ratio": 0.001},
        {"ratio": 0.05},
        {"ratio": 0.2},
        {"selection": "chunked", "ratio": 0.015625},
        {"values": {"method": "qsgd", "bits": 4}},
        {"values": "int8", "indices": "elias_fano"},
        {"selection": "chunked", "k": 64, "values": "binned"},
    ],
    "randomk": [{}, {"ratio": 0.1}, {"ratio": 0.5}, {"ratio": 0.1, "scaling": "unbiased"}],
    "thresholdv": [{}, {"quantile": 0.9}, {"quantile": 0.999}],
    "dgc": [{}, {"ratio": 0.01}, {"ratio": 0.05}],
    "dct": [{}, {"k": 8, "values": "int8"}],
    "powersgd": [{}, {"rank": 1}, {"rank": 8}, {"rank": 32}],
    "lowrank": [
        {},
        {"values": "int4"},
        {"rank": 4, "values": "int4", "lines": 0.01},
        {"rank": 2},
        {"rank": 4},
        {"rank": 16},
        {"rank": 20},
        {"lines": 0.0, "line_scales": False},
    ],
    "ecsq": [
        {},
        {"step": 0.25},
        {"step": 0.5},
        {"step": 0.95},
        {"step": 1.0},
        {"step": 2.0},
        {"step": 2.5},
        {"columns": False},
        {"dead_zone": 0.7},
    ],
    "owners": [{}, {"there": {"method": "lowrank", "rank": 20}}],
    "sketch": [{}, {"ratio": 0.005}, {"ratio": 0.05}],
    # without its uncompressed first steps, which would be all that a table of two collectives shows
    "gradiveq": [{"basis_warmup": 0}, {"basis_warmup": 0, "ratio": 0.25}, {"basis_warmup": 0, "ratio": 0.5}],
    "zero": [{}],
}

LAGGING = {"method": "ecsq", "step": 1.4, "dead_zone": 0.7, "columns": False}
PARAMETER_METHODS: dict[str, list[Settings]] = {
    "bf16": [{}],
    "fp16": [{}],
    "fp8": [{}],
    "int8": [{}],
    "int4": [{}, {"block_size": 32}],
    "uniform": [{}],
    "delta": [
        {},
        {"values": {"method": "uniform", "block_size": 96, "scales": "bf16"}, "predict": 0.8},
        {"values": LAGGING, "predict": 0.8},
        {"values": "lowrank"},
        {"mode": "grid"},
        {"mode": "grid", "step": 0.005},
        {"mode": "grid", "step": 0.05},
        {"mode": "grid", "step": 0.1},
        {"mode": "grid", "step": 0.2},
        {"values": {"method": "ecsq", "step": 2}},
        {"mode": "lossless"},
    ],
}

# whose speed is measured: every method's default, and settings that take other kernels
TIMED_METHODS: dict[str, list[Settings]] = {
    **{method: settings[:1] for method, settings in GRADIENT_METHODS.items()},
    "int8": [{}, {"hadamard": True}, {"scale": "global"}, {"entropy": "rans"}],
    "qsgd": [{}, {"bits": 8}, {"norm": "l2"}],
    "nc": [{}, {"bits": 8}],
    "terngrad": [{}, {"packing": "base3"}],
    "signsgd": [{}, {"mode": "majority"}],
    "topk": [
        {},
        {"selection": "chunked", "ratio": 0.015625},
        {"values": {"method": "qsgd", "bits": 4}},
    ],
    "delta": [{}, {"mode": "grid"}, {"mode": "lossless"}],
}

Run = tuple[str, Settings, str, Settings]  # gradients' method and settings, parameters' method and settings


def plain(name: str, config: dict[str, Any]) -> cc.Compressor:
    """The method without the error feedback that it may have by default."""
    from comm_compress.wrappers.error_feedback import ErrorFeedback  # torch: flags need the tables' names alone

    compressor = cc.make(name, config)
    assert compressor is not None
    if isinstance(compressor, ErrorFeedback):
        compressor = cc.make(name, {**config, "error_feedback": False})
        assert compressor is not None
    return compressor


# both directions, for slow links: what `experiments.links.calibrate` and `experiments.links.matrix` run
LINK_RUNS: list[Run] = [
    ("none", {}, "none", {}),
    ("identity", {}, "identity", {}),
    ("bf16", {}, "bf16", {}),
    ("int8", {}, "int8", {}),
    ("int4", {}, "int4", {}),
    ("signsgd", {}, "int4", {}),
    ("onebit", {}, "int4", {}),
    ("topk", {"ratio": 0.01}, "int4", {}),
]
