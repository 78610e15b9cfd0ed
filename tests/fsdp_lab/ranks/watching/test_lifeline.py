"""The news of a rank's end, among real processes: it reaches all others, whoever ends and however."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import answers, preload

preload("fsdp_lab.ranks.watching.lifeline")
_WORLD = 3


def _rank(rank: int, folder: str, ends: int, how: str, pipe: Connection) -> None:
    """One rank: ``ends`` ends ``how``; the others say who is dead, what of it, and whether they were signalled."""
    import torch
    import torch.distributed as dist

    from fsdp_lab.ranks.distributed import Ranks
    from fsdp_lab.ranks.watching.lifeline import Lifeline

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    store = dist.FileStore(str(Path(folder) / "store"), _WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_WORLD, timeout=timedelta(seconds=60))
    mesh: Any = None
    lifeline = Lifeline(Ranks(rank, _WORLD, rank, torch.device("cpu"), "gloo", mesh, by_hand=how != "not watched"))
    dist.barrier()
    if rank == ends:
        pipe.send((True, None))
        if how in ("failed", "left"):
            lifeline.leave(how, "no memory")  # type: ignore[arg-type]
        if how != "not watched":
            os.kill(os.getpid(), signal.SIGKILL)
    lifeline.wait(2 if how == "left" else 10)
    end = time.monotonic() + (0.5 if how == "left" else 5)
    while not signals and lifeline.is_on and time.monotonic() < end:
        time.sleep(0.01)
    dead = lifeline.dead()
    pipe.send((True, (dead, [lifeline.obituary(r) for r in dead], bool(signals), lifeline.has_left(ends))))
    time.sleep(30)  # what comes later must not be news: they are killed when all have answered


@pytest.mark.parametrize("ends", [0, 2])
def test_a_killed_rank_is_known_to_all(tmp_path: Path, ends: int) -> None:
    said = answers(_WORLD, _rank, str(tmp_path), ends, "died", timeout=60)
    others = [answer for rank, answer in enumerate(said) if rank != ends]
    assert others == [([ends], [f"rank {ends} died (on {os.uname().nodename})"], True, False)] * 2


def test_a_rank_that_fails_says_why(tmp_path: Path) -> None:
    said = answers(_WORLD, _rank, str(tmp_path), 1, "failed", timeout=60)
    text = f"rank 1 failed (on {os.uname().nodename}): no memory"
    assert [said[0], said[2]] == [([1], [text], True, False)] * 2


def test_a_rank_that_leaves_as_all_do_ends_nobody(tmp_path: Path) -> None:
    said = answers(_WORLD, _rank, str(tmp_path), 1, "left", timeout=60)
    assert said[0] == ([], [], False, True)
    assert said[2][:3] == ([], [], False)


def test_ranks_of_one_launcher_are_not_watched(tmp_path: Path) -> None:
    said = answers(_WORLD, _rank, str(tmp_path), 1, "not watched", timeout=60)
    assert said[0] == ([], [], False, False)
