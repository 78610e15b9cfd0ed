"""Codecs at memory speed: every method's time against a plain copy and against other people's code.

    fsdp-lab bench codecs [--device cpu|cuda] [--methods int8 topk ...] [--mib 64] [--threads 1]
        [--repeats 9] [--no_peers] [--json FILE] [--markdown FILE] [--chart FILE]

One rank's part in collectives of one unit, no network (`timing`): encode, encode with error feedback, decode and sum
the rows of 2 and of 8 ranks, and, where parameters may be carried, decode the rows of 2. Methods with rounds of their
own: encode is what comes before the first request, sum what follows the last answer, all rounds everything. Columns:

    GB/s       float32 bytes that are encoded, or that the received rows stand for, 1e9 a second (of changes without
               loss: bytes of bf16 weights)
    x memcpy   the same over that of a plain copy of the unit, taken before every single measurement
    roofline   the least bytes that must move (encode: input read, message written; with feedback: residual read
               and written too; sum: messages read, float32 total written) at the copy's rate, over the time
    ms         median (quartiles)
    speed-up   over the first of several --threads

A method's own state is not among the least bytes. Then every method beside
its peers (`experiments.bench.traffic.codecs.peers`, `experiments.bench.traffic.codecs.eager`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.fidelity.method_settings import TIMED_METHODS
from experiments.runs.method_flag import a_method
from fsdp_lab.settings.flag_values import real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

MIB = {"cpu": 64.0, "cuda": 1024.0}
PICTURES = (".png", ".svg", ".pdf")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags. ValueError for values that make no sense."""
    parser = program("experiments.bench.traffic.codecs", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--methods", type=a_method, nargs="+", default=list(TIMED_METHODS), metavar="NAME")
    parser.add_argument("--mib", type=real(above=0), help="size of the unit in float32: 64, or 1024 on cuda")
    parser.add_argument("--threads", type=whole(1), nargs="+", default=[1], metavar="N")
    parser.add_argument("--repeats", type=whole(1), default=9)
    parser.add_argument("--no_peers", action="store_true", help="measure our methods alone")
    for name, what in (("json", "everything"), ("markdown", "the tables"), ("chart", "roofline fractions (png, svg)")):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.device == "cuda":
        import torch  # a second, which --help need not wait for

        if not torch.cuda.is_available():
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
        import torch  # this and the methods take seconds, which --help and wrong flags need not wait for

        from experiments.bench.traffic.codecs.chart import draw
        from experiments.bench.traffic.codecs.results import Results, page, write
        from experiments.bench.traffic.codecs.tables import by_encode
        from experiments.bench.traffic.codecs.unit import Unit
        from experiments.bench.traffic.codecs.variants import label, measured, variant

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
            write(options, results, device)  # now: it may be stopped before the next one is done
    if not results.rows:
        print("bench_codecs: no method could be measured: the lines above say why", file=sys.stderr)
        return 1
    print(page(results))
    if options.chart is not None:
        shown = [row for row in by_encode(results.rows) if row.threads == options.threads[0]]
        draw([(label(row.method, row.config), row) for row in shown], options.chart)
    return 1 if results.failed else 0
