"""Rates and delays of links as users write them: ``200mbit``, ``5ms``."""

import re

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FASTEST = 100e9  # bits/s; a virtual cable carries a third of that


def parse_rate(text: str) -> float | None:
    """Bits per second of a text such as ``200mbit``, ``1gbit``; None for ``none``. ValueError for others."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if text == "none":
        return None
    bits = float(match[1]) * _BITS[match[2]] if match else 0
    if not 8000 <= bits <= _FASTEST:
        raise ValueError(
            f"rate: got {text!r}, wants a number with a unit such as 200mbit or 1gbit, from 8kbit to 100gbit, or none"
        )
    return bits


def parse_delay(text: str) -> float:
    """Seconds of a text such as ``5ms``, ``100us``, ``0.1s``. ValueError for others."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text.lower())
    if not match:
        raise ValueError(f"delay: got {text!r}, wants a number with a unit such as 5ms or 100us")
    return float(match[1]) * _SECONDS[match[2]]
