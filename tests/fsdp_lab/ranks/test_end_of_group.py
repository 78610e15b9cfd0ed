"""After a training in this process, others can be started: nothing of its process group is in their way."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import _collective_utils, _redistribute, debug

from fsdp_lab.ranks.distributed import join
from fsdp_lab.settings.config import TrainConfig

SET_BY_JOIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def no_rank_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that no launcher has started; what it was comes back after the test."""
    for name in SET_BY_JOIN:
        monkeypatch.setenv(name, "")  # so that pytest knows it, and takes away what the test leaves
        monkeypatch.delenv(name)


def forget_what_all_threads_share() -> None:
    """Torch's caches of a process, which hold the group, too, until newer operations have taken their places."""
    with contextlib.suppress(AttributeError):  # another version of torch may keep less
        debug._clear_python_sharding_prop_cache()
        _redistribute._gen_transform_infos.cache_clear()
        _redistribute.clear_redistribute_planner_cache()
        _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    gc.collect()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for children in /proc")
@pytest.mark.skipif(torch.cuda.is_available(), reason="joins the ranks of a CPU")
def test_a_thread_can_fork_after_a_group_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    no_rank_yet(monkeypatch)
    threads = torch.get_num_threads()
    with join(TrainConfig()) as ranks:
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=ranks.mesh)
        model(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # operations of distributed tensors, which torch caches
        del model, ranks
    torch.set_num_threads(threads)
    forget_what_all_threads_share()
    codes: list[int] = []

    def fork() -> None:
        codes.append(subprocess.call(["true"], preexec_fn=os.getpid))

    thread = threading.Thread(target=fork, daemon=True)
    thread.start()
    children = Path(f"/proc/self/task/{thread.native_id}/children")
    thread.join(20)
    if thread.is_alive():  # it waits for its child, which waits for threads that it does not have
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
        thread.join()
    assert codes == [0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="joins the ranks of a CPU")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_later_process_is_not_told_that_it_is_this_rank(by_hand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    no_rank_yet(monkeypatch)
    if by_hand:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
    before, threads = dict(os.environ), torch.get_num_threads()
    with join(TrainConfig()):
        assert os.environ["LOCAL_WORLD_SIZE"] == "1"
    torch.set_num_threads(threads)
    assert dict(os.environ) == before
