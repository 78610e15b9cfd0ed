"""What many small FSDP2 units cost, compressed and not: time a unit and step, and memory, as units grow in number.

    fsdp-lab bench units [--units 10 100 1000] [--arms none "int8 + int8" ...] [--width 64] [--steps 5] [--threads 1]

A chain of square layers without bias, ``--width`` wide, each an FSDP2 unit, on two gloo ranks of this machine. ``none``
is stock FSDP2. Where a unit costs more as there are more of them, something goes through all of them for each one.
Columns:

    attach    ms that `comm_compress.attach` takes
    step      ms, the median of ``--steps`` after two that are not timed: forward, backward and SGD
    a unit    of that, microseconds for each unit
    state     MB that residuals and replicas of parameters hold on a rank
    working   MB that collectives use and keep for the next ones
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

ARMS = ("none", "identity + identity", "int8 + int8", "int4 hadamard + delta", "ecsq + delta mode=grid")


def main(argv: Sequence[str]) -> int:
    """Start two ranks and print their table."""
    parser = program("experiments.bench.traffic.units", __doc__)
    parser.add_argument("--units", type=whole(1, 100_000), nargs="+", default=[10, 100, 1000])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="LABEL")
    parser.add_argument("--width", type=whole(1, 1 << 14), default=64)
    parser.add_argument("--steps", type=whole(1), default=5)
    parser.add_argument("--threads", type=whole(1), default=1)
    options = parser.parse_args(argv)
    from experiments.bench.traffic.arms import methods_of
    from experiments.bench.traffic.units.ranks import Asked, start  # torch: not for --help

    with user_errors("bench_units"), tempfile.TemporaryDirectory() as folder:
        for label in options.arms:
            methods_of(label)  # refused before ranks start
        start(folder, Asked(options.units, options.arms, options.width, options.steps, options.threads))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
