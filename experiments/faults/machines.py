"""Machines made of this one: each has a network address, a name and process ids of its own, and knows no other's.

A network namespace gives it the address, and `unshare` the rest; all know each other's names. So a rank cannot look
another's process up, as it can on one machine. Cores, memory, the file system and the clock are shared. Needs root,
iproute2 and util-linux.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from experiments.network.namespaces import Namespaces, UnavailableError
from experiments.runs.processes import dying_with_this_process

_ISOLATED = ("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
# The shell stays, as process 1, which is deaf to signals. Its mounts are its own.
_NAMED = 'hostname "$0" && mount --bind "$1" /etc/hosts || exit 126; shift; "$@"; exit $?'
_FROM_OUTSIDE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass
class Program:
    """What one machine's program did. ``ended_at``, in seconds of `time.monotonic`: when it ended or was killed."""

    code: int | None = None
    ended_at: float | None = None
    output: list[str] = field(default_factory=list)

    def said(self, *beginnings: str) -> str:
        """The lines that begin so, joined by `` / ``."""
        return " / ".join(line for line in self.output if line.startswith(beginnings))


class Machines:
    """Several machines on one switch, as a context manager: ``with Machines(2) as machines: machines.run(commands)``.

    UnavailableError (a ValueError) where this machine or user cannot have them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._net = Namespaces(ranks=count)
        self._leaving = ExitStack()

    def __enter__(self) -> Machines:
        missing = [tool for tool in ("unshare", "hostname") if shutil.which(tool) is None]
        if missing:
            raise UnavailableError(f"{' and '.join(missing)} not found; install util-linux and hostname")
        with ExitStack() as undo:
            undo.enter_context(self._net)
            self._hosts = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="fsdp_lab_hosts_"))) / "hosts"
            names = [f"{self.address(number)} {self.name(number)}" for number in range(self.count)]
            self._hosts.write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
            self._leaving = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._leaving.close()

    def name(self, machine: int) -> str:
        """The name that the machine has for its own programs."""
        return f"node{machine}"

    def address(self, machine: int) -> str:
        """The IPv4 address at which the other machines reach it."""
        return self._net.address(machine)

    def pull_cable(self, machine: int) -> None:
        """Take the machine off the network; nothing is said to anybody."""
        subprocess.run(["ip", "-n", self._net.name(machine), "link", "set", "eth0", "down"], check=True)

    def run(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]] | None = None,
        on_line: Callable[[int, str], None] = lambda machine, line: None,
        timeout_s: float = 180,
    ) -> list[Program]:
        """Run a command on each machine (by number) until all have ended, and return what they did.

        ``on_line`` is called with a machine's number and each line that is printed there. What has not ended after
        ``timeout_s`` seconds is killed.
        """
        environments = environments or [{}] * len(commands)
        processes = [self._start(*pair) for pair in enumerate(zip(commands, environments, strict=True))]
        programs = [Program() for _ in processes]
        lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        for number, process in enumerate(processes):
            threading.Thread(target=_read, args=(number, process, programs[number], lines), daemon=True).start()
        deadline, running = time.monotonic() + timeout_s, len(processes)
        try:
            while running and (rest := deadline - time.monotonic()) > 0:
                try:
                    number, line = lines.get(timeout=rest)
                except queue.Empty:
                    break
                if line is None:
                    running -= 1
                    continue
                programs[number].output.append(line)
                on_line(number, line)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return programs

    def _start(self, machine: int, what: tuple[Sequence[str], Mapping[str, str]]) -> subprocess.Popen[str]:
        command, further = what
        clean = {k: v for k, v in os.environ.items() if k not in (*_FROM_OUTSIDE, *_INTERFACES)}
        inside = ["ip", "netns", "exec", self._net.name(machine), *_ISOLATED, "sh", "-c", _NAMED]
        return subprocess.Popen(
            [*inside, self.name(machine), str(self._hosts), *command],
            env={**clean, **further},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=dying_with_this_process(),
        )


def _read(
    number: int, process: subprocess.Popen[str], program: Program, lines: queue.Queue[tuple[int, str | None]]
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put((number, line.rstrip("\n")))
    program.code, program.ended_at = process.wait(), time.monotonic()
    lines.put((number, None))
