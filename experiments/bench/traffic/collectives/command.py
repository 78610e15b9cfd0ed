"""What a collective costs a rank beyond memory and wire, and where that time goes.

    fsdp-lab bench collectives [--arms "int8 + int8" "ecsq + delta mode=grid" ...] [--model gpt2-mini]
        [--elements 1024 65536 ...] [--ranks 2] [--repeats 15] [--json FILE]

One rank's part in every collective of a training step: the hooks of FSDP2 with their ledger, on the units of a model
(``--model``) and on single weights of some sizes (``--elements``: a rank's whole parameters and a whole gradient). The
other ranks are not there: what they would send is taken to be what this rank sends. An arm is a method for gradients
and one for parameters. Times are the calling thread's on its core, so that other programs disturb them less; arms take
turns, and medians over the repeats are shown. Columns, in milliseconds:

    memory       a plain copy of the unit's float32 bytes, before every collective
    codec        the collective without transport
    least        the fastest repeat, which other programs disturbed least
    fixed        codec less memory
    python, torch, kernel, allocation, ledger
                 where that goes: interpreter, torch calls that are no allocation, compiled kernels, fresh memory,
                 counting. Watching a step costs time of its own: parts are measured in steps that are not timed
                 themselves, less what watching a call costs on average, and what they leave of ``codec`` is python
                 (which can come out below zero where there is little of it)
    calls        how many calls of torch and of kernels

A line of a model is a whole step: a reduce-scatter and an all-gather for every unit, and a second all-gather, for
backward, for every block.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

if TYPE_CHECKING:
    from experiments.bench.traffic.collectives.measuring import Line

ARMS = (
    "identity + identity",
    "int8 + int8",
    "int4 hadamard + delta",
    "ecsq + delta mode=grid",
    "lowrank + delta mode=grid",
    "topk ratio=0.01 + delta",
)
ELEMENTS = tuple(1 << power for power in range(10, 27, 4))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's flags and their values, checked."""
    parser = program("experiments.bench.traffic.collectives", __doc__)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="LABEL")
    parser.add_argument("--model", nargs="*", default=["gpt2-mini"], metavar="PRESET")
    parser.add_argument("--elements", type=whole(64, 1 << 28), nargs="*", default=list(ELEMENTS), metavar="N")
    parser.add_argument("--ranks", type=whole(2, 64), default=2)
    parser.add_argument("--repeats", type=whole(1), default=15)
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write all lines")
    options: argparse.Namespace = parser.parse_args(arguments)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file."""
    with user_errors("bench_collectives"):
        options = parsed(arguments)
        import torch  # these take seconds, which --help and wrong flags need not wait for

        from experiments.bench.traffic.collectives.measuring import as_json, made, measure, table
        from experiments.bench.traffic.collectives.units import one_weight, units_of_model

        torch.set_num_threads(1)
        places = [(preset, units_of_model(preset, options.ranks)) for preset in options.model]
        places += [(str(n), [one_weight(n, options.ranks)]) for n in options.elements]
        for label in options.arms:
            made(label, "", [], options.ranks)  # refused before anything is measured
    lines: list[Line] = []
    for number, (where, units) in enumerate(places, 1):
        print(f"{where} ({number} of {len(places)})", file=sys.stderr, flush=True)
        lines += measure([made(label, where, units, options.ranks) for label in options.arms], options.repeats)
    print(table(lines))
    if options.json is not None:
        machine = {name: value for name, value in hardware().items() if name != "host"}
        settings = {name: getattr(options, name) for name in ("arms", "model", "elements", "ranks", "repeats")}
        record = {"machine": machine, "versions": versions(), "settings": settings}
        options.json.write_text(json.dumps({**record, "lines": [as_json(line) for line in lines]}, indent=1) + "\n")
    return 0
