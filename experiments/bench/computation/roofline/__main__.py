"""Where a training step's time goes: products, attention, loss, FSDP2, optimizer, each under the machine's ceilings.

    fsdp-lab bench roofline --model gpt2-62m --batch_size 4        # a minute on two cores
    fsdp-lab bench roofline --model llama-60m --operators default --out results/reference/benchmarks

A model of a preset makes steps on random tokens as the trainer makes them, on one rank under FSDP2, first without and
then with torch.profiler. The page says what the processor can do at most (arithmetic in registers, which no library
exceeds; the best matrix product; copies of memory), the share of each kind of operator, how near to the ceiling it is,
and how many points of MFU are lost there. ``--out FOLDER`` writes roofline_MODEL.json and roofline_MODEL.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from fsdp_lab.files.atomic import make_folder, write_bytes
from fsdp_lab.ranks.environment import become_a_rank
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_PRECISION = {"fp32": "no", "bf16": "bf16"}


def main(argv: Sequence[str]) -> int:
    """Measure, print the page, and write it where asked; returns the exit code."""
    options = _parser().parse_args(argv)
    # torch and models: not for --help
    from experiments.bench.computation.operators.preset import (
        check_memory,
        config_of,
    )
    from experiments.bench.computation.roofline import report
    from experiments.bench.computation.roofline.step import measured, setting
    from fsdp_lab.ranks.distributed import join

    with user_errors("bench_roofline"):
        precision = _PRECISION[options.dtype]
        config = config_of(options.model, options.batch_size, options.length, options.threads, precision)
        if options.out is not None:
            make_folder(options.out, "out")
        with join(config) as ranks:
            check_memory(config, ranks)
            step, best = measured(config, options, ranks)
            command = shlex.join(["fsdp-lab", "bench", "roofline", *argv])
            result = report.as_json(step, best, {"command": command, **setting(config, options, ranks)})
        page = report.markdown(result)
        if options.out is not None:
            write_bytes(options.out / f"roofline_{options.model}.json", (json.dumps(result, indent=1) + "\n").encode())
            write_bytes(options.out / f"roofline_{options.model}.md", page.encode())
    print(page)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = program("experiments.bench.computation.roofline", __doc__)
    parser.add_argument("--model", default="gpt2-62m", help="a preset of docs/trainer/models.md")
    parser.add_argument("--batch_size", type=whole(1), default=4, help="sequences of a step")
    parser.add_argument("--length", type=whole(2), help="tokens of a sequence; none: the preset's")
    parser.add_argument("--operators", default="best", choices=("best", "default", "naive"), help="of the model")
    parser.add_argument("--compile", default="off", choices=("off", "blocks"), help="torch.compile of the blocks")
    parser.add_argument("--dtype", default="fp32", choices=tuple(_PRECISION), help="of forward and backward")
    parser.add_argument("--warm_up", type=whole(1), default=1, help="steps before the timed ones")
    parser.add_argument("--steps", type=whole(1), default=5, help="timed steps")
    parser.add_argument("--profiled", type=whole(1), default=2, help="steps under torch.profiler")
    parser.add_argument("--threads", type=whole(0), default=0, help="CPU threads; 0: all cores")
    parser.add_argument("--out", type=new_folder, help="folder for the JSON and the page")
    return parser


if __name__ == "__main__":
    with unix_endings():
        _parser().parse_args(sys.argv[1:])  # neither --help nor a wrong flag needs a second start
        become_a_rank("experiments.bench.computation.roofline", sys.argv[1:])
        sys.exit(main(sys.argv[1:]))
