"""Ranks of one machine meet and talk where no other machine can come: on 127.0.0.1 alone.

torch's own TCPStore listens on every address of the machine, whatever host it is given, and torchrun unpickles what it
finds there; gloo and NCCL listen on the address that the machine's name has. None of them asks who calls. What the
ranks say to each other is pickled, too, so whoever can write to these ports can run code as the user.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, RendezvousStoreInfo

HOST = "127.0.0.1"
BACKEND = "loopback"
_INTERFACES = ("lo", "lo0")  # Linux, macOS
_TIMEOUT = timedelta(minutes=5)


def is_loopback(host: str) -> bool:
    """Is ``host``, as MASTER_ADDR names it, this machine's loopback?"""
    return host == "localhost" or host.startswith("127.")


def listening_store(port: int = 0, timeout: timedelta = _TIMEOUT, address: str = HOST) -> dist.TCPStore:
    """A store that this process keeps, at ``address`` alone and ``port`` (0: a free one).

    OSError when the port is taken, or the numerical ``address`` is none of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
        port = listener.getsockname()[1]
        return dist.TCPStore(
            address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
        )


def keep_on_this_machine() -> None:
    """Have gloo and NCCL use the loopback interface, unless the environment names another."""
    name = next((name for _, name in socket.if_nameindex() if name in _INTERFACES), None)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # with "=" this very one, else those that begin so


class LoopbackRendezvous(RendezvousHandler):  # type: ignore[misc]  # torch is not typed here
    """torchrun's meeting of the launchers where there is one alone; the ranks use its store (`use_agent_store`)."""

    def __init__(self, port: int) -> None:
        """Listen on ``port`` when the ranks meet first; 0: on any free one."""
        self._port, self._id = port, uuid.uuid4().hex

    def get_backend(self) -> str:
        """The name that torchrun knows this rendezvous by."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks connect to the launcher's store, which outlives them, and open none."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet at once, as nobody else is waited for. OSError when the port is taken.

        Ranks that are started again meet in a new store, at a free port: the old one holds what was left there.
        """
        store, self._port = listening_store(self._port), 0
        return RendezvousInfo(dist.PrefixStore(self._id, store), 0, 1, RendezvousStoreInfo(HOST, store.port))

    def is_closed(self) -> bool:
        """A launch on one machine is never closed to newcomers, as there are none."""
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else would hear of it."""

    def num_nodes_waiting(self) -> int:
        """How many launchers would like to join: none."""
        return 0

    def get_run_id(self) -> str:
        """A name of this launch that no other has."""
        return self._id

    def shutdown(self) -> bool:
        """Succeed at once: nobody has to be told."""
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(int(parameters.endpoint.rpartition(":")[2]))


rendezvous_handler_registry.register(BACKEND, _create)
