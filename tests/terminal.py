"""Commands on a terminal of their own, 100 columns wide: what a person sees there, and types."""

from __future__ import annotations

import os
import pty
import re
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
from pexpect.fdpexpect import fdspawn

from tests.distributed import _CONTEXT

ROOT = Path(__file__).resolve().parents[1]
_SIZE = 30, 100  # lines, columns
_READY = "the terminal is mine\r\n"
Typed = Sequence[tuple[str, str]]
"""(what to wait for, what to type then), one after the other."""


class Ended(NamedTuple):
    """The exit code, and all that the terminal was sent: carriage returns, escape sequences and all."""

    code: int
    screen: str

    @property
    def lines(self) -> list[str]:
        """What was written, piece by piece: a bar that is drawn anew begins at a carriage return."""
        return [line for line in re.split(r"[\r\n]+", self.screen) if line]


def on_terminal(
    command: Sequence[str], typed: Typed = (), env: Mapping[str, str] | None = None, timeout: float = 120
) -> Ended:
    """A command as a person starts it: the terminal is its input, output, error output and controlling terminal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    child = pexpect.spawn(
        command[0], list(command[1:]), cwd=ROOT, env=environment, dimensions=_SIZE, timeout=timeout, encoding="utf-8"
    )
    screen = _watch(child, typed)
    child.close()
    return Ended(child.exitstatus if child.exitstatus is not None else 128 + child.signalstatus, screen)


def forked_on_terminal(
    program: Callable[[list[str]], Any],
    words: Sequence[str],
    typed: Typed = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    at_once: str = "",
) -> Ended:
    """The same of ``program(words)``, which returns its exit code or leaves with it, forked from the server that has
    imported everything. ``at_once``: typed before anything is asked."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, _SIZE)
    process = _CONTEXT.Process(target=_on_terminal, args=(os.ttyname(theirs), program, list(words), dict(env or {})))
    child = fdspawn(ours, timeout=timeout, encoding="utf-8")
    try:
        process.start()
        child.expect_exact(_READY)
        os.close(theirs)  # now the program alone holds the terminal, and its end is the end of what can be read
        child.send(at_once)
        screen = _watch(child, typed)
        process.join(timeout)
        assert process.exitcode is not None, screen
        return Ended(process.exitcode, screen)
    finally:
        process.kill()
        process.join()
        child.close()


def _watch(child: Any, typed: Typed) -> str:
    screen = ""
    for awaited, reply in typed:
        child.expect_exact(awaited)
        screen += child.before + child.after
        child.sendline(reply)
    child.expect(pexpect.EOF)
    return screen + str(child.before)


def _on_terminal(name: str, program: Callable[[list[str]], Any], words: list[str], environment: dict[str, str]) -> None:
    os.setsid()
    terminal = os.open(name, os.O_RDWR)  # the first that a session opens is its controlling terminal
    for number in (0, 1, 2):
        os.dup2(terminal, number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ.update(environment)
    sys.argv[1:] = words
    print(_READY.strip(), flush=True)
    code = program(words)
    sys.stdout.flush()
    os._exit(code or 0)
