"""Measures what `analysis.predict` needs to know of this machine: collectives, codecs, computation.

    sudo python -m experiments.links.calibrate --out calibration.json [--ranks 2 4] [--parts N]

- single collectives behind links without limit, of 1 Gbit/s and of 200 Mbit/s;
- steps without a limit to the rate: every method on the model of large blocks, for the codecs' times and bytes from the
  ledger; a few on the default model, for what a rank computes there.

About three minutes on two cores, in parts of half a minute: what the file has is not measured again. Nothing else may
run meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.fidelity.method_settings import LINK_RUNS
from experiments.links import collective_times, step_times
from experiments.links.models import MODELS
from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.settings.flag_values import new_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_KIB = 1 << 10
_UNITS = {"none": [16 * _KIB, 1 << 20, 4 << 20, 16 << 20], "1gbit": [512 * _KIB, 4 << 20, 16 << 20]}
_UNITS["200mbit"] = [16 * _KIB, 512 * _KIB, 2 << 20, 8 << 20]
COMPUTE_RUNS = LINK_RUNS[1:4]  # whose steps on the other models tell what a rank computes


Part = tuple[int, str]  # ranks, and a rate (single collectives) or a model (steps)


def parts(ranks: Sequence[int]) -> list[Part]:
    """The parts of the calibration, each measured by one start of the ranks."""
    return [(world, what) for world in ranks for what in (*_UNITS, *MODELS)]


def measure(part: Part, repeats: int, seconds: float) -> tuple[str, list[dict[str, Any]]]:
    """Measure one part: its lines, and the key of the document that they belong to."""
    world, what = part
    if what in _UNITS:
        lines = collective_times.measure(world, what, _UNITS[what], repeats)
        return "collectives", [{"ranks": world, "rate": parse_rate(what), **line} for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.jsonl"
        runs = LINK_RUNS if what == "blocks" else COMPUTE_RUNS
        step_times.measure(step_times.Job(world, "none", what, runs, str(out), seconds, least=5))
        return "steps", [json.loads(line) for line in out.read_text().splitlines()]


def main(argv: Sequence[str]) -> int:
    """Measure the missing parts and write the document after each."""
    parser = program("experiments.links.calibrate", __doc__)
    parser.add_argument("--out", type=new_file(), required=True)
    parser.add_argument("--ranks", type=whole(2), nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=whole(1), default=3, help="rows of calls of every collective")
    parser.add_argument("--seconds", type=real(above=0), default=2.0, help="of steps for every method")
    parser.add_argument("--parts", type=whole(1), help="measure so many parts, and the rest when started again")
    options = parser.parse_args(argv)
    with user_errors("calibrate"):
        if min(options.ranks) < 2:
            raise ValueError("--ranks: communication takes 2 ranks or more")
        if not options.out.absolute().parent.is_dir():
            raise ValueError(f"--out: the folder of {options.out} does not exist")
        machine = {"cores": len(os.sched_getaffinity(0))}
        document: dict[str, Any] = {"machine": machine, "parts": [], "collectives": [], "steps": []}
        if options.out.exists():
            document |= json.loads(options.out.read_text())
        missing = [part for part in parts(options.ranks) if list(part) not in document["parts"]]
        for part in missing[: options.parts]:
            print(f"{part[0]} ranks, {part[1]}", file=sys.stderr, flush=True)
            key, lines = measure(part, options.repeats, options.seconds)
            document[key] += lines
            document["parts"].append(list(part))
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{options.out}: {len(document['collectives'])} collectives, {len(document['steps'])} methods' steps")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
