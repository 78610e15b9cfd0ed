"""Codecs at memory speed: every method's time against a plain copy and against other people's code.

    python -m experiments.bench.codecs [--device cpu|cuda] [--methods int8 topk ...] [--mib 64] [--threads 1]
        [--repeats 9] [--no_peers] [--json FILE] [--markdown FILE] [--chart FILE]

One rank's part in collectives of one unit, no network (`experiments.bench.codecs.timing`): encode, encode with error
feedback, decode and sum the rows of 2 and of 8 ranks, and, where parameters may be carried, decode the rows of 2.
Methods with rounds of their own: encode is what comes before the first request, sum what follows the last answer, all
rounds everything. Columns:

    GB/s       float32 bytes that are encoded, or that the received rows stand for, 1e9 a second (of changes without
               loss: bytes of bf16 weights)
    x memcpy   the same over that of a plain copy of the unit, taken before every single measurement
    roofline   the least bytes that must move (encode: input read, message written; with feedback: residual read
               and written too; sum: messages read, float32 total written) at the copy's rate, over the time
    ms         median (quartiles)
    speed-up   over the first of several --threads

A method's own state is not among the least bytes. Then every method beside
its peers (`experiments.bench.codecs.peers`, `experiments.bench.codecs.eager`).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import comm_compress as cc
from experiments.bench.codecs.chart import draw
from experiments.bench.codecs.eager import eager
from experiments.bench.codecs.peers import peers
from experiments.bench.codecs.timing import ENCODE, OPERATIONS, Timing, measure, runs
from experiments.bench.codecs.unit import Unit
from experiments.fidelity.method_settings import TIMED_METHODS, Settings, plain
from experiments.runs.method_flag import a_method
from fsdp_lab.files.atomic import write_bytes, write_json
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

MIB = {"cpu": 64.0, "cuda": 1024.0}
ALIKE = 1.05  # medians of one run differ by so much without a reason
PICTURES = (".png", ".svg", ".pdf")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Variant(NamedTuple):
    """A method with its settings, without and with error feedback."""

    method: str
    config: Settings
    plain: cc.Compressor
    with_feedback: cc.Compressor | None

    @property
    def label(self) -> str:
        """The variant as a text that tables print."""
        return label(self.method, self.config)


def label(method: str, config: Settings) -> str:
    """A method and the settings that differ from its defaults: texts speak for themselves, numbers are given with their
    name."""
    return " ".join([method, *(_setting(key, value) for key, value in config.items())])


def _setting(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{key}: " + label(value["method"], {k: v for k, v in value.items() if k != "method"})
    if value is True:
        return key
    return value if isinstance(value, str) else f"{key}={value}"


def variant(method: str, config: Settings) -> Variant:
    """The variant that a user asked for, built. ValueError when there is no such method."""
    if method == "none":
        raise ValueError("--methods: none registers no hook, there is nothing to measure")
    compressor = plain(method, config)
    feeds_back = (
        compressor.traits.for_gradients and not compressor.traits.lossless and not compressor.traits.no_feedback
    )
    return Variant(
        method, config, compressor, cc.make(method, {**config, "error_feedback": True}) if feeds_back else None
    )


def measured(v: Variant, unit: Unit, repeats: int, with_peers: bool) -> tuple[list[Timing], set[str]]:
    """One method's rows and its peers', with the current number of threads, and which peers are not installed."""
    ours = runs(v.plain, v.with_feedback, unit)
    theirs, missing = peers(v.method, v.config, unit) if with_peers else ([], set())
    references = eager(v.plain, v.with_feedback, unit) if with_peers else []
    return measure(v.method, v.config, [*ours, *references, *theirs], unit, repeats), missing


def machine(device: torch.device, rows: Sequence[Timing]) -> dict[str, Any]:
    """What was measured on: hardware, caches, versions, and the bandwidth of a plain copy by number of threads."""
    known = hardware()
    del known["host"]
    copies: dict[int, list[float]] = {}
    for row in rows:
        copies.setdefault(row.threads, []).append(2 * row.copied_bytes / row.copy_seconds / 1e9)
    return {
        **known,
        "caches": caches(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else known["cpu"],
        "memory_gb_s": {threads: round(statistics.median(c), 2) for threads, c in copies.items()},
        "versions": versions(),
    }


def caches() -> dict[str, str]:
    """The sizes of the processor's caches as Linux gives them, by level and kind; empty on other systems."""
    sizes = {}
    for index in sorted(CACHES.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        sizes[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return sizes


def by_encode(rows: Sequence[Timing]) -> list[Timing]:
    """Our rows, methods that encode nearest to memory speed first; the rows of a method stay together."""
    ours = [row for row in rows if not row.implementation]
    fraction = {label(r.method, r.config): r.roofline or 0 for r in reversed(ours) if r.operation == ENCODE}

    def place(row: Timing) -> tuple[float, str, int]:
        name = label(row.method, row.config)
        return -fraction[name], name, OPERATIONS.index(row.operation)

    return sorted(ours, key=place)


def table(rows: Sequence[Timing]) -> str:
    """Our rows as a table in Markdown."""
    ours = by_encode(rows)
    first = ours[0].threads
    several = any(row.threads != first for row in ours)
    base = {_name(row): row.seconds for row in ours if row.threads == first}
    heads = ["method", "operation", "GB/s", "x memcpy", "roofline", "ms", *(["threads", "speed-up"] if several else [])]
    lines = []
    for row in ours:
        cells = [label(row.method, row.config), row.operation, *map(_number, (row.gb_s, row.memcpy_ratio))]
        cells += [_number(row.roofline or 0), _milliseconds(row)]
        if several:
            cells += [str(row.threads), f"{base[_name(row)] / row.seconds:.2f}"]
        lines.append(cells)
    return _markdown(heads, lines, left=2)


def peer_table(rows: Sequence[Timing], missing: set[str]) -> str:
    """Each of our operations beside every peer's as a table in Markdown; nothing if there are no peers."""
    ours = {(_name(row), row.threads): row for row in rows if not row.implementation}
    lines = []
    for peer in rows:
        own = ours.get((_name(peer), peer.threads))
        if peer.implementation and own is not None:
            cells = [label(peer.method, peer.config), peer.operation, peer.implementation]
            cells.append(_verdict(own.seconds, peer.seconds))
            lines.append([*cells, _milliseconds(own), _milliseconds(peer), str(peer.threads)])
    heads = ["method", "operation", "peer", "ours is", "ours ms", "peer ms", "threads"]
    blocks = ["\n" + _markdown(heads, lines, left=4)] if lines else []
    if missing:
        blocks.append("\nNot installed: " + ", ".join(sorted(missing)) + ".")
    return "\n".join(blocks)


def _verdict(ours: float, theirs: float) -> str:
    ratio = theirs / ours
    if 1 / ALIKE < ratio < ALIKE:
        return "as fast"
    return f"{ratio:.1f} times faster" if ratio > 1 else f"{1 / ratio:.1f} times SLOWER"


def _name(row: Timing) -> tuple[str, str]:
    return label(row.method, row.config), row.operation


def _milliseconds(row: Timing) -> str:
    return f"{_number(1e3 * row.seconds)} ({_number(1e3 * row.q1)}-{_number(1e3 * row.q3)})"


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, rule, *lines])


