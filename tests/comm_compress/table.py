"""One table of every method and its interesting settings: the conformance tests run over all of it."""

from __future__ import annotations

from typing import Any

from comm_compress import Compressor, make

TABLE: list[tuple[str, dict[str, Any]]] = [
    ("identity", {}),
    ("bf16", {}),
    ("fp16", {}),
    ("int8", {}),
    ("int8", {"block_size": 32}),
    ("int8", {"scale": "global"}),
    ("int8", {"error_feedback": True}),
    ("int8", {"scale": "global", "error_feedback": True}),
    ("bf16", {"error_feedback": {"dtype": "bf16"}}),
    ("topk", {}),
    ("topk", {"ratio": 0.2, "error_feedback": False}),
    ("topk", {"k": 3, "error_feedback": {"decay": 0.5}}),
]
IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in config.items()) or 'default'}" for name, config in TABLE]


def build(name: str, config: dict[str, Any]) -> Compressor:
    """The compressor of one row."""
    compressor = make(name, config)
    assert compressor is not None
    return compressor
