"""A training step by the clock, and under torch.profiler; its products, each alone; the machine's ceilings."""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.bench.computation.operators.arms import Arm
from experiments.bench.computation.operators.measure import Turn, random_batches, turn, vocabulary_of
from experiments.bench.computation.roofline import ceilings, report
from experiments.bench.computation.roofline.operator_times import Product, Spent, spent
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.config import TrainConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measured(config: TrainConfig, options: argparse.Namespace, ranks: Ranks) -> tuple[report.Step, ceilings.Ceilings]:
    """The step of ``config`` and the ceilings of this machine, the higher of those before and after it."""
    dtype = _DTYPES[options.dtype]
    before = ceilings.measured(ranks.device, dtype)
    arm = Arm(options.operators, {"others": options.operators, "compile": options.compile}, options.dtype)
    batches = random_batches(config, options.warm_up + max(options.steps, options.profiled))
    plain = turn(config, arm, ranks, batches[: options.warm_up + options.steps], options.warm_up)
    profiled, profiler = _profiled(config, arm, ranks, batches[: options.warm_up + options.profiled], options)
    times = spent(profiler.events() or [], options.profiled, vocabulary_of(config))
    step = report.Step(
        statistics.median(plain.steps()),
        statistics.mean(profiled.steps()),
        plain.flops_per_token * batches[0].numel(),
        (plain.flops_per_token - 6 * plain.multiplying) * batches[0].numel(),
        batches[0].numel(),
        times,
        _alone(times, dtype, ranks.device),
    )
    return step, before.higher(ceilings.measured(ranks.device, dtype))


def _profiled(
    config: TrainConfig, arm: Arm, ranks: Ranks, batches: Tensor, options: argparse.Namespace
) -> tuple[Turn, Any]:
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    return turn(config, arm, ranks, batches, options.warm_up, lambda: profiler), profiler


def _alone(times: Spent, dtype: torch.dtype, device: torch.device) -> dict[Product, float]:
    seconds = {}
    for product in times.products:
        batch = (product.batch,) if product.batch > 1 else ()
        left = torch.randn(*batch, product.rows, product.inner, device=device).to(dtype)
        right = torch.randn(*batch, product.inner, product.columns, device=device).to(dtype)
        result = torch.matmul(left, right)
        seconds[product] = ceilings.fastest(partial(torch.matmul, left, right, out=result), device)
    return seconds


def setting(config: TrainConfig, options: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """The machine and the settings of the step, as the page and the file have them."""
    gpu = next(iter(hardware()["gpus"]), None) if ranks.device.type == "cuda" else None
    compiled = "" if options.compile == "off" else f", compiled {options.compile}"
    return {
        "model": options.model,
        "device": gpu or hardware()["cpu"],
        "threads": torch.get_num_threads(),
        "torch": versions()["torch"],
        "malloc": versions()["malloc"],
        "batch_size": config.optim.batch_size,
        "length": config.data.max_length,
        "dtype": options.dtype,
        "operators": f"{options.operators}{compiled}",
        "steps": options.steps,
        "profiled_steps": options.profiled,
    }
