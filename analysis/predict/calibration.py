"""From measurements (`experiments.links.calibrate` writes them) to the parameters of `step_model`.

A calibration file is JSON: ``machine`` (``cores``), ``collectives`` (lines of kind, ranks, rate in bit/s or null,
bytes, seconds) and ``steps`` (lines of `links.step_times`, taken without a limit to the rate). Each parameter is
a median of measurements or a straight line through them; nothing is fitted to measured steps behind a slow link.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.predict.step_model import ITEM, Codec, Cost, Link, Method, Model, Unit, step_seconds

Line = Mapping[str, Any]
STOCK = {"reduce_scatter": Codec(kind="reduce_scatter", times_sent=2), "all_gather": Codec(kind="all_gather")}
NONE = "none + none"
_SMALL = 64 << 10  # below this a message's bytes take no time worth counting


class Calibration:
    """The parameters at the world sizes measured, and by stated rules at others.

    Beyond what was measured: a rank's share of the cores falls as cores / ranks once there are more ranks than cores
    (``shared=False``: every rank has cores of its own, as in a cluster), and a call's ``alpha`` grows with the number
    of peers.
    """

    def __init__(self, document: Line, shared: bool = True) -> None:
        missing = [key for key in ("machine", "collectives", "steps") if not document.get(key)]
        if missing:
            raise ValueError(f"calibration: no {', '.join(missing)} in it; make it with fsdp-lab links calibrate")
        self.cores = int(document["machine"]["cores"])
        self._collectives: Sequence[Line] = document["collectives"]
        self._steps: Sequence[Line] = document["steps"]
        self._shared = shared

    @classmethod
    def load(cls, path: Path, shared: bool = True) -> Calibration:
        """Read a calibration. ValueError when the file holds none."""
        return cls(read_json(path), shared)

    @property
    def models(self) -> list[str]:
        """The names of all models that steps were measured of, in the order of the file."""
        return list(dict.fromkeys(line["model"] for line in self._steps))

    @property
    def methods(self) -> list[str]:
        """The names of all methods that steps were measured with, in the order of the file."""
        return list(dict.fromkeys(line["method"] for line in self._steps))

    def worlds(self, model: str) -> list[int]:
        """Numbers of ranks at which a model was measured."""
        return sorted({line["ranks"] for line in self._steps if line["model"] == model})

    def link(self, world: int, rate: float | None, bucket: float = 0.0) -> Link:
        """A rank's link of ``rate`` bytes a second (None: no limit)."""
        base = _nearest(world, (line["ranks"] for line in self._collectives))
        lines = [line for line in self._collectives if line["ranks"] == base]
        costs = {
            kind: _cost([x for x in lines if x["kind"] == kind]) for kind in dict.fromkeys(x["kind"] for x in lines)
        }
        peers = (world - 1) / (base - 1)
        costs = {
            k: Cost(c.alpha_s * peers, c.cpu_s_per_byte * self._slower(world, base), c.efficiency)
            for k, c in costs.items()
        }
        return Link(rate or math.inf, costs, bucket, busy=self._shared and world >= self.cores)

    def model(self, name: str, world: int, prefetch: int = 1) -> Model:
        """A measured model: the median over all methods, since what a rank computes does not depend on them."""
        lines = [line for line in self._steps if line["model"] == name]
        if not lines:
            raise ValueError(f"model {name!r} is not in the calibration; it has {', '.join(self.models)}")
        base = _nearest(world, (line["ranks"] for line in lines))
        # the ledger says what hooks took; without hooks communication hides in the phases
        lines = [line for line in lines if line["ranks"] == base and line["method"] != NONE]
        own = {
            p: statistics.median(line["own_ms"][p] for line in lines) / 1e3 for p in ("forward", "backward", "update")
        }
        elements = lines[0]["unit_elements"]
        names = [unit for unit in elements if unit != "root"]
        inside = {u: statistics.median(line["unit_forward_ms"][u] for line in lines) / 1e3 for u in elements}
        # The rest is FSDP2's copying in and out, which goes by size, and the root's own layers; where these are
        # large (the head of a large vocabulary) the root has most of the parameters, too.
        outside = max(own["forward"] - math.fsum(inside[u] for u in names), 0.0) / sum(elements.values())
        forward = {u: (inside[u] if u in names else 0.0) + outside * elements[u] for u in elements}
        whole = math.fsum(forward.values())
        units = {u: Unit(elements[u], forward[u], own["backward"] * forward[u] / whole) for u in elements}
        blocks = [units[u] for u in names]
        model = Model(units["root"], blocks, own["update"], prefetch=lines[0]["prefetch"])
        meeting_s = self._waiting(model, lines, base) / len(units)
        # a rank updates its shard
        model = replace(model, update_s=own["update"] * base / world, meeting_s=meeting_s, prefetch=prefetch)
        return model.slowed(self._slower(world, base))

    def _waiting(self, model: Model, lines: Sequence[Line], world: int) -> float:
        """By how much steps without a limit were longer than everything else accounts for: the median over methods."""
        link = self.link(world, None)
        parts = ("encode_ms", "wire_ms", "decode_ms")
        missing = []
        for line in lines:
            hooks = math.fsum(call[part] for op in line["ops"].values() for call in op.values() for part in parts)
            seconds = (math.fsum(line["own_ms"].values()) + hooks) / 1e3
            missing.append(seconds - step_seconds(model, self.method(line["method"], world), link, world))
        return max(0.0, statistics.median(missing))

    def method(self, name: str, world: int) -> Method:
        """A measured method, by its name in the matrix (``int8 + int4``)."""
        if name == NONE:
            return Method(STOCK["reduce_scatter"], STOCK["all_gather"])
        lines = [line for line in self._steps if line["method"] == name]
        if not lines:
            raise ValueError(f"method {name!r} is not in the calibration; it has {', '.join(self.methods)}")
        base = _nearest(world, (line["ranks"] for line in lines))
        lines = [line for line in lines if line["ranks"] == base]
        return Method(*(_codec(lines, op, self._slower(world, base)) for op in ("reduce_scatter", "all_gather")))

    def _slower(self, world: int, base: int) -> float:
        """How much longer the same work takes with ``world`` ranks than with ``base``."""
        return max(world, self.cores) / max(base, self.cores) if self._shared else min(1.0, self.cores / base)


