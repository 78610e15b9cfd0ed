"""What each operator of the model takes in training: naive, best, best without each, naive with each.

    fsdp-lab bench operators --model llama-mini                          # minutes on two cores
    fsdp-lab bench operators --model gpt2-62m --batch_size 2 --out results/reference/benchmarks
    fsdp-lab bench operators --model z2all-1b --mixed_precision bf16     # needs a GPU

Every variant is a value of the trainer's ``--operators`` (docs/trainer/operators.md). In each repeat all take a
turn, in another order each time: a model is built anew by the trainer's own code, makes a few steps on the same random
tokens from the same weights, and is thrown away. Its losses and gradients must be the naive variant's, to rounding, or
its row says that they are not. What this machine cannot do is listed with the reason. ``--out FOLDER``
writes operators_MODEL.json and operators_MODEL.md there, after each turn: what is stopped early leaves the rows of
variants that were measured. In the first repeat "naive" and "best" come first.
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
from fsdp_lab.settings.operators import OPERATORS
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, and write it where asked; returns the exit code."""
    options = _parser().parse_args(argv)
    # torch and models: not for --help
    from experiments.bench.computation.operators.preset import (
        check_memory,
        config_of,
    )
    from experiments.bench.computation.operators.report import markdown
    from experiments.bench.computation.operators.turns import arms_of, facts_of, measured
    from fsdp_lab.ranks.distributed import join

    with user_errors("bench_operators"):
        config = config_of(options.model, options.batch_size, options.length, options.threads, options.mixed_precision)
        if options.out is not None:
            make_folder(options.out, "out")
        with join(config) as ranks:
            facts = facts_of(config, ranks, options.mixed_precision)
            arms = arms_of(facts, options)
            check_memory(config, ranks)
            page, command = "", shlex.join(["fsdp-lab", "bench", "operators", *argv])
            for result in measured(config, facts, arms, options, ranks):  # after each turn, so that none is lost
                result["command"] = command
                page = markdown(result)
                if options.out is not None:
                    text = json.dumps(result, indent=1) + "\n"
                    write_bytes(options.out / f"operators_{options.model}.json", text.encode())
                    write_bytes(options.out / f"operators_{options.model}.md", page.encode())
    print(page)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = program("experiments.bench.computation.operators", __doc__)
    parser.add_argument("--model", default="llama-mini", help="a preset of docs/trainer/models.md")
    parser.add_argument("--batch_size", type=whole(1), help="sequences of a step; none: the preset's")
    parser.add_argument("--length", type=whole(2), help="tokens of a sequence; none: the preset's")
    parser.add_argument("--steps", type=whole(1), default=3, help="timed steps of a turn")
    parser.add_argument("--warm_up", type=whole(1), default=2, help="steps before them: kernels are compiled in these")
    parser.add_argument("--repeats", type=whole(1), default=3, help="turns of each variant")
    parser.add_argument("--threads", type=whole(0), default=0, help="CPU threads; 0: all cores")
    parser.add_argument("--mixed_precision", default="auto", choices=("auto", "no", "bf16"), help="of all but one row")
    parser.add_argument("--every", action="store_true", help="a row for every implementation, not only for the best")
    parser.add_argument(
        "--leave_out",
        nargs="+",
        default=[],
        choices=(*OPERATORS, "precision"),
        help="operators without rows of their own",
    )
    parser.add_argument("--out", type=new_folder, help="folder for the JSON and the table")
    return parser


if __name__ == "__main__":
    with unix_endings():
        _parser().parse_args(sys.argv[1:])  # neither --help nor a wrong flag needs a second start
        become_a_rank("experiments.bench.computation.operators", sys.argv[1:])
        sys.exit(main(sys.argv[1:]))
