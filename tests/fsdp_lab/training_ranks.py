"""Several trainings, one after the other, on ranks that are started once: torchrun and imports cost more than they."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from multiprocessing.connection import Connection

from tests.distributed import _CONTEXT, _collect, free_port


def train_ranks(
    world: int, runs: list[list[str]], timeout: float = 300, faults: list[str] | None = None, tiny: bool = False
) -> list[str | None]:
    """Train with each of the flags of ``runs``, one after the other, on ``world`` ranks; what rank 0's ended with.

    None for a run that went well, or its exception as "Type: message". One start of the ranks for all runs.
    ``faults``: what the fault injector is told in each of them. ``tiny``: with a model that costs next to nothing.
    """
    faults = [""] * len(runs) if faults is None else faults
    ports, pipes, processes = [free_port() for _ in runs], [], []
    for rank in range(world):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_train, args=(rank, world, ports, runs, faults, tiny, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        ended: list[str | None] = _collect(pipes, timeout)[0]
        return ended
    finally:
        for process in processes:
            process.kill()
            process.join()


def _train(
    rank: int,
    world: int,
    ports: list[int],
    runs: list[list[str]],
    faults: list[str],
    tiny: bool,
    pipe: Connection,
) -> None:
    from fsdp_lab import presets
    from fsdp_lab.cli import parse
    from fsdp_lab.faults import VARIABLE
    from fsdp_lab.preempt import Preempted
    from fsdp_lab.train import train

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    if tiny:
        shape = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 64}
        presets.PRESETS["gpt2-nano"] = replace(presets.PRESETS["gpt2-nano"], shape=shape)
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in where.items()} | {"MASTER_ADDR": "127.0.0.1"}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ended = []
    for port, flags, fault in zip(ports, runs, faults, strict=True):
        os.environ |= {"MASTER_PORT": str(port), VARIABLE: fault}
        try:
            train(parse(flags))
            ended.append(None)
        except (Exception, Preempted) as error:
            ended.append(f"{type(error).__name__}: {error}")
    pipe.send((True, ended))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)
