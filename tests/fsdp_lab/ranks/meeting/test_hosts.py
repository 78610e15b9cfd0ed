"""What this machine knows of its own name, addresses and interfaces."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fsdp_lab.ranks.meeting import hosts


def test_processes_of_one_machine_have_its_key_whatever_it_is_called() -> None:
    program = "from fsdp_lab.ranks.meeting.hosts import host_key; print(host_key())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hosts.host_key()


def test_another_boot_or_another_numbering_of_processes_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = hosts.host_key()
    monkeypatch.setattr("fsdp_lab.ranks.meeting.hosts.os.stat", lambda path: type("Stat", (), {"st_ino": 7})())
    assert hosts.host_key() != own
    monkeypatch.undo()
    monkeypatch.setattr(type(hosts._BOOT_ID), "read_text", lambda path: "another boot")
    assert hosts.host_key() != own


def test_the_way_to_a_host() -> None:
    assert hosts.address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert hosts.address_towards("no.such.host.invalid", 9) is None
    assert hosts.interface_of("127.0.0.1") == "lo"
    assert hosts.interface_of("192.0.2.1") is None
    assert hosts.interface_of("::1") is None
