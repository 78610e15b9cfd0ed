"""Several trainings, one after the other, on ranks that are started once: torchrun and imports cost more than they."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from tests.distributed import free_port, preload, work_of

for _module in (  # what a training imports when it first asks for it: 0.15 s in each of its ranks
    "encodings.idna",
    "fsdp_lab.eagle.train",
    "fsdp_lab.models.saved.tokenizers",
    "tokenizers.trainers",
    "torch.distributed._tools",
    "torch.distributed.tensor.debug",
    "transformers.convert_slow_tokenizer",
    "transformers.integrations.mistral",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.encoder_decoder",
):
    preload(_module)


@dataclass(frozen=True)
class Training:
    """One call of the trainer: its flags, on how many of the ranks, what happens, and when.

    ``fault``: what the fault injector is told. ``event(run, step)`` is called on every rank when the step is over,
    before the ranks agree to go on. ``draft``: call the trainer of drafts.
    """

    flags: list[str]
    ranks: int = 2
    fault: str = ""
    draft: bool = False
    event: Callable[[Any, int], None] | None = None


@dataclass(frozen=True)
class StopAfter:
    """One rank is told to stop at the end of ``step``."""

    step: int
    rank: int = 1

    def __call__(self, run: Any, step: int) -> None:
        if step == self.step and run.ranks.rank == self.rank:
            os.kill(os.getpid(), signal.SIGTERM)


def make_nano_tiny() -> None:
    """From now on, in this process, gpt2-nano is a model that costs next to nothing, and peaks are measured shortly."""
    from fsdp_lab.settings.models import presets

    shape = presets.PRESETS["gpt2-nano"].shape | {"n_embd": 8, "n_layer": 2, "n_head": 2}
    presets.PRESETS["gpt2-nano"] = replace(presets.PRESETS["gpt2-nano"], shape=shape)
    measure_peaks_shortly()


def measure_peaks_shortly() -> None:
    """From now on, in this process, a run looks for 1 ms at what its processor can do at most, not for 60."""
    from fsdp_lab.measure import registers

    registers._ROUNDS, registers._TIMES = 20_000, 3


def train_all(trainings: list[Training], timeout: float = 600, tiny: bool = False) -> list[str | None]:
    """What rank 0's trainings ended with, one after the other: None, or the exception as "Type: message".

    ``tiny``: with `make_nano_tiny`. The ranks stay for the next call of the same file of tests.
    """
    world = max(training.ranks for training in trainings)
    ports = [free_port() for _ in trainings]
    ended: list[str | None] = work_of(world, _train, tiny, work=(ports, trainings), timeout=timeout)[0]
    return ended


def _train(rank: int, tiny: bool, pipe: Connection) -> None:
    """What a rank does: the trainings of one call after the other."""
    from fsdp_lab.run.steps.loop import Loop

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    measure_peaks_shortly()
    if tiny:
        make_nano_tiny()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    plain = Loop._count
    while True:
        try:
            ports, trainings = pickle.loads(pipe.recv_bytes())
        except EOFError:  # the tests' process has ended
            os._exit(0)
        mine = [(port, training) for port, training in zip(ports, trainings, strict=True) if rank < training.ranks]
        pipe.send((True, [_ended(rank, port, training, plain) for port, training in mine]))
        sys.stdout.flush()


def _ended(rank: int, port: int, training: Training, plain: Callable[..., None]) -> str | None:
    """What a training ends with; ``plain``: what the loop does at the end of each step."""
    from torch import Tensor

    from fsdp_lab import train as language
    from fsdp_lab.eagle import train as eagle
    from fsdp_lab.eagle.draft.config import EagleConfig
    from fsdp_lab.ranks.faults import VARIABLE
    from fsdp_lab.ranks.preempt import Preempted
    from fsdp_lab.run.steps.loop import Loop
    from fsdp_lab.settings.config import parse
    from fsdp_lab.settings.reading.cli import parse_as
    from fsdp_lab.training.optim import StepOutcome

    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": training.ranks, "LOCAL_WORLD_SIZE": training.ranks}
    os.environ |= {name: str(value) for name, value in where.items()}
    os.environ |= {"MASTER_PORT": str(port), VARIABLE: training.fault}

    def step_is_over(self: Loop, step: int, loss: Tensor, outcome: StepOutcome) -> None:
        plain(self, step, loss, outcome)
        if training.event is not None:
            training.event(self.run, step)

    Loop._count = step_is_over  # type: ignore[method-assign]
    try:
        if training.draft:
            eagle.train(parse_as(EagleConfig, training.flags))
        else:
            language.train(parse(training.flags))
    except (Exception, Preempted) as error:
        if not training.fault and not isinstance(error, ValueError | Preempted):
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None
