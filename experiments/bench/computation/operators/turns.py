"""The turns that all variants of the operators take, and what is written of those so far."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from experiments.bench.computation.operators.arms import BEST, NAIVE, Arm, ablation, not_here
from experiments.bench.computation.operators.measure import Turn, random_batches, turn
from experiments.bench.computation.operators.report import rows
from fsdp_lab.measure.peak import Peak, peak_flops
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import PRESETS
from fsdp_lab.settings.operators import Facts

_DTYPE = {"no": "fp32", "bf16": "bf16"}


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


def facts_of(config: TrainConfig, ranks: Ranks, precision: str) -> Facts:
    """What decides which operators there are here; ``precision``: the flag ``--mixed_precision``."""
    dtype = _DTYPE.get(precision) or ("bf16" if ranks.device.type == "cuda" else "fp32")
    major, minor = torch.__version__.split(".")[:2]
    return Facts(PRESETS[str(config.model.model)].family, ranks.device.type, dtype, (int(major), int(minor)))


def arms_of(facts: Facts, options: argparse.Namespace) -> list[Arm]:
    """The variants that the flags ask for."""
    left_out = [f", {name} " for name in options.leave_out]
    return [arm for arm in ablation(facts, options.every) if not any(part in arm.name for part in left_out)]
