"""Bytes that are sent again are counted, whatever else the process has open."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fsdp_lab.measure.connections import resent_bytes
from tests.fsdp_lab.test_train import wait_until

ATTACH_FILTER, DETACH_FILTER = 26, 27
RETURN = 0x06  # a packet filter's instruction: keep as many bytes of the packet as its constant says, here none


@contextmanager
def deaf(connection: socket.socket) -> Iterator[None]:
    """The kernel throws away each segment that arrives for ``connection``, as a link does that loses them."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", RETURN, 0, 0, 0))
    program = struct.pack("@HP", 1, ctypes.addressof(instruction))
    connection.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, program)
    yield
    connection.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_bytes_that_are_lost_are_counted_each_time_they_are_sent_again(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with server, socket.create_connection(server.getsockname()[:2]) as sender, server.accept()[0] as receiver:
        before = resent_bytes()
        sender.sendall(b"x" * 700)
        assert receiver.recv(700, socket.MSG_WAITALL) == b"x" * 700
        assert resent_bytes() == before
        with deaf(receiver):
            sender.sendall(b"y" * 1000)
            wait_until(lambda: resent_bytes() >= before + 2000)
        assert receiver.recv(1000, socket.MSG_WAITALL) == b"y" * 1000
        assert (resent_bytes() - before) % 1000 == 0


def test_what_is_no_connection_counts_nothing() -> None:
    before = resent_bytes()
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET):
        left.sendall(b"x")
        assert resent_bytes() == before
        assert right.recv(1) == b"x"
