"""The launcher's own words where torchrun would end in a traceback; whole runs under it are in test_train."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from fsdp_lab import launch, launcher
from fsdp_lab.ranks.preempt import stop_signals
from fsdp_lab.ranks.processes import LAUNCHER

MEETING = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=no.such.host.invalid:29500", "program.py"]


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the launcher does to its own process is taken back."""
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    monkeypatch.setenv(LAUNCHER, "0")
    before = dict(os.environ)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            socket.gaierror(-3, "Temporary failure in name resolution"),
            2,
            "launch: no address of no.such.host.invalid is known (",
        ),
        (RendezvousConnectionError("the store"), 1, "launch: the launcher that kept the meeting place is gone"),
    ],
)
def test_what_ends_a_meeting_is_one_line(
    error: Exception, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: object) -> None:
        raise error

    monkeypatch.setattr(launcher, "run", fails)
    assert launch.main(MEETING) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(said)
