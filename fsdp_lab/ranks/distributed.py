"""Joining the other ranks, and agreeing with them before anything else happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_lab.ranks.link import Link, link_of_this_run
from fsdp_lab.ranks.meeting import loopback
from fsdp_lab.ranks.meeting.by_hand import is_by_hand, place_of
from fsdp_lab.ranks.meeting.roll_call import meet
from fsdp_lab.ranks.parallel_dims import ParallelDims
from fsdp_lab.settings.config import AnyTraining
from fsdp_lab.settings.reading.fields import ConfigError

T = TypeVar("T")
_SET_BY_JOIN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_A_RANKS_OWN = {"output_dir", "results_path", "curves_dir", "cache_dir", "features_dir", "run_name"}


@dataclass(frozen=True)
class Ranks:
    """Who this process is among the ranks, and the small things they tell each other."""

    rank: int
    world: int
    local_rank: int
    device: torch.device
    backend: str
    mesh: DeviceMesh
    link: Link | None = None  # what emulates the network, if something does
    played: int = 1  # how many of the ranks this process is: all of them when they are virtual
    parallel_dims: ParallelDims | None = None  # None: all are data-parallel ranks of FSDP2
    by_hand: bool = False  # was each rank started by itself, with nobody to watch it?

    @property
    def data_rank(self) -> int:
        """Which of the data-parallel ranks this process is (of virtual ones the first)."""
        return self.rank if self.parallel_dims is None else self.parallel_dims.data_rank(self.rank)

    @property
    def data_world(self) -> int:
        """How many ranks have batches of their own."""
        return self.world if self.parallel_dims is None else self.parallel_dims.dp

    @property
    def is_first_of_model(self) -> bool:
        """Is this process the first of those that hold one model together? It speaks for their batches."""
        return self.parallel_dims is None or self.parallel_dims.is_first_of_model(self.rank)

    @property
    def are_virtual(self) -> bool:
        """Does one process play all ranks?"""
        return self.played > 1

    @property
    def is_first(self) -> bool:
        """Is this rank 0, which speaks and writes for all?"""
        return self.rank == 0

    @property
    def processes(self) -> int:
        """How many processes there are: as many as ranks, or one that plays them all."""
        return self.world // self.played

    def share(self, items: Sequence[T]) -> list[T]:
        """The part of ``items`` that this process sees to, so that all are seen to once."""
        return list(items[self.rank :: self.processes])

    def broadcast(self, value: T) -> T:
        """Rank 0's (small, picklable) ``value`` on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over the processes."""
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: T) -> list[T]:
        """Every process's (small, picklable) ``value``, by rank."""
        by_rank: list[T | None] = [None] * self.processes
        dist.all_gather_object(by_rank, value)
        return by_rank  # type: ignore[return-value]

    def sum_over_data(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over the processes, each batch's counted once though several ranks know them."""
        return self.sum(values if self.is_first_of_model else torch.zeros_like(values))

    def gather_over_data(self, value: T) -> list[T]:
        """Every data-parallel process's ``value``, in order: that of the first of the ranks that hold one model."""
        return [theirs for theirs, speaks in self.gather((value, self.is_first_of_model)) if speaks]


@contextmanager
def join(config: AnyTraining) -> Iterator[Ranks]:
    """The process group: NCCL and gloo with GPUs, gloo without. Without torchrun this process is the only rank, or the
    one that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name (`by_hand`).

    Ranks that are all on this machine listen on its loopback address only.

    Virtual ranks are all in this process; ConfigError where there is another one, or an emulated link, and where ranks
    started by hand do not find each other.
    """
    with _environment_as_it_was():
        timeout = timedelta(seconds=config.run.timeout_s)
        meeting = _met_by_hand(config, timeout) if is_by_hand(os.environ) else None
        if "RANK" not in os.environ:
            os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        link = link_of_this_run()
        if link is not None:  # its nodes are all this machine
            local_rank, local_world = int(os.environ["RANK"]), link.ranks
        torch.set_num_threads(config.run.threads or max(1, len(os.sched_getaffinity(0)) // local_world))
        device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if virtual := config.run.virtual_ranks:
            _check_alone(virtual, int(os.environ["WORLD_SIZE"]), link)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo", timeout=timeout, **(meeting or _meeting(timeout))
        )
        rank, world = dist.get_rank(), dist.get_world_size()
        try:
            dims = ParallelDims.of(config.parallel, world)
            mesh = dims.mesh(device.type)
            asked = None if dims.is_plain else dims
            by_hand = meeting is not None
            yield Ranks(rank, virtual or world, local_rank, device, backend, mesh, link, virtual or 1, asked, by_hand)
        finally:
            dist.destroy_process_group()
            _forget_distributed_tensors()


@contextmanager
def _environment_as_it_was() -> Iterator[None]:
    """Afterwards the variables that `join` may set are as before.

    A process that is started later must not take itself for this rank, nor keep to this machine's loopback interface.
    """
    before = {name: os.environ.get(name) for name in _SET_BY_JOIN}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _forget_distributed_tensors() -> None:
    """Empty this thread's cache of operations on distributed tensors, which holds the group.

    Python drops in a forked process what belonged to other threads than the one that forked. With a group in it, whose
    threads are not there, that waits forever: so did a ``subprocess.Popen(preexec_fn=...)`` of another thread here.
    """
    with contextlib.suppress(ImportError, AttributeError):  # torch's own, and private
        from torch.distributed.tensor.debug import _clear_fast_path_sharding_prop_cache

        _clear_fast_path_sharding_prop_cache()


def _met_by_hand(config: AnyTraining, timeout: timedelta) -> dict[str, Any] | None:
    """The same as `_meeting` for ranks that were started by hand; LOCAL_RANK and LOCAL_WORLD_SIZE are found out.

    None where this rank is the only one.
    """
    place = place_of(os.environ)
    os.environ.update({**place.variables(), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    if config.run.virtual_ranks:
        _check_alone(config.run.virtual_ranks, place.world, None)
    if place.world == 1:
        return None
    met = meet(place, timeout)
    os.environ.update(LOCAL_RANK=str(met.local_rank), LOCAL_WORLD_SIZE=str(met.local_world))
    return {"store": met.store, "rank": place.rank, "world_size": place.world}


def _meeting(timeout: timedelta) -> dict[str, Any]:
    """The arguments of `init_process_group` for where the ranks meet; none: in the store that the environment names."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("LOCAL_WORLD_SIZE") != str(world):
        return {}  # other machines take part
    loopback.keep_on_this_machine()
    if world == 1:
        return {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or not loopback.is_loopback(os.environ["MASTER_ADDR"]):
        return {}  # torchrun keeps it; or an emulated network has one of its own
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        store = loopback.listening_store(port, timeout)
    else:
        store = dist.TCPStore(loopback.HOST, port, is_master=False, wait_for_workers=False, timeout=timeout)
    return {"store": store, "rank": rank, "world_size": world}


def _check_alone(virtual: int, processes: int, link: Link | None) -> None:
    if processes > 1:
        raise ConfigError(
            [f"virtual_ranks: {virtual} virtual ranks run in one process, not in {processes}; use --nproc_per_node 1"]
        )
    if link is not None:
        raise ConfigError(["virtual_ranks: nothing of virtual ranks goes over a network; train without the link"])


def agree(config: AnyTraining, ranks: Ranks) -> None:
    """ConfigError on every rank when the ranks were not told the same: collectives of unequal sizes are garbage."""
    shared = {name: value for name, value in config.resolved().items() if name not in _A_RANKS_OWN}
    by_rank = ranks.gather((shared, torch.__version__))
    settings, version = by_rank[0]
    for rank, (other_settings, other_version) in enumerate(by_rank):
        if other_version != version:
            raise ConfigError([f"torch: rank 0 runs {version}, rank {rank} runs {other_version}"])
        differing = [key for key in settings if settings[key] != other_settings.get(key)]
        if differing:
            raise ConfigError(
                [
                    f"{key}: rank 0 has {settings[key]!r}, rank {rank} has {other_settings.get(key)!r}"
                    for key in differing
                ]
            )
