"""Rates and delays are read as users write them."""

import pytest

from experiments.network.rates_and_delays import parse_delay, parse_rate


def test_rates_and_delays() -> None:
    assert [parse_rate(text) for text in ("200mbit", "1.5Gbit", "64kbit", "none")] == [200e6, 1.5e9, 64e3, None]
    assert [parse_delay(text) for text in ("0ms", "100us", "0.5s")] == [0, pytest.approx(1e-4), 0.5]
