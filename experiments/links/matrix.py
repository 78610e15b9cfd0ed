"""Step times measured behind slow links: models x ranks x rates x methods.

    sudo python -m experiments.links.matrix --out matrix.jsonl [--models default blocks] [--ranks 2 4]
        [--rates 100mbit 200mbit 1gbit 10gbit] [--methods int8 topk] [--again 1.3]

`analysis.predict --check` and `predict.speedup` read them. Every cell is a line of `links.step_times`: the
median step, the ledger's bytes, the interface's bytes. One start of the ranks measures all methods of a rate in turn.
Cells that the file has are not measured again, so an interrupted run goes on where it was. About 15 minutes for all
112 cells on two cores, with nothing else running.

Each cell carries the time of a yardstick (a matrix product and a copy, by all ranks at once, just before and after),
which tells when something else took the machine: ``--again 1.3`` replaces the cells whose yardstick took 1.3 times
the least.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.fidelity.method_settings import LINK_RUNS, Run
from experiments.links.models import MODELS
from experiments.links.step_times import Job, Line, label, measure
from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.settings.flag_values import new_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

RATES = ("100mbit", "200mbit", "1gbit", "10gbit")
FEW = ("none", "identity", "bf16", "int8", "int4", "topk")  # on the default model, which waits for the processor


def jobs(
    models: Iterable[str], ranks: Iterable[int], rates: Iterable[str], methods: Sequence[str] | None, out: Path
) -> list[Job]:
    """What is to be measured: a job for each start of the ranks."""
    return [
        Job(world, rate, model, _chosen(model, methods), str(out))
        for model in models
        for world in ranks
        for rate in rates
    ]


def missing(job: Job, lines: Iterable[Line]) -> Job:
    """The job without the runs that the lines have already."""
    have = {line["method"] for line in lines if (line["model"], line["ranks"], line["rate"]) == _place(job)}
    runs = [run for run in job.runs if label(run) not in have]
    return replace(job, runs=runs)


def undisturbed(lines: Sequence[Line], factor: float) -> list[Line]:
    """The lines whose yardstick took less than ``factor`` times the least that it took with as many ranks."""
    least: dict[int, float] = {}
    for line in lines:
        least[line["ranks"]] = min(line["yardstick_ms"], least.get(line["ranks"], line["yardstick_ms"]))
    return [line for line in lines if line["yardstick_ms"] < factor * least[line["ranks"]]]


def load(path: Path) -> list[Line]:
    """The lines of a file; none when there is no file. ValueError when the file is of another kind."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for line in lines:
            line["model"], line["ranks"], line["rate"], line["method"], line["yardstick_ms"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"--out: {path} holds something else than this program's lines; name another file") from None
    return lines


def _place(job: Job) -> tuple[str, int, str]:
    return job.model, job.ranks, job.rate


def _chosen(model: str, methods: Sequence[str] | None) -> list[Run]:
    if methods is None:
        methods = FEW if model == "default" else [run[0] for run in LINK_RUNS]
    return [run for run in LINK_RUNS if run[0] in methods]


def main(argv: Sequence[str]) -> int:
    """Measure what the file does not have yet."""
    parser = program("experiments.links.matrix", __doc__)
    parser.add_argument("--out", type=new_file(), required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ranks", type=whole(2), nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--methods", nargs="+", choices=[run[0] for run in LINK_RUNS], help="gradients' methods")
    parser.add_argument(
        "--again", type=real(above=0), metavar="FACTOR", help="replace cells whose yardstick took so much longer"
    )
    options = parser.parse_args(argv)
    with user_errors("link_matrix"):
        for rate in options.rates:
            parse_rate(rate)
        lines = load(options.out)
        if options.again is not None:
            kept = undisturbed(lines, options.again)
            print(f"{len(lines) - len(kept)} of {len(lines)} cells are measured again", file=sys.stderr)
            options.out.write_text("".join(json.dumps(line) + "\n" for line in kept))
        for job in jobs(options.models, options.ranks, options.rates, options.methods, options.out):
            rest = missing(job, load(options.out))
            if rest.runs:
                print(
                    f"{job.model}, {job.ranks} ranks, {job.rate}: {len(rest.runs)} methods", file=sys.stderr, flush=True
                )
                measure(rest)
    for line in load(options.out):
        sent = sum(line["sent_bytes"].values()) or line["interface_bytes"]
        print(
            f"{line['model']:10s}{line['ranks']:3d}{line['rate']:>10s}  {line['method']:28s}"
            f"{line['step_ms_p50']:9.1f} ms {sent / 1e6:9.3f} MB  yardstick {line['yardstick_ms']:.1f} ms"
        )
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
