"""One variant measured once: a model of the trainer, built anew, makes some steps as `fsdp_lab.train` makes them.

One rank, with FSDP2 around the model as in training. Weights and batches are the same in every turn, so are the losses,
to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from experiments.bench.computation.operators.arms import Arm
from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.measure import memory
from fsdp_lab.models import Model, build_model
from fsdp_lab.models.architectures.flops import multiplying_parameters
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.masked import is_masked
from fsdp_lab.settings.models.presets import PRESETS
from fsdp_lab.training.bf16_products import fast_products
from fsdp_lab.training.optim import build_optimizer, take_step

PHASES = ("forward", "backward", "optimizer")
_PRECISION = {"fp32": "no", "bf16": "bf16"}


@dataclass
class Turn:
    """What one turn took. ``seconds``: of each timed step, by phase. ``losses``: of every step, nats a token.
    ``multiplying``: the parameters that multiply, which is N in ``flops_per_token``.

    ``gradients``: the norm of each parameter's gradient in the first step, by name, float32. ``first_s``: seconds of
    the steps before the timed ones, compiling included. ``peak_gb``: 1e9 bytes, from building to the last step; None
    where that cannot be told.
    """

    operators: dict[str, str]
    seconds: dict[str, list[float]]
    losses: list[float]
    gradients: dict[str, float]
    first_s: float
    peak_gb: float | None
    flops_per_token: float
    num_parameters: int
    multiplying: int

    def steps(self) -> list[float]:
        """Seconds of each timed step: the sum of its phases."""
        return [sum(parts) for parts in zip(*self.seconds.values(), strict=True)]


def turn(
    config: TrainConfig,
    arm: Arm,
    ranks: Ranks,
    batches: Tensor,
    warm_up: int,
    watched: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Turn:
    """Build the model of ``arm``, make a step on each of ``batches`` ``[steps, B, ...]``, time all but ``warm_up``.

    ``watched``: is entered before the timed steps and left after them; its profiler sees the phases as spans of their
    names. ValueError where the model cannot have the arm's operators.
    """
    torch._dynamo.reset()  # what other turns compiled would count towards the limit of recompilations
    can_reset = memory.reset_peak(ranks.device)
    config = _with(config, arm)
    on_cpu = config.model.mixed_precision if ranks.device.type == "cpu" else None
    with fast_products(on_cpu), ExitStack() as watching:
        vocabulary = vocabulary_of(config)
        model = build_model(config, ranks, vocabulary, vocabulary - 1)
        optimizer, schedule = build_optimizer(model.updated, config.optim, len(batches), model.operators["adamw"])
        clock, losses, gradients, started = _Clock(ranks.device), [], {}, time.perf_counter()
        first_s = 0.0
        for step, batch in enumerate(batches.to(ranks.device)):
            clock.start()
            with record_function("forward"):
                loss = model.module(batch) / model.module.num_targets(batch)
            clock.stop("forward")
            with record_function("backward"):
                loss.backward()
            clock.stop("backward")
            if step == 0:
                gradients = _norms(model)
            with record_function("optimizer"):
                take_step(model.updated, optimizer, schedule, config.optim.max_grad_norm, model.grad_norm)
            clock.stop("optimizer")
            losses.append(loss.detach())
            if step + 1 == warm_up:
                clock.seconds()  # waits for the device
                clock.forget()
                first_s = time.perf_counter() - started
                watching.enter_context(watched())
        seconds = clock.seconds()
    peak = memory.peak(ranks.device).mem_peak_alloc_gb if can_reset else None
    assert model.flops_per_token is not None
    multiplying = multiplying_parameters(model.module.hf)  # of DTensors, too, the sizes are the whole model's
    shown = [float(loss) for loss in losses]
    return Turn(
        model.operators,
        seconds,
        shown,
        gradients,
        first_s,
        peak,
        model.flops_per_token,
        model.num_parameters,
        multiplying,
    )


def vocabulary_of(config: TrainConfig) -> int:
    """How many token ids the model of a preset embeds, at least."""
    return int(PRESETS[str(config.model.model)].shape.get("vocab_size") or config.model.vocab_size or 50257)


def random_batches(config: TrainConfig, steps: int) -> Tensor:
    """Random tokens, int64 ``[steps, B, T]``; for a BERT ``[steps, B, T, 3]``: with types, masks and labels."""
    rows, length = config.optim.batch_size, config.data.max_length
    assert rows is not None
    assert length is not None
    generator = torch.Generator().manual_seed(config.run.seed)
    tokens = torch.randint(vocabulary_of(config), (steps, rows, length), generator=generator)
    if not is_masked(config.model):
        return tokens
    labels = torch.full_like(tokens, IGNORED)
    labels[..., 1 : 1 + num_chosen(length)] = tokens[..., 1 : 1 + num_chosen(length)]
    labels[..., 0] = torch.arange(rows) % 2
    return torch.stack([tokens, (torch.arange(length) >= length // 2).long().expand_as(tokens), labels], -1)


def _with(config: TrainConfig, arm: Arm) -> TrainConfig:
    model = replace(config.model, operators=dict(arm.operators), mixed_precision=_PRECISION[arm.dtype])
    return replace(config, model=model)


def _norms(model: Model) -> dict[str, float]:
    local: Mapping[str, Tensor] = {
        name: p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        for name, p in model.module.named_parameters()
        if p.grad is not None
    }
    return dict(zip(local, torch.stack(torch._foreach_norm([g.float() for g in local.values()])).tolist(), strict=True))


class _Clock:
    """Seconds of each phase; on CUDA between events, which are read when the numbers are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    def start(self) -> None:
        """Note the moment at which a training step begins."""
        self._marks.append(("", self._now()))

    def stop(self, phase: str) -> None:
        """A phase ends that began with the last mark."""
        self._marks.append((phase, self._now()))

    def forget(self) -> None:
        """Drop all times taken so far, such as those of warm-up steps."""
        self._marks.clear()

    def seconds(self) -> dict[str, list[float]]:
        """The seconds of every phase so far, in order."""
        if self._cuda:
            torch.cuda.synchronize()
        by_phase: dict[str, list[float]] = {phase: [] for phase in PHASES}
        for (_, before), (phase, now) in pairwise(self._marks):
            if phase:
                by_phase[phase].append(_between(before, now))
        return by_phase

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between(before: float | torch.cuda.Event, now: float | torch.cuda.Event) -> float:
    if isinstance(before, float) and isinstance(now, float):
        return now - before
    assert isinstance(before, torch.cuda.Event)
    assert isinstance(now, torch.cuda.Event)
    return float(before.elapsed_time(now)) / 1e3
