"""Step times, break-even bandwidths and rankings, predicted from a calibration; and how good these predictions are."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.predict.calibration import NONE, Calibration
from analysis.predict.step_model import step_seconds, wire_bytes

BF16 = "bf16 + bf16"
CALIBRATION = Path(__file__).resolve().parents[2] / "results" / "reference" / "links" / "calibration.json"
BAR_MEDIAN, BAR_WORST = 0.10, 0.20
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
LOW, HIGH = 1e5, 1e12  # bit/s between which a break-even is looked for


@dataclass(frozen=True)
class Prediction:
    """One method behind one link.

    ``below_*`` is the bit/s below which it is faster. None: it is so at no rate; infinity: at any."""

    method: str
    step_s: float
    sent_bytes: float
    below_none: float | None
    below_bf16: float | None

    def row(self) -> dict[str, Any]:
        """The prediction for JSON, which has no infinity: it says "any" instead."""
        return {k: "any" if v == math.inf else v for k, v in asdict(self).items()}


class Predictor:
    """Step times of one calibrated model at one world size."""

    def __init__(self, calibration: Calibration, model: str, world: int, prefetch: int = 1) -> None:
        self.calibration, self.world = calibration, world
        self.model = calibration.model(model, world, prefetch)

    def step_s(self, method: str, bits_per_s: float | None, bucket: float = 0.0) -> float:
        """Seconds of a step; ``rate`` of None is a link without limit."""
        rate = bits_per_s / 8 if bits_per_s else None
        link = self.calibration.link(self.world, rate, bucket)
        return step_seconds(self.model, self.calibration.method(method, self.world), link, self.world)

    def ranked(self, bits_per_s: float | None) -> list[Prediction]:
        """The predictions of all calibrated methods, the fastest first."""
        predictions = [self._one(method, bits_per_s) for method in self.calibration.methods]
        return sorted(predictions, key=lambda p: p.step_s)

    def _one(self, method: str, bits_per_s: float | None) -> Prediction:
        sent = wire_bytes(self.model, self.calibration.method(method, self.world), self.world)

        def below(base: str) -> float | None:
            if base == method or base not in self.calibration.methods:
                return None
            return break_even(lambda rate: self.step_s(method, rate), lambda rate: self.step_s(base, rate))

        return Prediction(method, self.step_s(method, bits_per_s), sent, below(NONE), below(BF16))


def break_even(ours: Callable[[float], float], base: Callable[[float], float]) -> float | None:
    """The highest bandwidth (bit/s) at which ``ours`` stops being faster than ``base``.

    None: it is never faster. Infinity: it is still faster at the highest bandwidth examined."""
    steps = 140
    rates = [LOW * (HIGH / LOW) ** (i / steps) for i in range(steps + 1)]
    faster = [ours(rate) < base(rate) for rate in rates]
    if faster[-1]:
        return math.inf
    if True not in faster:
        return None
    last = steps - faster[::-1].index(True)
    low, high = rates[last], rates[last + 1]
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if ours(middle) < base(middle) else (low, middle)
    return float(low)


def parse_rate(text: str) -> float | None:
    """Bits per second of ``200mbit``, ``1gbit``; None for ``none``. ValueError for anything else."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt])bit", text.lower())
    if not match or not float(match[1]):
        raise ValueError(f"rate: got {text!r}, wants a number with a unit such as 200mbit or 1gbit, or none")
    number, unit = match.groups()
    return float(number) * _BITS[unit]


def show_rate(bits_per_s: float | None) -> str:
    """A rate for a table: ``1.3 Gbit/s``; a dash for None, ``any`` for infinity."""
    if bits_per_s is None:
        return "-"
    if math.isinf(bits_per_s):
        return "any"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.3g} {unit}"
    return f"{bits_per_s:.3g} bit/s"


@dataclass(frozen=True)
class Checked:
    """A measured cell and what was predicted for it, in ms."""

    model: str
    ranks: int
    rate: str
    method: str
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """The prediction's error relative to the measurement; above 0: predicted too slow."""
        return self.predicted_ms / self.measured_ms - 1


def check(calibration: Calibration, lines: Sequence[dict[str, Any]]) -> list[Checked]:
    """Every cell of a matrix with its prediction; methods that were not calibrated are left out."""
    checked = []
    for line in lines:
        if line["method"] not in calibration.methods:
            continue
        predictor = Predictor(calibration, line["model"], line["ranks"], line["prefetch"])
        predicted = predictor.step_s(line["method"], parse_rate(line["rate"]), line["bucket_bytes"])
        place = (line["model"], line["ranks"], line["rate"], line["method"])
        checked.append(Checked(*place, line["step_ms_p50"], predicted * 1e3))
    if not checked:
        raise ValueError("--check: no cell of the matrix is of a calibrated method")
    return checked


def check_table(checked: Sequence[Checked]) -> str:
    """All cells as a table, then the median and the worst error against the bar for predictions."""
    wide = max(28, *(len(c.method) for c in checked))
    place = f"{'model':10s}{'ranks':>5s}{'rate':>12s}  {'method':{wide}s}"
    rows = [f"{place}{'measured ms':>12s}{'predicted':>11s}{'error':>9s}"]
    for c in checked:
        times = f"{c.measured_ms:>12.1f}{c.predicted_ms:>11.1f}{100 * c.error:>+8.1f}%"
        rows.append(f"{c.model:10s}{c.ranks:>5d}{c.rate:>12s}  {c.method:{wide}s}{times}")
    errors = [abs(c.error) for c in checked]
    median, worst = statistics.median(errors), max(errors)
    beyond = sum(error > BAR_WORST for error in errors)
    rows.append("")
    rows.append(f"{len(errors)} cells: median error {100 * median:.1f} % (bar {100 * BAR_MEDIAN:.0f} %)")
    rows.append(f"worst {100 * worst:.1f} % (bar {100 * BAR_WORST:.0f} %), {beyond} cells beyond")
    return "\n".join(rows)


def table(predictions: Sequence[Prediction], base_s: float | None) -> str:
    """The ranking as a table for a terminal, the fastest method first."""
    rows = [
        f"{'method':28s}{'step':>11s}{'against none':>14s}{'sent a step':>13s}"
        f"{'faster than none below':>24s}{'than bf16 below':>18s}"
    ]
    for p in predictions:
        ratio = f"{base_s / p.step_s:.2f}x" if base_s else "-"
        rows.append(
            f"{p.method:28s}{1e3 * p.step_s:>8.1f} ms{ratio:>14s}{p.sent_bytes / 1e6:>10.3f} MB"
            f"{show_rate(p.below_none):>24s}{show_rate(p.below_bf16):>18s}"
        )
    return "\n".join(rows)
