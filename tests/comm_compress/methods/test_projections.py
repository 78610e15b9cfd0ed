"""What projections share: NaN under FSDP2, and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from comm_compress import make
from tests.comm_compress.integrations.test_fsdp import _nan_step
from tests.distributed import run_ranks

UNDER_FSDP: list[tuple[str, dict[str, Any]]] = [
    ("zero", {}),
    ("powersgd", {"rank": 1, "min_compression_rate": 0.1}),
    ("sketch", {"k": 2, "keep": "k"}),
    ("gradiveq", {"slice_size": 2, "dimensions": 1, "basis_warmup": 1, "refresh_every": 2}),
    ("gradiveq", {"slice_size": 2, "dimensions": 1, "basis_warmup": 1, "refresh_every": 9}),
]


def _nan_steps() -> list[Any]:
    return [_nan_step(name, config) for name, config in UNDER_FSDP]


def test_a_nan_in_one_ranks_backward_is_seen_on_all_and_remembered_by_none() -> None:
    """In a second step: with warm factors, in a compressed step and in one that renews the bases."""
    for results in run_ranks(2, _nan_steps):
        for (finite, seen, _, untouched), row in zip(results, UNDER_FSDP, strict=True):
            assert not finite, row
            assert seen, row
            assert untouched, row


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("powersgd", {"rank": 0}, "rank"),
        ("powersgd", {"min_compression_rate": 0}, "min_compression_rate"),
        ("sketch", {"sketch_rows": 4}, "sketch_rows"),
        ("sketch", {"sketch_ratio": 0.0}, "sketch_ratio"),
        ("sketch", {"columns": 0}, "columns"),
        ("sketch", {"ratio": 1.5}, "ratio"),
        ("sketch", {"k": 0}, "k"),
        ("sketch", {"oversample": 0.5}, "oversample"),
        ("gradiveq", {"slice_size": 1}, "slice_size"),
        ("gradiveq", {"dimensions": 129}, "dimensions"),
        ("gradiveq", {"dimensions": 8, "energy_loss": 0.1}, "energy_loss"),
        ("gradiveq", {"energy_loss": 1.0}, "energy_loss"),
        ("gradiveq", {"refresh_every": 1}, "refresh_every"),
        ("gradiveq", {"sample_steps": 50}, "sample_steps"),
        ("gradiveq", {"basis_warmup": -1}, "basis_warmup"),
    ],
)
def test_settings_out_of_range_are_named(name: str, config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: {key} = "):
        make(name, config)
