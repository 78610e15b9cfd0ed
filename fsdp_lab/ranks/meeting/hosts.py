"""This machine as the other ranks see it: what tells it from others, and the address and interface that face them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def host_key() -> str:
    """A text that processes share when they see each other's process ids, and no others.

    A machine's name does not do: edge devices made from one image have the same. Linux gives each start of a machine an
    id; containers on one machine number their processes apart.
    """
    boot, pids = os.uname().nodename, ""
    with contextlib.suppress(OSError):
        boot = _BOOT_ID.read_text().strip()
    with contextlib.suppress(OSError):
        pids = str(os.stat("/proc/self/ns/pid").st_ino)
    return f"{boot} {pids}"


def address_towards(host: str, port: int) -> str | None:
    """This machine's own address on the way to ``host``, by its routes; nothing is sent. None where there is no way."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return None


def interface_of(address: str) -> str | None:
    """The network interface that has the IPv4 ``address``; None for others, and where this cannot be asked."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
