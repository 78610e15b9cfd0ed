"""Claimed bytes against the network interface's own counter, and how full each method keeps a slow link.

    sudo fsdp-lab bench link [--rate 200mbit] [--ranks 2] [--elements 16777216] [--repeats 5]
        [--json FILE]

One network namespace a rank, joined by veth pairs and shaped to the rate. Every method runs reduce-scatters (and
all-gathers, where it may carry parameters) of one unit through the same transport that training uses; `stock` is
torch's own collective. Columns:

    ledger      bytes a rank sent, as our ledger (and so the results row) counts them; for stock: the shapes' minimum
    interface   bytes the rank's interface sent meanwhile, TCP/IP headers and acknowledgements included
    link use    ledger bytes / (wire time x rate), the median collective; stock: interface bytes, since gloo sends
                more than it need
    with codec  the same over the whole collective, encoding and decoding included

The shaper lets its first 5 ms through unhindered, so a link use can come out a few percent high.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def table(lines: list[dict[str, Any]], repeats: int, rate_bytes: float | None) -> str:
    """The measurements as a table for a terminal, a line for each method."""
    heads = ["ledger MB", "interface MB", "off by", "ratio claimed", "counted", "link use", "with codec"]
    rows = [f"{'method':26s}{'collective':16s}" + "".join(f"{h:>15s}" for h in heads)]
    for line in lines:
        ledger, interface = line["ledger_bytes"], line["interface_bytes"]
        useful = interface if line["method"] == "stock" else ledger
        use, whole = (
            f"{useful / (repeats * line[key] * rate_bytes):.3f}" if rate_bytes else "-" for key in ("wire_s", "whole_s")
        )
        cells = [f"{ledger / 1e6:.2f}", f"{interface / 1e6:.2f}", f"{100 * (interface / ledger - 1):+.2f} %"]
        cells += [f"{line['raw_bytes'] / ledger:.3f}", f"{line['raw_bytes'] / interface:.3f}", use, whole]
        rows.append(f"{line['method']:26s}{line['op']:16s}" + "".join(f"{c:>15s}" for c in cells))
    return "\n".join(rows)


def main() -> int:
    """Build the network, run the ranks in it, print the table."""
    parser = program("experiments.bench.traffic.link", __doc__)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--ranks", type=whole(2), default=2)
    parser.add_argument("--elements", type=whole(1), default=1 << 24, help="float32 elements of the unit")
    parser.add_argument("--repeats", type=whole(1), default=5)
    parser.add_argument("--json", type=new_file())
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        from experiments.bench.traffic.link.ranks import rank_main  # torch: the rank's, not of who starts it

        rank_main(options.elements, options.repeats, options.as_rank)
    with user_errors("bench_link"), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "experiments.bench.traffic.link", "--as-rank", str(out)]
        command += ["--elements", str(options.elements), "--repeats", str(options.repeats)]
        with Namespaces(options.ranks, options.rate) as net:
            code = net.run(command, rank_environment(options.ranks))
        if code:
            return code
        lines = json.loads(out.read_text())
    bits = parse_rate(options.rate)
    print(
        f"{options.ranks} ranks, {options.rate}, {options.elements:,} float32 elements, {options.repeats} collectives"
    )
    print(table(lines, options.repeats, bits / 8 if bits else None))
    if options.json is not None:
        settings = {k: v for k, v in vars(options).items() if k not in ("json", "as_rank")}
        options.json.write_text(json.dumps({"settings": settings, "lines": lines}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
