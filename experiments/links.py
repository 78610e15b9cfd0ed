"""A training run (or any command) behind slow links on one machine, with what every rank really sent.

python -m experiments.links --rate 200mbit --ranks 2 -- --comm_compress int8      # flags alone: fsdp_lab.train
python -m experiments.links --rate 1gbit --json bytes.json -- python program.py   # any command, once per rank

Needs root, iproute2 and network namespaces. The ranks share this machine's cores: with more ranks than cores the time
spent in encoding is overstated.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.namespaces import Namespaces, UnavailableError, unavailable
from fsdp_lab.user_errors import user_errors

__all__ = ["Namespaces", "UnavailableError", "main", "unavailable"]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the first failing rank's exit code, or 0. A wrong flag: exit code 2."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:split])
    with user_errors("links"):
        command = _command_line(words[split + 1 :])
        if options.json is not None and not Path(options.json).absolute().parent.is_dir():
            raise ValueError(f"--json: the folder of {options.json} does not exist")
        with Namespaces(options.ranks, options.rate, options.delay) as net:
            start = time.monotonic()
            code = net.run(command)
            record = _record(net, command, code, time.monotonic() - start)
    print(_table(record), flush=True)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")
    return code


def _parser() -> argparse.ArgumentParser:
    usage = "python -m experiments.links [--rate RATE] [--ranks N] [--delay TIME] [--json FILE] -- COMMAND..."
    text = "A COMMAND that begins with a flag means python -m fsdp_lab.train with these flags."
    parser = argparse.ArgumentParser(usage=usage, epilog=text, allow_abbrev=False)
    parser.add_argument("--rate", default="none", help="what a rank may send: 200mbit, 1gbit, none (default: none)")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks, each with its own link (default: 2)")
    parser.add_argument("--delay", default="0ms", help="extra latency one way: 5ms, 100us (default: 0ms)")
    parser.add_argument("--json", metavar="FILE", help="write bytes and exit code there, too")
    return parser


def _command_line(words: Sequence[str]) -> list[str]:
    if not words:
        raise ValueError("no command; put it after --, for example: -- --comm_compress int8")
    if not words[0].startswith("--"):
        return list(words)
    from fsdp_lab.cli import parse  # only this use needs the trainer's settings

    parse(words)  # a wrong flag is one message here, not one a rank
    return [sys.executable, "-m", "fsdp_lab.train", *words]


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the program through its clean-up, which a second signal must not cut short."""
    for ignored in _SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _record(net: Namespaces, command: Sequence[str], code: int, seconds: float) -> dict[str, Any]:
    """What was run and what every rank sent and received (bytes on the interface, headers included)."""
    return {
        "ranks": net.ranks,
        "rate": net.rate,
        "delay": net.delay,
        "tcp_congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "command": list(command),
        "exit_code": code,
        "seconds": round(seconds, 3),
        "per_rank": [{"rank": r, "tx_bytes": net.tx_bytes(r), "rx_bytes": net.rx_bytes(r)} for r in range(net.ranks)],
    }


def _table(record: dict[str, Any]) -> str:
    heading = (
        f"{'rank':>4}  {'sent MB':>10}  {'received MB':>11}   interface bytes, headers included; rate {record['rate']}"
    )
    rows = [f"{r['rank']:>4}  {r['tx_bytes'] / 1e6:>10.3f}  {r['rx_bytes'] / 1e6:>11.3f}" for r in record["per_rank"]]
    return "\n".join([heading, *rows])


if __name__ == "__main__":
    for wanted in _SIGNALS:
        signal.signal(wanted, _leave)
    sys.exit(main(sys.argv[1:]))