def as_json(row: Timing) -> dict[str, Any]:
    """A row, and the numbers that follow from it, for JSON."""
    derived = {"gb_s": row.gb_s, "memcpy_ratio": row.memcpy_ratio, "roofline": row.roofline}
    return {**dataclasses.asdict(row), **derived}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags. ValueError for values that make no sense."""
    parser = program("experiments.bench.codecs", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--methods", type=a_method, nargs="+", default=list(TIMED_METHODS), metavar="NAME")
    parser.add_argument("--mib", type=real(above=0), help="size of the unit in float32: 64, or 1024 on cuda")
    parser.add_argument("--threads", type=whole(1), nargs="+", default=[1], metavar="N")
    parser.add_argument("--repeats", type=whole(1), default=9)
    parser.add_argument("--no_peers", action="store_true", help="measure our methods alone")
    for name, what in (("json", "everything"), ("markdown", "the tables"), ("chart", "roofline fractions (png, svg)")):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: torch sees no CUDA device")
    for flag in ("json", "markdown", "chart"):
        path = getattr(options, flag)
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"--{flag}: the folder of {path} does not exist")
    if options.chart is not None and options.chart.suffix not in PICTURES:
        raise ValueError(f"--chart: {options.chart} must end in one of {', '.join(PICTURES)}")
    if options.mib is None:
        options.mib = MIB[options.device]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the files; returns 1 where a method failed."""
    with user_errors("bench_codecs"):
        options = parsed(arguments)
        variants = [variant(m, config) for m in dict.fromkeys(options.methods) for config in TIMED_METHODS.get(m, [{}])]
        device = torch.device(options.device)
        unit = Unit(options.mib, device)
    results = Results()
    for threads in dict.fromkeys(options.threads):
        torch.set_num_threads(threads)
        for number, v in enumerate(variants, 1):
            print(f"{v.label} ({number} of {len(variants)}), {threads} threads", file=sys.stderr, flush=True)
            try:
                rows, absent = measured(v, unit, options.repeats, not options.no_peers)
            except Exception as error:  # no kernel for this device, out of memory: the others are measured all the same
                results.failed[v.label] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                print(f"{v.label}: {results.failed[v.label]}", file=sys.stderr, flush=True)
                continue
            results.rows += rows
            results.missing |= absent
            _write(options, results, device)  # now: it may be stopped before the next one is done
    if not results.rows:
        print("bench_codecs: no method could be measured: the lines above say why", file=sys.stderr)
        return 1
    print(_page(results))
    if options.chart is not None:
        shown = [row for row in by_encode(results.rows) if row.threads == options.threads[0]]
        draw([(label(row.method, row.config), row) for row in shown], options.chart)
    return 1 if results.failed else 0


@dataclasses.dataclass
class Results:
    """What was measured so far: rows, peers that are not installed, and why methods failed, by label."""

    rows: list[Timing] = dataclasses.field(default_factory=list)
    missing: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def _page(results: Results) -> str:
    failed = [f"\nFailed: {name}: {why}" for name, why in results.failed.items()]
    return "\n".join(part for part in (table(results.rows), peer_table(results.rows, results.missing), *failed) if part)


def _write(options: argparse.Namespace, results: Results, device: torch.device) -> None:
    """Write the files that were asked for, but for the chart."""
    if options.json is not None:
        settings = {key: getattr(options, key) for key in ("device", "methods", "mib", "threads", "repeats")}
        record = {
            "machine": machine(device, results.rows),
            "settings": settings,
            "missing_peers": sorted(results.missing),
        }
        rows = [as_json(row) for row in results.rows]
        write_json(options.json, {**record, "failed": results.failed, "rows": rows})
    if options.markdown is not None:
        write_bytes(options.markdown, (_page(results) + "\n").encode())
