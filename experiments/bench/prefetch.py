"""What prefetched all-gathers save behind a slow link: the default run with and without them, in turn.

    sudo python -m experiments.bench.prefetch [--rate 200mbit] [--methods none int8] [--steps 20] [--repeats 1]
        [--prefetch 0 1] [--json FILE] [-- FLAG VALUE...]

Two ranks, one network namespace each. A method carries both directions (``none``: FSDP2's own collectives).
Columns, the median over all runs (a file given with --json is added to):

    step       milliseconds of a step, the run's median
    exposed    step, less that of the same method without a limit to the rate
    gather     milliseconds a step that our ledger saw the ranks wait for all-gathers (none: how long they took)
    reduce     the same for reduce-scatters, which may have to wait for a prefetched gather on the same link

What follows ``--`` goes to every run of fsdp_lab.train.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence

from experiments.network.namespaces import Namespaces
from experiments.network.training import train_behind
from experiments.runs.measurements import Line, Lines, before_and_after_dashes
from experiments.runs.method_flag import a_method, check_training_flags
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

RANKS = 2


def measure(rate: str, method: str, prefetch: int, steps: int, flags: Sequence[str]) -> Line:
    """Run one training behind the link and return what it measured. RuntimeError when it fails."""
    own = ["--comm_compress", method, "--param_compress", method, "--fsdp_prefetch", str(prefetch)]
    with Namespaces(RANKS, rate) as net:
        row = train_behind(net, [*own, "--max_steps", str(steps), "--log_interval", str(steps), *flags])
    return {
        "rate": rate,
        "method": method,
        "prefetch": prefetch,
        "steps": row["steps"],
        "step_ms": row["step_time_ms_p50"],
        "gather_ms": row["comm_time_ms_by_op"]["all_gather"] / row["steps"],
        "reduce_ms": row["comm_time_ms_by_op"]["reduce_scatter"] / row["steps"],
        "val_loss": row["val_loss"],
    }


def table(lines: Iterable[Line]) -> str:
    """The medians as a table."""
    by_key: dict[tuple[str, str, int], list[Line]] = {}
    for line in lines:
        by_key.setdefault((line["method"], line["rate"], line["prefetch"]), []).append(line)

    def median(key: tuple[str, str, int], column: str) -> float:
        return float(statistics.median(line[column] for line in by_key[key]))

    heads = [
        ("rate", 10),
        ("prefetch", 10),
        ("runs", 6),
        ("step ms", 10),
        ("exposed ms", 12),
        ("gather ms", 11),
        ("reduce ms", 11),
    ]
    rows = [f"{'method':10s}" + "".join(f"{name:>{width}s}" for name, width in heads)]
    for method, rate, prefetch in by_key:
        key, free = (method, rate, prefetch), (method, "none", prefetch)
        exposed = (
            f"{median(key, 'step_ms') - median(free, 'step_ms'):.0f}" if free in by_key and rate != "none" else "-"
        )
        cells = f"{len(by_key[key]):>6d}{median(key, 'step_ms'):>10.0f}{exposed:>12s}"
        cells += f"{median(key, 'gather_ms'):>11.1f}{median(key, 'reduce_ms'):>11.1f}"
        rows.append(f"{method:10s}{rate:>10s}{prefetch:>10d}{cells}")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Run with and without prefetching in turn, print, and add to the file."""
    own, passed_on = before_and_after_dashes(argv)
    parser = program("experiments.bench.prefetch", __doc__)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--methods", type=a_method, nargs="+", default=["none", "identity", "int8"])
    parser.add_argument("--prefetch", type=whole(0), nargs="+", default=[0, 1], help="how many blocks ahead")
    parser.add_argument("--steps", type=whole(1), default=20)
    parser.add_argument("--repeats", type=whole(1), default=1)
    parser.add_argument("--json", type=new_file())
    options = parser.parse_args(own)
    lines = Lines(options.json)
    with user_errors("bench_prefetch"):
        check_training_flags(passed_on)
        for _ in range(options.repeats):
            for method in options.methods:
                for prefetch in options.prefetch:
                    lines.add(measure(options.rate, method, prefetch, options.steps, passed_on))
    print(table(lines.all))
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
