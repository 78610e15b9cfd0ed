"""What chunked losses and merged attention save in the training of a draft, against the same in whole matrices.

    fsdp-lab bench eagle                                        # lengths x vocabularies, some minutes each
    fsdp-lab bench eagle --lengths 128 --vocabularies 2048 --hidden 64 --steps 2     # to see that it works
    fsdp-lab bench eagle --out bench/                           # bench/eagle.json and bench/eagle.md too

Both train the same draft of the same random Llama on the same tokens with the same optimizer, each in a process of its
own, one rank, ours first and last in turn. The straightforward one is written here: the target's logits at all
positions, the draft's at all positions and steps, and attention under one mask over all keys of all steps. The two
losses of the first step must agree. Columns: tokens of a sequence, the target's vocabulary, training tokens/s, and the
largest memory of the process (CPU: resident set; CUDA: allocated by tensors), also above what it had before the first
step: weights and libraries.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from experiments.bench.computation.eagle.setting import OURS, PLAIN, Measurement, Setting
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_KILLED = -9  # by the kernel, where there was no memory left


def in_own_process(how: str, setting: Setting) -> Measurement | None:
    """The measurement from a process of its own; None where there is not enough memory. RuntimeError if it fails
    otherwise."""
    command = [sys.executable, "-m", "experiments.bench.computation.eagle", "--child", how, json.dumps(asdict(setting))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _KILLED or "OutOfMemoryError" in done.stderr or "can't allocate memory" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(f"{how}, {setting}: exit code {done.returncode}\n{done.stderr}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def compare(setting: Setting, repeats: int) -> dict[str, Any]:
    """A row of the table, of medians over repeats; ``plain`` is null where it does not fit into memory."""
    by_variant: dict[str, list[Measurement]] = {OURS: [], PLAIN: []}
    for repeat in range(repeats):
        for how in (OURS, PLAIN) if repeat % 2 == 0 else (PLAIN, OURS):
            if (measured := in_own_process(how, setting)) is not None:
                by_variant[how].append(measured)
    if not by_variant[OURS]:
        raise RuntimeError(f"ours does not fit into memory: {setting}")
    ours, plain = (_median(by_variant[how]) for how in (OURS, PLAIN))
    if (
        plain is not None
        and ours is not None
        and not math.isclose(ours["first_loss"], plain["first_loss"], rel_tol=1e-3)
    ):
        raise RuntimeError(f"not the same loss: {ours['first_loss']} and {plain['first_loss']}, {setting}")
    return {**asdict(setting), OURS: ours, PLAIN: plain}


def _median(measured: Sequence[Measurement]) -> dict[str, float] | None:
    if not measured:
        return None
    rows = [asdict(m) for m in measured]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


HEAD = (
    "| tokens | vocabulary | ours, tokens/s | plain, tokens/s | speed-up | ours, GB (above start) "
    "| plain, GB (above start) | share of memory (above start) |\n|" + "---:|" * 8
)


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    ours, plain = row[OURS], row[PLAIN]
    speed, memory, faster, share = "", "does not fit", "", ""
    if plain is not None:
        speed, memory = f"{plain['tokens_per_s']:,.0f}", _gb(plain)
        faster = f"{ours['tokens_per_s'] / plain['tokens_per_s']:.2f}x"
        above = ours["above_start_gb"] / plain["above_start_gb"] if plain["above_start_gb"] else math.nan
        share = f"{ours['peak_gb'] / plain['peak_gb']:.2f} ({above:.2f})"
    cells = [f"{row['length']:,}", f"{row['vocabulary']:,}", f"{ours['tokens_per_s']:,.0f}", speed, faster]
    return "| " + " | ".join([*cells, _gb(ours), memory, share]) + " |"


def _gb(measured: dict[str, float]) -> str:
    return f"{measured['peak_gb']:.2f} ({measured['above_start_gb']:.2f})"


def main(argv: list[str]) -> int:
    """Measure every setting and print a line for each; returns the exit code."""
    if argv[:1] == ["--child"]:
        from experiments.bench.computation.eagle.training import measure  # torch and models: not for --help

        print(json.dumps(asdict(measure(argv[1], Setting(**json.loads(argv[2]))))))
        return 0
    parser = program("experiments.bench.computation.eagle", __doc__)
    parser.add_argument("--lengths", type=whole(16), nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--vocabularies", type=whole(1), nargs="+", default=[16384, 49152, 131072])
    parser.add_argument("--draft_vocabulary", type=whole(1), default=16384, help="at most the target's")
    parser.add_argument("--hidden", type=whole(2), default=576, help="of the target, SmolLM2-135M's by default")
    parser.add_argument(
        "--layers", type=whole(3), default=6, help="of the target: fewer than a real one's, which only waits"
    )
    parser.add_argument("--batch", type=whole(1), default=1)
    parser.add_argument("--steps_ahead", type=whole(1), default=7)
    parser.add_argument("--steps", type=whole(1), default=5, help="timed steps, after one that is not")
    parser.add_argument("--repeats", type=whole(1), default=1)
    parser.add_argument("--threads", type=whole(1))
    parser.add_argument("--out", type=new_folder, help="folder for eagle.json and eagle.md")
    options = parser.parse_args(argv)
    with user_errors("experiments.bench.computation.eagle"):
        if (
            options.layers < 3
            or min(options.lengths) < 16
            or options.hidden % max(1, options.hidden // 64)
            or options.hidden % 2
        ):
            raise ValueError("wants 3 layers or more, 16 tokens or more, and heads of one even size (a multiple of 64)")
        if options.out is not None:
            make_folder(options.out, "out")
    import torch  # after the flags: it takes a second

    threads = options.threads or torch.get_num_threads()
    print(HEAD)
    rows = []
    for length, vocabulary in itertools.product(options.lengths, options.vocabularies):
        sizes = (options.draft_vocabulary, options.hidden, options.layers, options.batch, options.steps_ahead)
        rows.append(compare(Setting(length, vocabulary, *sizes, options.steps, threads), options.repeats))
        print(line(rows[-1]), flush=True)
        if options.out is not None:
            (options.out / "eagle.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.out / "eagle.md").write_text("\n".join([HEAD, *map(line, rows)]) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
