"""What hides behind computation on a CPU: all-gathers ahead of it, reduce-scatters behind it, or not.

    sudo python -m experiments.links.overlap [--rates none 200mbit] [--methods none "int8 + int8"] [--prefetch 1]
        [--overlap_reduce 0 2] [--model gpt2-mini] [--ranks 2] [--batch 4] [--length 128] [--steps 10] [--repeats 3]
        [--warm_up 2] [--json FILE]

Ranks with as many threads as there are cores for each, one network namespace each; a method is written as the trainer
takes it, gradients + parameters. One start of the ranks measures all methods of a rate, each with one setting after the
other, as often as ``--repeats`` says; each time it is attached anew, so steps that follow the moves (``delta
mode=grid moves=8``) round at random in the first eight, unless more are warm-up. Columns, medians over all repetitions,
in milliseconds a step (a file given with --json is added to):

    step       forward, backward and update; quartiles of all steps after it
    backward   of these the backward
    link       step, less that of the same method and settings without a limit to the rate
    gather     what our ledger saw the ranks wait for all-gathers (none: it sees nothing)
    reduce     the same for reduce-scatters, which may have to wait for a prefetched gather on the same link
    codec      encoding and decoding
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import comm_compress as cc
from experiments.fidelity.method_settings import Run
from experiments.links.models import model_named
from experiments.links.step_times import Job, Overlap, label, measure
from experiments.network.rates_and_delays import parse_rate
from experiments.runs.measurements import Line, Lines
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

METHODS = ("none", "identity + identity", "int8 + int8", "int4 hadamard + delta", "ecsq + delta mode=grid")
Key = tuple[str, str, int, int]  # method, rate, prefetch, overlap_reduce


def an_arm(text: str) -> Run:
    """Both directions' methods of a label, for argparse's ``type``. ValueError for an unknown one."""
    said = cc.labels.parse_arm(text)
    gradients, parameters = said.gradients, said.parameters or cc.labels.Method("none", {})
    for method in (gradients, parameters):
        cc.make(method.name, method.settings)
    return gradients.name, gradients.settings, parameters.name, parameters.settings


def measured(job: Job) -> list[Line]:
    """Run the job behind its link and return its lines. RuntimeError when a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.jsonl"
        measure(replace(job, out=str(out)))
        return [json.loads(line) for line in out.read_text().splitlines()]


def table(lines: Iterable[Line]) -> str:
    """The medians as a table for a terminal, a line for each method and overlap."""
    by_key: dict[Key, list[Line]] = {}
    for line in lines:
        by_key.setdefault((line["method"], line["rate"], line["prefetch"], line["overlap_reduce"]), []).append(line)
    steps = {key: [ms for line in here for ms in line["step_ms"]] for key, here in by_key.items()}
    heads = ("rate", "ahead", "behind", "steps", "step", "quartiles", "backward", "link", "gather", "reduce", "codec")
    rows = [f"{'method':32s}" + "".join(f"{name:>12s}" for name in heads)]
    for key, here in by_key.items():
        method, rate, prefetch, overlap = key
        free, step = (method, "none", prefetch, overlap), statistics.median(steps[key])
        low, _, high = statistics.quantiles(steps[key], n=4)
        link = f"{step - statistics.median(steps[free]):.1f}" if free in by_key and rate != "none" else "-"
        cells = [rate, prefetch, overlap, len(steps[key]), f"{step:.1f}", f"{low:.0f}..{high:.0f}"]
        cells += [f"{statistics.median(line['phase_ms']['backward'] for line in here):.1f}", link]
        cells += [f"{_median(here, part):.1f}" for part in ("gather", "reduce", "codec")]
        rows.append(f"{method:32s}" + "".join(f"{cell!s:>12s}" for cell in cells))
    return "\n".join(rows)


def _median(lines: Iterable[Line], part: str) -> float:
    """The median over measurements of the milliseconds a step that waiting for an operation, or coding, took."""
    ops = {"gather": ("all_gather",), "reduce": ("reduce_scatter",), "codec": ("all_gather", "reduce_scatter")}[part]
    kinds = ("encode_ms", "decode_ms") if part == "codec" else ("wire_ms",)
    each = [sum(unit[kind] for op in ops for unit in line["ops"][op].values() for kind in kinds) for line in lines]
    return float(statistics.median(each))


def main(argv: Sequence[str]) -> int:
    """Measure every method with one setting after the other, print, and add to the file."""
    parser = program("experiments.links.overlap", __doc__)
    parser.add_argument("--rates", nargs="+", default=["none", "200mbit"])
    parser.add_argument("--methods", type=an_arm, nargs="+")
    parser.add_argument("--prefetch", type=whole(0), nargs="+", default=[1], help="how many units ahead")
    parser.add_argument("--overlap_reduce", type=whole(0), nargs="+", default=[0, 2], help="how many units behind")
    parser.add_argument("--model", default="gpt2-mini", help="preset")
    parser.add_argument("--ranks", type=whole(2), default=2)
    parser.add_argument("--batch", type=whole(1), default=4, help="sequences of a rank")
    parser.add_argument("--length", type=whole(2), default=128, help="tokens of a sequence")
    parser.add_argument("--steps", type=whole(2), default=10)
    parser.add_argument("--repeats", type=whole(1), default=3)
    parser.add_argument("--warm_up", type=whole(1), default=2, help="steps that do not count")
    parser.add_argument("--json", type=new_file())
    options = parser.parse_args(argv)
    methods = options.methods or [an_arm(text) for text in METHODS]  # made only now: they need torch, --help does not
    lines = Lines(options.json)
    with user_errors("bench overlap"):
        model_named(options.model)
        for rate in options.rates:
            parse_rate(rate)
        for rate in options.rates:
            for line in measured(
                Job(
                    options.ranks,
                    rate,
                    options.model,
                    methods,
                    out="",
                    least=options.steps,
                    most=options.steps,
                    overlaps=[Overlap(*each) for each in product(options.prefetch, options.overlap_reduce)],
                    shape=[options.batch, options.length],
                    repeats=options.repeats,
                    warm_up=options.warm_up,
                )
            ):
                lines.add(line)
            print(f"{rate}: {', '.join(map(label, methods))}", file=sys.stderr, flush=True)
    print(table(lines.all))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
