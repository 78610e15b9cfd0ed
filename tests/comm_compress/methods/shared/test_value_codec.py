"""Values that a sparsifier kept, through another method's codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from comm_compress.methods.shared.value_codec import probe, reproduces_its_values
from tests.comm_compress.methods.sparsifiers.samples import normal, round_trip, top_by_numpy
from tests.comm_compress.table import codec


@pytest.mark.parametrize("values", ["int8", {"method": "int8", "block_size": 32}, "bf16", "fp16", "identity"])
@pytest.mark.parametrize("indices", ["best", "rice", "int32"])
@pytest.mark.parametrize("name", ["topk", "thresholdv"])
def test_kept_values_go_through_the_codec_as_a_row(name: str, values: Any, indices: str) -> None:
    rows = normal(2, 3000) ** 3
    kept = round_trip(codec(name, {"indices": indices}), rows)
    got = round_trip(codec(name, {"indices": indices, "values": values}), rows)
    method, settings_ = (values, {}) if isinstance(values, str) else (values["method"], {"block_size": 32})
    for row, exact in zip(got, kept, strict=True):
        places = exact.nonzero().flatten()
        assert len(places) >= 15
        expected = torch.zeros_like(row)
        expected[places] = round_trip(codec(method, settings_), exact[places].unsqueeze(0))[0]
        assert torch.equal(row, expected)


def test_a_codec_of_rows_of_variable_size_may_carry_values() -> None:
    rows = normal(3, 2000)
    config = {"ratio": 0.05, "values": {"method": "thresholdv", "threshold": 2.5}}
    got = round_trip(codec("topk", config), rows)
    kept = round_trip(codec("topk", {"ratio": 0.05}), rows)
    assert torch.equal(got, kept * (kept.abs() >= 2.5))
    assert got.any()


def test_quantised_first_is_the_topk_of_the_quantised_row() -> None:
    rows = normal(2, 2000)
    got = round_trip(codec("topk", {"ratio": 0.2, "values": "bf16", "order": "quantize_first"}), rows)
    rounded = rows.bfloat16().float()
    differs = False
    for row, exact, y in zip(rounded.numpy(), rows.numpy(), got.numpy(), strict=True):
        places = top_by_numpy(row, 400)
        expected = np.zeros_like(row)
        expected[places] = row[places]
        assert np.array_equal(y, expected)
        differs |= not np.array_equal(places, top_by_numpy(exact, 400))
    assert differs, "ties among rounded values should have changed the selection somewhere"


def test_which_codecs_give_back_their_own_values() -> None:
    assert reproduces_its_values(codec("bf16", {}))
    assert not reproduces_its_values(codec("int8", {}))
    assert torch.isfinite(probe()).all()
    assert (probe() > 0).any()
    assert (probe() < 0).any()
