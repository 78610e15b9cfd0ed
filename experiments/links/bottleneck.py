"""Is communication the bottleneck? Step time and its parts as ranks grow and the link slows.

    sudo python -m experiments.links.bottleneck [--ranks 1 2 4] [--rates none 1gbit 200mbit] [--json FILE] [-- FLAG
    VALUE...]

A cell is one short training run behind an emulated link; a method carries both directions (`none`: FSDP2's own
collectives). Cells that FILE has are not run again; beside it come the table (.md) and the figure (.png). A rank has
one thread, so that one rank and two do the same work on a core of their own; four share this machine's cores if it has
no more than two. What follows ``--`` goes to every run of fsdp_lab.train.

    communication   the part of the step in which a rank waits for collectives: exposed. On a CPU stock FSDP2 waits for
                    all of them; `none`: from a profile, the transfers alone; others: from the ledger, what was waited
                    for, slower ranks included
    codec           encoding and decoding
    efficiency      step of one rank without communication / step; a rank's batch is the same everywhere
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.links.bottleneck_chart import draw
from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from experiments.network.training import train_behind
from experiments.runs.measurements import before_and_after_dashes
from experiments.runs.method_flag import a_method, check_training_flags
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

DEFAULT = Path("results/reference/links/bottleneck.json")
METHODS = ("none", "identity", "bf16", "int8")
Cell = dict[str, Any]


class Place(NamedTuple):
    """The link, the ranks and the method of one cell of the table."""

    ranks: int
    rate: str
    method: str


def places(ranks: Iterable[int], rates: Sequence[str], methods: Sequence[str]) -> list[Place]:
    """The places of all cells. One rank sends nothing, so it needs neither a slow link nor a method."""
    result = []
    for count in ranks:
        alone = count == 1
        result += [Place(count, r, m) for r in (rates, ["none"])[alone] for m in (methods, ["none"])[alone]]
    return result


def measure(place: Place, steps: int, flags: Sequence[str]) -> Cell:
    """Run one training and return its cell. RuntimeError when it fails."""
    both = ["--comm_compress", place.method, "--param_compress", place.method]
    short = ["--max_steps", str(steps), "--log_interval", str(steps), "--threads", "1"]
    with Namespaces(place.ranks, place.rate) as net:
        net.measure()
        row = train_behind(net, [*both, *short, *flags])
    codec = (row["compress_time_ms_total"] or 0) + (row["decompress_time_ms_total"] or 0)
    return {
        **place._asdict(),
        "step_ms": row["step_time_ms_p50"],
        "step_ms_mean": row["step_time_ms_mean"],
        "comm_ms": row["comm_time_ms_total"] / row["steps"],
        "codec_ms": codec / row["steps"],
        "comm_share": row["comm_ratio"],
        "sent_bytes": row["bytes_compressed_total"] / row["steps"],
        "bytes_trusted": row["bytes_trusted"],
        "link_rate_measured": row["link_rate_measured"],
        "warmup_steps_excluded": row["warmup_steps_excluded"],
        "model": row["model"],
        "cpu": (row["hardware"] or {}).get("cpu"),
    }


def efficiency(cell: Cell, cells: Sequence[Cell]) -> float | None:
    """The step time of one rank over this cell's; None without a run of one rank."""
    alone = [c["step_ms"] for c in cells if c["ranks"] == 1]
    return float(alone[0] / cell["step_ms"]) if alone else None


def table(cells: Sequence[Cell], cores: int) -> str:
    """The cells as a table in Markdown."""
    rows = [
        "| link | ranks | method | step ms | communication ms | share | codec ms | sent MB | efficiency | checked |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for cell in cells:
        reached = efficiency(cell, cells)
        checked = {True: "yes", False: "NO", None: "-"}[cell["bytes_trusted"]]
        link = "no limit" if cell["rate"] == "none" else cell["rate"]
        rows.append(
            f"| {link} | {cell['ranks']} | {cell['method']} | {cell['step_ms']:.0f} | {cell['comm_ms']:.0f} "
            f"| {100 * cell['comm_share']:.0f} % | {cell['codec_ms']:.0f} | {cell['sent_bytes'] / 1e6:.2f} "
            f"| {'-' if reached is None else f'{reached:.2f}'} | {checked} |"
        )
    crowded = sorted({cell["ranks"] for cell in cells if cell["ranks"] > cores})
    if crowded:
        rows.append("")
        rows += [f"{n} ranks share {cores} cores: no efficiency above {cores / n:.2f} is possible." for n in crowded]
    return "\n".join(rows)


def report(settings: dict[str, Any], cells: Sequence[Cell]) -> str:
    """The text of the file that people read."""
    flags = f", {' '.join(settings['flags'])}" if settings["flags"] else ""
    return (
        "# Where the step goes, by ranks and link\n\n"
        f"`python -m experiments.links.bottleneck`: {cells[0]['model']}, {settings['steps']} steps a cell (the first "
        f"{cells[0]['warmup_steps_excluded']} left out), one thread a rank, {settings['cores']} cores "
        f"({cells[0]['cpu']}){flags}. Bytes and times are a rank's, a step's; step: the median, share: of the mean. "
        "What the columns mean: docs/comparing/links.md.\n\n" + table(cells, settings["cores"]) + "\n"
    )


def main(argv: Sequence[str]) -> int:
    """Run the cells that are missing, then print and draw all of them."""
    own, passed_on = before_and_after_dashes(argv)
    parser = program("experiments.links.bottleneck", __doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=whole(1), nargs="+", default=[1, 2, 4])
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit", "200mbit"])
    parser.add_argument("--methods", type=a_method, nargs="+", default=list(METHODS))
    parser.add_argument(
        "--steps", type=whole(1), default=20, help="a quarter of them, at most 5, is warm-up (default: 20)"
    )
    parser.add_argument("--json", type=new_file(), default=DEFAULT)
    options = parser.parse_args(own)
    settings = {"steps": options.steps, "flags": passed_on, "cores": len(os.sched_getaffinity(0))}
    wanted = places(options.ranks, options.rates, options.methods)
    with user_errors("bottleneck"):
        for rate in options.rates:
            parse_rate(rate)
        check_training_flags(passed_on)
        known = _known(options.json, settings)
        for number, place in enumerate(wanted, start=1):
            if place in known:
                continue
            print(f"cell {number} of {len(wanted)}: {place.ranks} ranks, {place.rate}, {place.method}", flush=True)
            known[place] = measure(place, options.steps, settings["flags"])
            options.json.write_text(json.dumps({"settings": settings, "cells": list(known.values())}, indent=1) + "\n")
    cells = [known[place] for place in wanted]
    options.json.with_suffix(".md").write_text(report(settings, cells))
    draw(cells, options.json.with_suffix(".png"))
    print(table(cells, settings["cores"]))
    return 0


def _known(path: Path, settings: dict[str, Any]) -> dict[Place, Cell]:
    """The cells of an earlier start. ValueError when they are of other settings, or the file is not one of ours."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--json: the folder of {path} does not exist")
    if not path.exists():
        return {}
    try:
        earlier = json.loads(path.read_text())
        before, cells = earlier["settings"], earlier["cells"]
        known = {Place(cell["ranks"], cell["rate"], cell["method"]): cell for cell in cells}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"--json: {path} holds no cells of this program; name another file") from None
    if before != settings:
        raise ValueError(f"--json: the cells in {path} were measured with {before}, not {settings}; name another file")
    return known


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