def read_json(path: Path) -> Any:
    """A JSON document, or JSON lines as a list. ValueError names the file and what is wrong."""
    try:
        text = path.read_text()
        return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: is not JSON: {error}") from None


def _nearest(world: int, measured: Iterable[int]) -> int:
    return min(set(measured), key=lambda ranks: (abs(math.log(ranks / world)), ranks))


def _cost(lines: Sequence[Line]) -> Cost:
    """What calls of one kind cost at one world size, from measurements at several sizes and rates."""
    alpha = statistics.median(x["seconds"] for x in lines if x["bytes"] <= _SMALL)
    free = [x for x in lines if x["rate"] is None and x["bytes"] > _SMALL]
    cpu = statistics.median(max(x["seconds"] - alpha, 0) / x["bytes"] for x in free) if free else 0.0
    shares: dict[float, list[float]] = {}
    for x in lines:
        if x["rate"] is not None and x["bytes"] > _SMALL:
            shares.setdefault(x["bytes"], []).append(min(x["bytes"] / x["seconds"] / (x["rate"] / 8), 1.0))
    efficiency = tuple((size, statistics.median(values)) for size, values in sorted(shares.items()))
    return Cost(alpha, cpu, efficiency or ((1.0, 1.0),))


def _codec(lines: Sequence[Line], op: str, slower: float) -> Codec:
    """The times of one direction of a method, from its units' calls in the ledger."""
    calls = [
        (line["unit_elements"][unit] * ITEM, seen)
        for line in lines
        for unit, seen in line["ops"][op].items()
        if seen["calls"]
    ]
    if not calls:
        return STOCK[op]  # this direction had no hook

    def times(part: str) -> tuple[float, float]:
        call, per_byte = straight_line([(size, seen[part] / seen["calls"] / 1e3) for size, seen in calls])
        return call * slower, per_byte * slower

    def total(key: str) -> float:
        return math.fsum(seen[key] for _, seen in calls)

    bits = 8 * total("sent_bytes") / total("elements")
    return Codec(
        "exchange", bits, *times("encode_ms"), *times("decode_ms"), total("extra_collectives") / total("calls")
    )


def straight_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The least-squares line as (intercept, slope), neither below 0: the time of a call and of a byte."""
    mean: Callable[[Iterable[float]], float] = lambda values: statistics.fmean(values)  # noqa: E731
    x, y = mean(size for size, _ in points), mean(seconds for _, seconds in points)
    spread = mean((size - x) ** 2 for size, _ in points)
    slope = mean((size - x) * (seconds - y) for size, seconds in points) / spread if spread else y / x
    if slope <= 0:
        return max(y, 0.0), 0.0
    if y - slope * x < 0:
        return 0.0, mean(s * t for s, t in points) / mean(s * s for s, _ in points)
    return (y - slope * x, slope) if spread else (0.0, slope)
