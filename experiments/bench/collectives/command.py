"""What a collective costs a rank beyond memory and wire, and where that time goes.

    python -m experiments.bench.collectives [--arms "int8 + int8" "ecsq + delta mode=grid" ...] [--model gpt2-mini]
        [--elements 1024 65536 ...] [--ranks 2] [--repeats 15] [--json FILE]

One rank's part in every collective of a training step: the hooks of FSDP2 with their ledger, on the units of a model
(``--model``) and on single weights of some sizes (``--elements``: a rank's whole parameters and a whole gradient). The
other ranks are not there: what they would send is taken to be what this rank sends. An arm is a method for gradients
and one for parameters. Times are the calling thread's on its core, so that other programs disturb them less; arms take
turns, and medians over the repeats are shown. Columns, in milliseconds:

    memory       a plain copy of the unit's float32 bytes, before every collective
    codec        the collective without transport
    least        the fastest repeat, which other programs disturbed least
    fixed        codec less memory
    python, torch, kernel, allocation, ledger
                 where that goes: interpreter, torch calls that are no allocation, compiled kernels, fresh memory,
                 counting. Watching a step costs time of its own: parts are measured in steps that are not timed
                 themselves, less what watching a call costs on average, and what they leave of ``codec`` is python
                 (which can come out below zero where there is little of it)
    calls        how many calls of torch and of kernels

A line of a model is a whole step: a reduce-scatter and an all-gather for every unit, and a second all-gather, for
backward, for every block.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import comm_compress as cc
from comm_compress.core.workspace import WorkspacePool
from comm_compress.labels import parse_arm
from experiments.bench.collectives.loopback import Call, Traffic, looped
from experiments.bench.collectives.parts import Clock, Part, watched
from experiments.bench.collectives.units import Unit, one_weight, units_of_model
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

ARMS = (
    "identity + identity",
    "int8 + int8",
    "int4 hadamard + delta",
    "ecsq + delta mode=grid",
    "lowrank + delta mode=grid",
    "topk ratio=0.01 + delta",
)
ELEMENTS = tuple(1 << power for power in range(10, 27, 4))
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
    spelled = parse_arm(label)
    methods = [None if method is None else cc.make(*method) for method in (spelled.gradients, spelled.parameters)]
    for method, fits, what in zip(
        methods, ("for_gradients", "for_parameters"), ("gradients", "parameters"), strict=True
    ):
        if method is not None and not getattr(method.traits, fits):
            raise ValueError(f"--arms: {label!r}: {method.name} does not carry {what}")
    pool = WorkspacePool()
    return Arm(label, where, [Traffic(unit, world, methods[0], methods[1], pool) for unit in units])


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


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's flags and their values, checked."""
    parser = program("experiments.bench.collectives", __doc__)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="LABEL")
    parser.add_argument("--model", nargs="*", default=["gpt2-mini"], metavar="PRESET")
    parser.add_argument("--elements", type=whole(64, 1 << 28), nargs="*", default=list(ELEMENTS), metavar="N")
    parser.add_argument("--ranks", type=whole(2, 64), default=2)
    parser.add_argument("--repeats", type=whole(1), default=15)
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write all lines")
    options: argparse.Namespace = parser.parse_args(arguments)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file."""
    with user_errors("bench_collectives"):
        options = parsed(arguments)
        torch.set_num_threads(1)
        places = [(preset, units_of_model(preset, options.ranks)) for preset in options.model]
        places += [(str(n), [one_weight(n, options.ranks)]) for n in options.elements]
        for label in options.arms:
            made(label, "", [], options.ranks)  # refused before anything is measured
    lines: list[Line] = []
    for number, (where, units) in enumerate(places, 1):
        print(f"{where} ({number} of {len(places)})", file=sys.stderr, flush=True)
        lines += measure([made(label, where, units, options.ranks) for label in options.arms], options.repeats)
    print(table(lines))
    if options.json is not None:
        machine = {name: value for name, value in hardware().items() if name != "host"}
        settings = {name: getattr(options, name) for name in ("arms", "model", "elements", "ranks", "repeats")}
        record = {"machine": machine, "versions": versions(), "settings": settings}
        options.json.write_text(json.dumps({**record, "lines": [as_json(line) for line in lines]}, indent=1) + "\n")
    return 0
