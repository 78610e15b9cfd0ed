"""How fast rANS codes a stream of bytes on one core, beside the fastest coder of its kind and a plain copy.

    fsdp-lab bench rans [--mib 16] [--repeats 9] [--peer libhtscodecs.so] [--json FILE]

``--peer`` is a shared library of htscodecs (https://github.com/samtools/htscodecs, the coder of CRAM files): rANS with
32 states of 16 bits as well, in AVX2 and in AVX-512. Without the flag the environment variable HTSCODECS_LIBRARY is
asked; without either, ours is measured alone. All take turns, stream by stream, so that noise hits them alike; both
sides count symbols, make tables and write a whole stream.

The symbols are whole numbers from a Gaussian of some width, as the methods that end in rANS have them. Columns:
nanoseconds a symbol (medians), symbols a second over the bytes that a plain copy of as many float32 takes in (what
share of memcpy's speed is left if coding is all there is to do), and bits a symbol.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.files.atomic import write_json
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

VARIABLE = "HTSCODECS_LIBRARY"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags. ValueError for values that make no sense."""
    parser = program("experiments.bench.traffic.rans", __doc__)
    parser.add_argument("--mib", type=real(above=0), default=16.0, help="size of the stream, 2^20 symbols each")
    parser.add_argument("--repeats", type=whole(1), default=9)
    parser.add_argument(
        "--peer", type=Path, default=os.environ.get(VARIABLE) or None, metavar="FILE", help="libhtscodecs.so"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.peer is not None:
        options.peer = Path(options.peer)
        if not options.peer.is_file():
            raise ValueError(f"--peer: there is no file {options.peer}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ValueError(f"--json: the folder of {options.json} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all coders on each kind of symbols, print the table, write it where asked; returns the exit code."""
    with user_errors("bench_rans"):
        options = parsed(arguments)
        import torch  # this and the kernels take seconds, which --help and wrong flags need not wait for

        from experiments.bench.traffic.rans.coders import ours, peers
        from experiments.bench.traffic.rans.measuring import SYMBOLS, measure, table

        coders = [ours(), *(peers(options.peer) if options.peer is not None else [])]
    torch.set_num_threads(1)
    n = int(options.mib * (1 << 20))
    rows = [row for kind in SYMBOLS for row in measure(kind, coders, n, options.repeats)]
    print(table(rows))
    if options.json is not None:
        known = hardware()
        del known["host"]
        machine = {"machine": known, "versions": versions()}
        write_json(options.json, {**machine, "symbols": n, "rows": [row._asdict() for row in rows]})
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
