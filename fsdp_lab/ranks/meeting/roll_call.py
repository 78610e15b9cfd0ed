"""Ranks that were started by hand meet: all are waited for, none comes twice, and all were told the same number.

Rank 0 keeps a store at the master address. Each rank writes there who it is and reads who the others are, before there
is a process group, which would wait in silence for one that does not come and take two of the same number for one.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch.distributed as dist

from fsdp_lab.ranks.meeting import loopback
from fsdp_lab.ranks.meeting.by_hand import Place
from fsdp_lab.ranks.meeting.hosts import address_towards, host_key, interface_of
from fsdp_lab.settings.reading.fields import ConfigError

_POLL_S = 0.1
_FIRST_WORD_S, _FURTHER_WORDS_S = 10.0, 60.0
_READING_S = 2.0  # rank 0 takes the store with it: the others read there why it leaves


@dataclass(frozen=True)
class _Present:
    """What a rank says of itself."""

    rank: int
    world: int
    host: str
    pid: int
    key: str

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid})"


@dataclass(frozen=True)
class Met:
    """All ranks are there. ``store`` is for the process group; ``local_rank`` of ``local_world`` on this machine."""

    store: dist.Store
    local_rank: int
    local_world: int


def meet(place: Place, timeout: timedelta) -> Met:
    """Wait until all ranks of ``place.world`` have come to the master address; every rank calls this once.

    ConfigError where that cannot be, or has not come about after ``timeout``; it names the ranks concerned.
    """
    end = time.monotonic() + timeout.total_seconds()
    _use_the_interface_that_faces(place)
    store = dist.PrefixStore("roll call", _listening(place, timeout) if place.rank == 0 else _reached(place, end))
    me = _Present(place.rank, place.world, os.uname().nodename, os.getpid(), host_key())
    try:
        present = _all_present(store, me, place, end)
    except ConfigError:
        if place.rank == 0:
            time.sleep(_READING_S)
        raise
    except (RuntimeError, KeyError):  # torch's, of a store that is gone
        raise ConfigError([f"rank 0 at {_at(place)} left before all ranks had come; it says why"]) from None
    here = [other.rank for other in present if other.key == me.key]
    return Met(dist.PrefixStore("group", store), here.index(place.rank), len(here))


def _all_present(store: dist.Store, me: _Present, place: Place, end: float) -> list[_Present]:
    number = store.add("come", 1)
    store.set(f"number {number}", json.dumps(asdict(me)))
    seen: dict[int, _Present] = {}
    read, next_word = 0, time.monotonic() + _FIRST_WORD_S
    while len(seen) < place.world:
        while store.check([f"number {read + 1}"]):
            read += 1
            other = _Present(**json.loads(store.get(f"number {read}")))
            _check(other, me, seen, is_me=read == number)
            seen.setdefault(other.rank, other)
        missing = [rank for rank in range(place.world) if rank not in seen]
        if missing and time.monotonic() > end:
            raise ConfigError([f"{_ranks(missing)} did not come to {_at(place)}{_who_can_come(place)}"])
        if missing and time.monotonic() > next_word:
            print(f"rank {me.rank} waits at {_at(place)} for {_ranks(missing)}", file=sys.stderr, flush=True)
            next_word += _FURTHER_WORDS_S
        time.sleep(_POLL_S if missing else 0)
    return [seen[rank] for rank in range(place.world)]


def _check(other: _Present, me: _Present, seen: dict[int, _Present], is_me: bool) -> None:
    """ConfigError where two were told another number of ranks; and for the later one of two with the same number."""
    if other.world != me.world:
        raise ConfigError(
            [
                f"world: rank {me.rank} on {me.host} was told {me.world}, "
                f"rank {other.rank} on {other.host} was told {other.world}"
            ]
        )
    if is_me and (first := seen.get(me.rank)) is not None:
        raise ConfigError([f"rank: there is a rank {me.rank} already, on {first}; if it is gone, start all ranks anew"])


def _listening(place: Place, timeout: timedelta) -> dist.TCPStore:
    """Rank 0's store, at the master address alone."""
    try:
        return loopback.listening_store(place.port, timeout, _resolved(place))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "the port is taken, by another program or another rank 0; name a free one"
        elif error.errno == errno.EADDRNOTAVAIL:
            why = "no address of this machine; rank 0 runs on the machine that the master address names"
        else:
            why = error.strerror or str(error)
        raise ConfigError([f"master {_at(place)}: {why}"]) from None


def _reached(place: Place, end: float) -> dist.TCPStore:
    """Another rank's connection to the store, as soon as rank 0 keeps it."""
    address, next_word = _resolved(place), time.monotonic() + _FIRST_WORD_S
    while True:
        try:
            socket.create_connection((address, place.port), timeout=2).close()
            rest = timedelta(seconds=max(1.0, end - time.monotonic()))
            return dist.TCPStore(address, place.port, is_master=False, wait_for_workers=False, timeout=rest)
        except OSError as error:
            trouble = error.strerror or str(error)
        except RuntimeError:  # torch's: something else answers there
            raise ConfigError([f"master {_at(place)}: what listens there is no rank 0"]) from None
        if time.monotonic() > end:
            raise ConfigError([f"master {_at(place)}: rank 0 cannot be reached there ({trouble})"])
        if time.monotonic() > next_word:
            print(f"rank {place.rank} waits for rank 0 at {_at(place)} ({trouble})", file=sys.stderr, flush=True)
            next_word += _FURTHER_WORDS_S
        time.sleep(_POLL_S)


def _resolved(place: Place) -> str:
    """The numerical address of the master."""
    try:
        return str(socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError([f"master {_at(place)}: {error.strerror or error}"]) from None


def _use_the_interface_that_faces(place: Place) -> None:
    """Have gloo and NCCL use the interface on the way to the master, unless the environment names another.

    gloo would take the address that this machine's own name has, which on Debian is 127.0.1.1.
    """
    if loopback.is_loopback(place.host):
        loopback.keep_on_this_machine()
        return
    address = address_towards(place.host, place.port)
    name = interface_of(address) if address and not loopback.is_loopback(address) else None
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def _who_can_come(place: Place) -> str:
    if place.rank == 0 and loopback.is_loopback(address := _resolved(place)):
        return f"; rank 0 listens on {address}, where ranks of this machine alone can come"
    return ""


def _at(place: Place) -> str:
    return f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, numbers))}"
