"""What each operator of the model takes in training: naive, best, best without each, naive with each.

    python -m experiments.bench.operators --model llama-mini                          # minutes on two cores
    python -m experiments.bench.operators --model gpt2-62m --batch_size 2 --out results/reference
    python -m experiments.bench.operators --model z2all-1b --mixed_precision bf16     # needs a GPU

Every variant is a value of the trainer's ``--operators`` (docs/operators.md). In each repeat all take a turn, in
another order each time: a model is built anew by the trainer's own code, makes a few steps on the same random tokens
from the same weights, and is thrown away. Its losses and gradients must be the naive variant's, to rounding, or its row
says that they are not. What this machine cannot do is listed with the reason. ``--out FOLDER``
writes operators_MODEL.json and operators_MODEL.md there, after each turn: what is stopped early leaves the rows of
variants that were measured. In the first repeat "naive" and "best" come first.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from experiments.bench.operators.arms import BEST, NAIVE, Arm, ablation, not_here
from experiments.bench.operators.measure import Turn, random_batches, turn
from experiments.bench.operators.preset import check_memory, config_of
from experiments.bench.operators.report import markdown, rows
from fsdp_lab.files.atomic import make_folder, write_bytes
from fsdp_lab.measure.peak import Peak, peak_flops
from fsdp_lab.ranks.distributed import Ranks, join
from fsdp_lab.ranks.environment import become_a_rank
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.models.presets import PRESETS
from fsdp_lab.settings.operators import Facts
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

_DTYPE = {"no": "fp32", "bf16": "bf16"}


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, and write it where asked; returns the exit code."""
    options = _parser().parse_args(argv)
    with user_errors("bench_operators"):
        config = config_of(options.model, options.batch_size, options.length, options.threads, options.mixed_precision)
        if options.out is not None:
            make_folder(options.out, "out")
        with join(config) as ranks:
            facts = _facts(config, ranks, options.mixed_precision)
            arms = _arms(facts, options)
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


def measured(
    config: TrainConfig, facts: Facts, arms: list[Arm], options: argparse.Namespace, ranks: Ranks
) -> Iterator[dict[str, Any]]:
    """Turns of all variants; after each one, what is written of all turns so far."""
    batches = random_batches(config, options.warm_up + options.steps)
    turns: dict[str, list[Turn | None]] = {arm.name: [] for arm in arms}
    failed: dict[str, str] = {}
    peaks: dict[str, float | None] = {}
    for repeat in range(options.repeats):
        for dtype in ("fp32", "bf16"):
            peaks[dtype] = _higher(peaks.get(dtype), _peak(ranks, dtype).flops)
        order = _in_turn(arms, repeat)
        for arm in order:
            took: Turn | None = None
            if arm.name not in failed:
                try:
                    took = turn(config, arm, ranks, batches, options.warm_up)
                except Exception as error:  # refused, no kernel for these tensors, not compiled, out of memory
                    failed[arm.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            turns[arm.name].append(took)
            _progress(repeat, arm, took, failed)
            if arm is not order[-1] and not any(took for by_repeat in turns.values() for took in by_repeat):
                continue  # there is nothing to write yet
            yield {
                "setting": _setting(config, facts, options, repeat + 1),
                **_where(ranks),
                "peak_flops": {dtype: peaks[dtype] for dtype in sorted({arm.dtype for arm in arms})},
                **_size(turns),
                "rows": rows(_padded(turns, repeat + 1), arms, failed, config.tokens_per_step(1), peaks),
                "not_here": [asdict(absent) for absent in not_here(facts)],
            }


def _in_turn(arms: Sequence[Arm], repeat: int) -> list[Arm]:
    """The variants in the order of a repeat: by chance, but in the first one those come first that others are compared
    with."""
    mixed = random.Random(repeat).sample(list(arms), len(arms))
    return mixed if repeat else sorted(mixed, key=lambda arm: arm.name not in (NAIVE, BEST))


def _padded(turns: Mapping[str, Sequence[Turn | None]], repeats: int) -> dict[str, list[Turn | None]]:
    """``turns`` with None for those that the repeat under way has not come to."""
    return {name: [*by_repeat, *[None] * (repeats - len(by_repeat))] for name, by_repeat in turns.items()}


def _where(ranks: Ranks) -> dict[str, Any]:
    machine = hardware()
    return {
        "machine": {"torch": versions()["torch"], "cpu": machine["cpu"], "gpu": next(iter(machine["gpus"]), None)},
        "peak_source": _peak_source(ranks),
    }


def _size(turns: Mapping[str, Sequence[Turn | None]]) -> dict[str, int]:
    """The parameters of the model, and those among them that multiply. ValueError where no variant could run."""
    example = next((turn for by_repeat in turns.values() for turn in by_repeat if turn is not None), None)
    if example is None:
        raise ValueError("no variant could run: the lines above say why")
    return {"num_parameters": example.num_parameters, "multiplying": example.multiplying}


_TORCH = {"fp32": "float32", "bf16": "bfloat16"}


def _peak(ranks: Ranks, dtype: str) -> Peak:
    return peak_flops(ranks.device, getattr(torch, _TORCH[dtype]))


def _peak_source(ranks: Ranks) -> str:
    sources = {
        "published": "published, dense bf16, for every dtype",
        "registers": "what the processor multiplies in registers, without memory, measured between the repeats",
    }
    products = "the best product of two 512 x 512 matrices of the dtype that was measured between the repeats"
    return sources.get(str(_peak(ranks, "fp32").source), products)


def _higher(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _setting(config: TrainConfig, facts: Facts, options: argparse.Namespace, repeats: int) -> dict[str, Any]:
    return {
        "model": options.model,
        "batch_size": config.optim.batch_size,
        "length": config.data.max_length,
        "dtype": facts.dtype,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "steps": options.steps,
        "warm_up": options.warm_up,
    }


def _progress(repeat: int, arm: Arm, took: Turn | None, failed: dict[str, str]) -> None:
    if took is None:
        print(f"repeat {repeat + 1}: {arm.name}: {failed[arm.name]}", file=sys.stderr, flush=True)
        return
    step = sorted(took.steps())[len(took.steps()) // 2]
    print(
        f"repeat {repeat + 1}: {arm.name}: {step:.3f} s a step, {took.first_s:.1f} s before",
        file=sys.stderr,
        flush=True,
    )


def _facts(config: TrainConfig, ranks: Ranks, precision: str) -> Facts:
    dtype = _DTYPE.get(precision) or ("bf16" if ranks.device.type == "cuda" else "fp32")
    major, minor = torch.__version__.split(".")[:2]
    return Facts(PRESETS[str(config.model.model)].family, ranks.device.type, dtype, (int(major), int(minor)))


def _arms(facts: Facts, options: argparse.Namespace) -> list[Arm]:
    left_out = [f", {name} " for name in options.leave_out]
    return [arm for arm in ablation(facts, options.every) if not any(part in arm.name for part in left_out)]


def _parser() -> argparse.ArgumentParser:
    from fsdp_lab.settings.operators import OPERATORS

    parser = program("experiments.bench.operators", __doc__)
    parser.add_argument("--model", default="llama-mini", help="a preset of docs/models.md")
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
    with unix_pipes():
        _parser().parse_args(sys.argv[1:])  # neither --help nor a wrong flag needs a second start
        become_a_rank("experiments.bench.operators", sys.argv[1:])
        sys.exit(main(sys.argv[1:]))
