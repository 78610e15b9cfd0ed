"""Step times and bytes of one model divided over ranks in every layout, behind a link, compressed or not.

    sudo fsdp-lab bench layouts [--model gpt2-mini] [--ranks 2] [--rate 200mbit] [--sequences 4]
        [--length 128] [--layouts fsdp ddp tp sp galaxy galaxy2 gpipe 1f1b] [--methods none int8] [--gradients int8]
        [--quota 1.0 0.33] [--shares 3 1] [--blocks 3 1] [--micro_batches 2] [--steps 5] [--json FILE]

One network namespace a rank, its link shaped to the rate. Every arm computes loss and gradients of the same batch
(``sequences`` of random tokens): data parallel ones (fsdp, ddp) some sequences on each rank, the layouts of
`fsdp_lab.parallel` all sequences with a part of the model, or of the positions. ``methods`` carry activations and their
gradients; ``gradients`` carries parameters' gradients, of data parallel arms and of what a layout replicates, and in
fsdp also the parameters ("none": as they are). No optimizer step is made. ``quota`` gives each rank a part of a
processor only (`experiments.runs.quotas`); with ``shares`` every layout runs with equal shares and with these.
Columns:

    step        milliseconds of the median step until the last rank has ended, rounds of all arms interleaved
    link        milliseconds that rank 0's link needs for them: the interface's bytes over the rate
    counted     bytes that rank 0 sent in a step, as our ledgers count them; -: torch's own collectives
    interface   bytes that its interface sent, headers included
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import comm_compress as cc
from experiments.bench.traffic.layouts.asked import Asked, Lines, asked_for
from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from experiments.runs.quotas import Quotas, check_quotas
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.planning.plan import DATA_PARALLEL
from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES
from fsdp_lab.parallel.planning.table import told
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flag_values import real
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.models.presets import unknown_preset
from fsdp_lab.settings.user_errors import user_errors

CHOICES = (*DATA_PARALLEL, *LAYOUTS, *PIPELINES)
_MODULE = "experiments.bench.traffic.layouts"


def run_arms(
    asked: Sequence[Asked],
    model: str,
    ranks: int,
    rate: str,
    quotas: Sequence[float] | None,
    batch: tuple[int, int],
    steps: int,
) -> Lines:
    """Measures the arms on ranks behind links of ``rate``; ``quotas``: processors of each rank (None: not limited).

    ``batch``: sequences and their length. RuntimeError when a rank fails, UnavailableError as `Namespaces`.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        job, out = Path(folder) / "job.json", Path(folder) / "lines.json"
        arms = [one.plain() for one in asked]
        job.write_text(json.dumps({"arms": arms, "model": model, "batch": batch, "steps": steps, "out": str(out)}))
        net = stack.enter_context(Namespaces(ranks, rate))
        hold = None if quotas is None else stack.enter_context(Quotas(quotas)).hold
        command = [sys.executable, "-m", _MODULE, "--as-rank", str(job)]
        if code := net.run(command, rank_environment(ranks), on_start=hold):
            raise RuntimeError(f"the ranks ended with exit code {code}")
        lines: Lines = json.loads(out.read_text())
    return lines


def table(lines: Lines, rate_bytes: float | None) -> str:
    """The measurements as a table for a terminal, a line for each layout."""
    rows = [
        f"{'layout':9s}{'shares':>9s}  {'carried by':22s}{'step ms':>9s}{'link ms':>9s}"
        f"{'counted MB':>12s}{'interface MB':>14s}"
    ]
    for line in lines:
        link = f"{1e3 * line['interface_bytes'] / rate_bytes:.0f}" if rate_bytes else "-"
        counted = f"{line['counted_bytes'] / 1e6:.2f}" if line["counted_bytes"] else "-"
        rows.append(
            f"{line['layout']:9s}{told(line['shares']):>9s}  {line['method']:22s}{1e3 * line['step_s']:9.0f}{link:>9s}"
            f"{counted:>12s}{line['interface_bytes'] / 1e6:14.2f}"
        )
    return "\n".join(rows)


def _parser() -> argparse.ArgumentParser:
    parser = program(_MODULE, __doc__)
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--quota", type=real(above=0), nargs="+", help="processors of each rank: 1.0 0.33")
    parser.add_argument("--sequences", type=int, default=4, help="sequences of the whole batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layouts", nargs="+", default=[*DATA_PARALLEL, *LAYOUTS], choices=CHOICES)
    parser.add_argument("--shares", type=real(above=0), nargs="+", help="layouts also with these, one for each rank")
    parser.add_argument("--blocks", type=int, nargs="+", help="of each stage of a pipeline (default: equal)")
    parser.add_argument("--micro_batches", type=int, default=2, help="of a pipeline")
    parser.add_argument("--methods", nargs="+", default=["none", "int8"])
    parser.add_argument("--gradients", default="int8")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Build the network, run the ranks in it, print the table."""
    options = _parser().parse_args()
    if options.as_rank is not None:
        # torch and models: the rank's, not of who starts it
        from experiments.bench.traffic.layouts.ranks import (
            rank_main,
        )

        rank_main(options.as_rank)
    with user_errors("bench_layouts"):
        check(options)
        try:
            lines = run_arms(
                asked_for(options),
                options.model,
                options.ranks,
                options.rate,
                options.quota,
                (options.sequences, options.length),
                options.steps,
            )
        except RuntimeError as error:
            print(f"bench_layouts: {error}", file=sys.stderr)
            return 1
    bits = parse_rate(options.rate)
    held = "" if options.quota is None else f", processors {' '.join(f'{each:g}' for each in options.quota)}"
    print(
        f"{options.model}, {options.ranks} ranks{held}, {options.rate}, "
        f"{options.sequences} x {options.length} tokens a step"
    )
    print(table(lines, bits / 8 if bits else None))
    if options.json is not None:
        settings = {key: value for key, value in vars(options).items() if key not in ("json", "as_rank")}
        options.json.write_text(json.dumps({"settings": settings, "lines": lines}, indent=2) + "\n")
    return 0


def check(options: argparse.Namespace) -> None:
    """ValueError for what the ranks could only fail at."""
    if complaint := unknown_preset(options.model):
        raise ValueError(complaint)
    for flag in ("ranks", "sequences", "length", "steps", "micro_batches"):
        if getattr(options, flag) < (2 if flag in ("ranks", "length") else 1):
            raise ValueError(f"{flag}: got {getattr(options, flag)}, which is too few")
    if set(options.layouts) & set(DATA_PARALLEL) and options.sequences % options.ranks:
        raise ValueError(f"sequences: {options.sequences} do not divide among {options.ranks} data parallel ranks")
    if set(options.layouts) & set(PIPELINES) and options.sequences % options.micro_batches:
        raise ValueError(
            f"micro_batches: {options.sequences} sequences do not make {options.micro_batches} of one size"
        )
    for flag in ("shares", "blocks"):
        given = getattr(options, flag)
        if given is not None and len(given) != options.ranks:
            raise ValueError(f"{flag}: {len(given)} given for {options.ranks} ranks; wants one for each")
    if options.quota is not None:
        check_quotas(options.quota, options.ranks)
    for method in (*options.methods, options.gradients):
        if method != "none":
            cc.make(method)
