"""Block-scaled fp8 against ml_dtypes' rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import given, strategies as st

from tests.comm_compress.quantised import few, heavy, round_trip


@few
@given(
    format_=st.sampled_from([("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344)]),
    n=st.integers(1, 600),
    block=st.sampled_from([8, 104, 256]),
    exponent=st.integers(-34, 34),
    seed=st.integers(0, 100),
)
def test_fp8_rounds_like_ml_dtypes(format_: tuple[str, Any, int], n: int, block: int, exponent: int, seed: int) -> None:
    name, dtype, largest = format_
    rows = heavy(1, n, seed) * 10.0**exponent
    rows[~rows.isfinite()] = 0
    got = round_trip("fp8", {"format": name, "block_size": block}, rows)[0].numpy()
    for start in range(0, n, block):
        x = rows[0, start : start + block].numpy()
        scale = np.abs(x).max() / np.float32(largest)
        usable = scale >= np.finfo(np.float32).tiny
        codes = (x * (np.float32(1) / scale)).astype(dtype) if usable else np.zeros(len(x), dtype)
        assert np.array_equal(got[start : start + block], codes.astype(np.float32) * (scale if usable else 0))


@few
@given(
    format_=st.sampled_from([("e4m3", 2.0**-4, 2.0**-10 / 448), ("e5m2", 2.0**-3, 2.0**-17 / 57344)]),
    exponent=st.integers(-20, 30),
    seed=st.integers(0, 100),
)
def test_fp8_errs_relative_to_each_element(format_: tuple[str, float, float], exponent: int, seed: int) -> None:
    name, relative, absolute = format_
    rows = heavy(1, 256, seed) ** 3 * 10.0**exponent
    rows = rows[:, rows[0].isfinite()]
    error = (round_trip("fp8", {"format": name}, rows).double() - rows.double()).abs()
    bound = torch.maximum(relative * rows.double().abs(), absolute * rows.double().abs().max())
    assert (error <= bound * (1 + 1e-5)).all()
