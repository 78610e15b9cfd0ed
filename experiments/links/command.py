"""A training run (or any command) behind slow links on one machine, with what every rank really sent.

python -m experiments.links --rate 200mbit --ranks 2 -- --comm_compress int8      # flags alone: fsdp_lab.train
python -m experiments.links --rate 1gbit --json bytes.json -- python program.py   # any command, once per rank
python -m experiments.links --rate 1gbit --ranks 4 --per_node 2 -- python hsdp.py # nodes: fast inside, slow between

Before the run the link is measured; a training run's row records that, and whether the bytes it claims are those that
its interface sent. Needs root, iproute2 and network namespaces. The ranks share this machine's cores: with more ranks
than cores the time spent in encoding is overstated.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from experiments.runs.measurements import before_and_after_dashes
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.ranks.forked import TRAINERS
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import user_errors


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the first failing rank's exit code, or 0. A wrong flag: exit code 2."""
    own, passed_on = before_and_after_dashes(argv)
    options = _parser().parse_args(own)
    with user_errors("links"):
        command = _command_line(passed_on)
        if options.json is not None and not Path(options.json).absolute().parent.is_dir():
            raise ValueError(f"--json: the folder of {options.json} does not exist")
        with Namespaces(options.ranks, options.rate, options.delay, options.per_node) as net:
            _announce(net)
            before, start = _counted(net), time.monotonic()
            code = net.run(command, environment_of(command, options.ranks))
            record = _record(net, command, code, time.monotonic() - start, before)
    print(_table(record), flush=True)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")
    return code


def _parser() -> Parser:
    usage = "python -m experiments.links [--rate RATE] [--ranks N] [--per_node N] [--delay TIME] [--json FILE] -- ..."
    text = "A COMMAND that begins with a flag means python -m fsdp_lab.train with these flags."
    parser = program("experiments.links", __doc__, usage=usage, epilog=text, allow_abbrev=False)
    parser.add_argument("--rate", default="none", help="what a node may send: 200mbit, 1gbit, none (default: none)")
    parser.add_argument("--ranks", type=whole(1), default=2, help="number of ranks (default: 2)")
    parser.add_argument(
        "--per_node", type=whole(1), default=1, help="ranks that share a node and its link (default: 1)"
    )
    parser.add_argument("--delay", default="0ms", help="extra latency one way: 5ms, 100us (default: 0ms)")
    parser.add_argument("--json", metavar="FILE", help="write bytes and exit code there, too")
    return parser


def _command_line(words: Sequence[str]) -> list[str]:
    if not words:
        raise ValueError("no command; put it after --, for example: -- --comm_compress int8")
    if not words[0].startswith("--"):
        return list(words)
    from fsdp_lab.settings.config import TrainConfig
    from fsdp_lab.settings.refusing.early import checked

    checked(TrainConfig, words)  # a wrong flag is one message here, not one a rank
    return [sys.executable, "-m", "fsdp_lab.train", *words]


def environment_of(command: Sequence[str], ranks: int) -> dict[str, str]:
    """What a rank's environment has beyond ours: of our own trainers what `fsdp_lab.launch` gives them, too."""
    return rank_environment(ranks) if any(word in TRAINERS for word in command) else {}


def _announce(net: Namespaces) -> None:
    measured = net.measure()
    if measured is None:
        return
    print(f"link: {net.rate} asked, {measured / 1e6:.4g} Mbit/s measured, delay {net.delay}", flush=True)
    asked = parse_rate(net.rate)
    if asked is not None and measured < 0.85 * asked:
        print(f"this machine cannot send at {net.rate}; take the measured rate for the link's", file=sys.stderr)


def _counted(net: Namespaces) -> list[dict[str, int]]:
    """Every node's counters so far: bytes on the interface, headers included, and inside the node."""
    firsts = range(0, net.ranks, net.per_node)
    kinds = {"tx_bytes": net.tx_bytes, "rx_bytes": net.rx_bytes, "inside_bytes": net.inside_bytes}
    return [{kind: count(first) for kind, count in kinds.items()} for first in firsts]


def _record(
    net: Namespaces, command: Sequence[str], code: int, seconds: float, before: list[dict[str, int]]
) -> dict[str, Any]:
    """What was run, and what every node sent and received while it ran."""
    return {
        "ranks": net.ranks,
        "per_node": net.per_node,
        "rate": net.rate,
        "rate_measured": net.measured,
        "delay": net.delay,
        "tcp_congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "command": list(command),
        "exit_code": code,
        "seconds": round(seconds, 3),
        "nodes": [
            {
                "ranks": list(range(node * net.per_node, (node + 1) * net.per_node)),
                **{kind: count - before[node][kind] for kind, count in counters.items()},
            }
            for node, counters in enumerate(_counted(net))
        ],
    }


def _table(record: dict[str, Any]) -> str:
    columns = {"sent MB": "tx_bytes", "received MB": "rx_bytes"}
    if record["per_node"] > 1:
        columns["inside MB"] = "inside_bytes"
    rows = [f"{'ranks':>8s}" + "".join(f"{head:>13s}" for head in columns)]
    rows[0] += f"   interface bytes, headers included; rate {record['rate']}"
    for node in record["nodes"]:
        ranks = "-".join(map(str, dict.fromkeys((node["ranks"][0], node["ranks"][-1]))))
        rows.append(f"{ranks:>8s}" + "".join(f"{node[key] / 1e6:>13.3f}" for key in columns.values()))
    return "\n".join(rows)
