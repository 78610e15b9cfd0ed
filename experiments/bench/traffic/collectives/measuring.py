"""The collectives of a training step by each arm, run in turn by the clock: their times, and how these are made up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from comm_compress.core.workspace import WorkspacePool
from experiments.bench.traffic.arms import methods_of
from experiments.bench.traffic.collectives.loopback import Call, Traffic, looped
from experiments.bench.traffic.collectives.parts import Clock, Part, watched
from experiments.bench.traffic.collectives.units import Unit

WARM_UP = 4  # steps: kernels are compiled, error feedback has both of its buffers
SHOWN: tuple[Part, ...] = ("python", "torch", "kernel", "allocation", "ledger")
COLUMNS = ("memory", "codec", "least", "fixed", *SHOWN)


@dataclass
class Line:
    """One collective of one unit by one arm: seconds of each repeat, those of its parts, and calls of each part."""

    arm: str
    where: str
    unit: str
    op: str
    elements: int
    sent_bytes: float = 0.0
    codec: list[float] = field(default_factory=list)
    copied: list[float] = field(default_factory=list)
    parts: list[dict[Part, float]] = field(default_factory=list)
    calls: dict[Part, int] = field(default_factory=dict)

    def milliseconds(self) -> dict[str, float]:
        """The medians (and the least) by column; the parts add up to ``codec``."""
        memory, codec = statistics.median(self.copied), statistics.median(self.codec)
        split = {part: statistics.median(reading[part] for reading in self.parts) for part in SHOWN}
        split["python"] = codec - sum(split[part] for part in SHOWN if part != "python")
        whole = {"memory": memory, "codec": codec, "least": min(self.codec), "fixed": codec - memory}
        return {name: 1e3 * seconds for name, seconds in (*whole.items(), *split.items())}


@dataclass
class Arm:
    """An arm's collectives of all units, and the lines that they fill."""

    label: str
    where: str
    traffic: list[Traffic]
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)

    def step(self, run: Callable[[Traffic, Call, Line], None]) -> None:
        """Run every collective of a step: all units' parameters, then their gradients, the last unit's first."""
        steps = [(traffic, traffic.step()) for traffic in self.traffic]
        gathers = [(t, call) for t, calls in steps for call in calls if call.name != "reduce_scatter"]
        reductions = [(t, call) for t, calls in reversed(steps) for call in calls if call.name == "reduce_scatter"]
        for traffic, call in gathers + reductions:
            call.prepare()
            run(traffic, call, self._line(traffic, call))

    def _line(self, traffic: Traffic, call: Call) -> Line:
        key = traffic.unit.name, call.name
        if key not in self.lines:
            self.lines[key] = Line(self.label, self.where, *key, traffic.elements)
        return self.lines[key]


def timed(traffic: Traffic, call: Call, line: Line) -> None:
    """Run a collective and add its time, and that of a plain copy before it."""
    clock = Clock()
    traffic.copy()
    line.copied.append(math.fsum(clock.reading().values()))
    with looped(clock):
        clock.reset()
        call.run()
        reading = clock.reading()
    line.codec.append(math.fsum(reading.values()) - reading["transport"])


def split(traffic: Traffic, call: Call, line: Line) -> None:
    """Run a collective, and add how its time is made up and how many bytes it sent."""
    clock, before = Clock(), traffic.ledger.totals().sent_bytes
    with looped(clock), watched(clock):
        clock.reset()
        call.run()
        line.parts.append(clock.reading())
    line.calls, line.sent_bytes = dict(clock.calls), traffic.ledger.totals().sent_bytes - before


def made(label: str, where: str, units: Sequence[Unit], world: int) -> Arm:
    """The arm of a label such as ``int8 + delta``. ValueError when it says no method, or one that cannot do that."""
    methods = methods_of(label)
    pool = WorkspacePool()
    return Arm(label, where, [Traffic(unit, world, *methods, pool) for unit in units])


def measure(arms: Sequence[Arm], repeats: int) -> list[Line]:
    """Warm all arms up, then let them take turns: a step by the clock, and one that is watched."""
    for arm in arms:
        for _ in range(WARM_UP):
            arm.step(lambda traffic, call, line: _silently(call))
    for _ in range(repeats):
        for run in (timed, split):
            for arm in arms:
                arm.step(run)
    return [line for arm in arms for line in arm.lines.values()]


def _silently(call: Call) -> None:
    with looped(Clock()):
        call.run()


def table(lines: Sequence[Line]) -> str:
    """The medians as a table: each collective of a single weight, and the sum of all collectives of a model's step."""
    heads = ["where", "arm", "op", "sent KB", *COLUMNS, "calls"]
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        op = "step" if line.where != line.unit else line.op
        groups.setdefault((line.where, line.arm, op), []).append(line)
    rows = [heads, ["---", "---", "---", *["---:"] * (len(heads) - 3)]]
    for key, group in groups.items():
        medians = [line.milliseconds() for line in group]
        sums = [math.fsum(m[column] for m in medians) for column in COLUMNS]
        calls = sum(line.calls.get("torch", 0) + line.calls.get("allocation", 0) for line in group)
        kernels = sum(line.calls.get("kernel", 0) for line in group)
        sent = f"{sum(line.sent_bytes for line in group) / 1e3:.1f}"
        rows.append([*key, sent, *(f"{ms:.3f}" for ms in sums), f"{calls} + {kernels}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def as_json(line: Line) -> dict[str, Any]:
    """A line for JSON: its medians in milliseconds, and its counts."""
    known = {name: getattr(line, name) for name in ("arm", "where", "unit", "op", "elements", "sent_bytes", "calls")}
    return {**known, "repeats": len(line.codec), "ms": line.milliseconds()}
