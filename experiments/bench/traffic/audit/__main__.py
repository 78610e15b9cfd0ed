"""Is what `cc.audit` counts what leaves the network interface, for every kind of parallel training?

    sudo fsdp-lab bench audit [--repeats 3] [--only NAME ...]
        [--out results/reference/links/audit.json]

Each rank has a network namespace of its own, without a limit to its rate. Every job makes one step unobserved and then
``--repeats`` audited ones. Columns, the sum over all ranks:

    payload     what ranks handed over to collectives
    sent        what the audit says left for other ranks (gloo's conventions)
    interface   what the interfaces sent, less the headers of Ethernet, IP and TCP (66 bytes a packet)
    off by      interface over sent, less 1; gloo's own headers, 144 bytes a message, are in it
    worst rank  the same for the rank where it is furthest from 0, as a share of what it sent or, where that is less, of
                what a rank sent on average; less what TCP sent again, which the kernel counts for each connection
    ledger      what the handle of comm_compress claims

With --out, the numbers go to that file; the table, and each job's audit on rank 0, to one beside it that ends in .md.
Exit code 1 when any rank is off by more than 2 percent.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.bench.traffic.audit.runs import COLLECTIVES, RUNS
from experiments.network.namespaces import Namespaces
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

TOLERANCE = 0.02
HEADS = ("job", "ranks", "payload MB", "sent MB", "interface MB", "off by", "worst rank", "ledger MB")


def measure(run: str, repeats: int, only: list[str]) -> list[dict[str, Any]]:
    """Run the jobs of one run on ranks of their own. RuntimeError when a rank fails."""
    ranks, jobs = RUNS[run]
    if only and not set(jobs) & set(only):
        return []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.bench.traffic.audit", "--as-rank", folder, "--run", run]
        command += ["--repeats", str(repeats), *(["--only", *only] if only else [])]
        with Namespaces(ranks) as net:
            if code := net.run(command, rank_environment(ranks)):
                raise RuntimeError(f"a rank of the run {run!r} ended with exit code {code}")
        by_rank = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return [{"job": lines[0]["job"], "ranks": list(lines)} for lines in zip(*by_rank, strict=True)]


def off_by(ranks: list[dict[str, Any]]) -> list[float]:
    """How much more each rank's interface sent than was counted, as a share of what was counted: there, or, where that
    is less, by a rank on average, so that a rank that sends nothing in a collective may send its few headers.

    What TCP sent again excuses as much of a surplus, never a lack (as in `fsdp_lab.measure.wire_check`).
    """
    mean = summed(ranks, "sent_bytes") / len(ranks)
    return [_surplus(rank) / max(mean, rank["sent_bytes"]) for rank in ranks]


def _surplus(rank: dict[str, Any]) -> int:
    surplus = int(rank["interface_payload_bytes"]) - int(rank["sent_bytes"])
    return surplus - min(max(surplus, 0), int(rank["resent_bytes"]))


def summed(ranks: list[dict[str, Any]], key: str) -> int:
    """The sum over all ranks of what each reports under ``key``."""
    return sum(rank[key] for rank in ranks)


def cells(result: dict[str, Any]) -> tuple[str, ...]:
    """A result's row of the table."""
    ranks = result["ranks"]
    whole = {key: summed(ranks, key) for key in ("payload_bytes", "sent_bytes", "interface_payload_bytes")}
    has_ledger = ranks[0]["claimed_bytes"] is not None
    return (
        *(result["job"], str(len(ranks))),
        *(f"{num_bytes / 1e6:.3f}" for num_bytes in whole.values()),
        f"{whole['interface_payload_bytes'] / whole['sent_bytes'] - 1:+.3%}",
        f"{max(off_by(ranks), key=abs):+.3%}",
        f"{summed(ranks, 'claimed_bytes') / 1e6:.3f}" if has_ledger else "-",
    )


def markdown(results: list[dict[str, Any]], command: str) -> str:
    """The document: the table, then each training job's audit on rank 0."""
    lines = ["# What the byte audit counts, against the interface's counter", "", f"    {command}", ""]
    lines += [
        "Bytes are sums over the ranks and the audited steps; columns: `experiments/bench/traffic/audit/__main__.py`.",
        "",
    ]
    lines += [f"| {' | '.join(row)} |" for row in (HEADS, ["---"] * len(HEADS), *map(cells, results))]
    for result in results:
        if result["job"] not in COLLECTIVES:
            table = result["ranks"][0]["table"].splitlines()
            lines += ["", f"## {result['job']}: the audit's table on rank 0", "", *(f"    {line}" for line in table)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print the table, and write the files."""
    names = [name for _, jobs in RUNS.values() for name in jobs]
    parser = program("experiments.bench.traffic.audit", __doc__)
    parser.add_argument("--repeats", type=whole(1), default=3, help="audited steps of each job")
    parser.add_argument("--only", nargs="+", default=[], choices=sorted(set(names)), metavar="NAME", help="these jobs")
    parser.add_argument("--out", type=new_file(".json"), help="a file for the numbers, .json; the table goes beside it")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        from experiments.bench.traffic.audit.ranks import rank_main  # torch: the rank's, not of who starts it

        rank_main(options.run, options.repeats, options.only, options.as_rank)
    with user_errors("bench_audit"):
        results = [result for run in RUNS for result in measure(run, options.repeats, options.only)]
    rows = [HEADS, *map(cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if options.out is not None:
        settings = {"repeats": options.repeats, "tolerance": TOLERANCE}
        kept = [{**result, "ranks": _short(result["ranks"])} for result in results]
        options.out.write_text(json.dumps({"settings": settings, "results": kept}, indent=1) + "\n")
        command = f"sudo fsdp-lab bench audit --repeats {options.repeats} --out {options.out}"
        options.out.with_suffix(".md").write_text(markdown(results, command))
    return int(any(abs(off) > TOLERANCE for result in results for off in off_by(result["ranks"])))


def _short(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every rank's sums; the lines of rank 0 alone."""
    sums = [{key: value for key, value in rank.items() if key not in ("table", "lines")} for rank in ranks]
    return [{**sums[0], "lines": ranks[0]["lines"]}, *sums[1:]]


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
