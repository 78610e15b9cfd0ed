"""Several trainings, one after the other, on ranks that are started once: torchrun and imports cost more than they."""

from __future__ import annotations

import os
import sys
import warnings
from multiprocessing.connection import Connection

from tests.distributed import _CONTEXT, _collect, free_port


def train_ranks(world: int, runs: list[list[str]], timeout: float = 300) -> list[str | None]:
    """Train with each of the flags of ``runs``, one after the other, on ``world`` ranks; what rank 0's ended with.

    None for a run that went well, or its exception as "Type: message". One start of the ranks for all runs.
    """
    ports, pipes, processes = [free_port() for _ in runs], [], []
    for rank in range(world):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_train, args=(rank, world, ports, runs, theirs), daemon=True)
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


def _train(rank: int, world: int, ports: list[int], runs: list[list[str]], pipe: Connection) -> None:
    from fsdp_lab.cli import parse
    from fsdp_lab.train import train

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in where.items()} | {"MASTER_ADDR": "127.0.0.1"}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ended = []
    for port, flags in zip(ports, runs, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        try:
            train(parse(flags))
            ended.append(None)
        except Exception as error:
            ended.append(f"{type(error).__name__}: {error}")
    pipe.send((True, ended))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)
