"""Ranks behind emulated links, forked from the server that has imported everything: without 4 s of imports for each.

Namespaces, links, environments and modules are those of `experiments.network.Namespaces.start`; what is missing is
``ip netns exec python -m`` alone. tests/experiments/network/ and tests/test_terminal.py start real processes.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest

from experiments.network.namespaces import Namespaces
from tests.distributed import _CONTEXT

_CLONE_NEWNET = 0x40000000  # linux/sched.h


class ForkedRank:
    """A forked ``python -m``, with what `experiments.runs.processes` asks of a `subprocess.Popen`."""

    def __init__(self, namespace: str, words: Sequence[str], environment: Mapping[str, str], is_silent: bool) -> None:
        """``words``: the module and its arguments. It leads a process group of its own, in ``namespace``."""
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run_module, args=(namespace, list(words), dict(environment), is_silent, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        ours.recv()  # from now on its group can be sent signals
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode


def _run_module(
    namespace: str, words: list[str], environment: dict[str, str], is_silent: bool, pipe: Connection
) -> None:
    os.setsid()
    pipe.send(None)
    with open(f"/run/netns/{namespace}") as network:
        failed = ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET)
        assert not failed, os.strerror(ctypes.get_errno())
    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words[1:]
    warnings.filterwarnings("ignore", message=".*found in sys.modules")
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `Namespaces.start` forks those of its commands that are ``python -m``."""
    start = Namespaces.start

    def forked(
        net: Namespaces, rank: int, command: Sequence[str], env: Mapping[str, str] | None = None, **popen: Any
    ) -> Any:
        if [sys.executable, "-m"] != list(command[:2]):
            return start(net, rank, command, env, **popen)
        is_silent = popen.get("stdout") == subprocess.DEVNULL
        return ForkedRank(net.name(rank), command[2:], net.whole_environment(rank, env), is_silent)

    monkeypatch.setattr(Namespaces, "start", forked)
