"""`cc.audit_program`: start a program as it is, and count what its ranks send."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from comm_compress.integrations.audit.whole_program.count_files import read, troubles
from comm_compress.integrations.audit.whole_program.summing import ProgramAudit

FOLDER = "COMM_COMPRESS_AUDIT"
"""The environment variable by which ``start/sitecustomize.py`` knows where to count."""

_START = Path(__file__).resolve().parent / "start"
# A terminal sends these to the program as well; the others are sent to one process, which is to pass them on.
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def audit_program(command: Sequence[str]) -> ProgramAudit:
    """Run ``command`` and wait for it; what every process of it sent since it joined a group of ranks.

    The program is any launcher or Python program, such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``, and
    runs as it would alone, but slower. Processes on this machine are seen that inherit this one's environment and read
    PYTHONPATH. Signals that ask this process to end are the program's. ValueError where it cannot be started.
    """
    if not command:
        raise ValueError("no program to run")
    with tempfile.TemporaryDirectory(prefix="comm_compress_audit_") as name:
        folder = Path(name)
        code = _run(command, _environment(folder))
        return ProgramAudit(tuple(command), code, tuple(read(folder)), tuple(troubles(folder)))


def _environment(folder: Path) -> dict[str, str]:
    paths = [str(_START), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The program's exit code, as a shell gives it."""
    with _signals_for(started := list[subprocess.Popen[bytes]]()):
        try:
            started.append(subprocess.Popen(command, env=environment))
        except OSError as error:
            raise ValueError(f"cannot start {command[0]} ({error.strerror})") from None
        code = started[0].wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_for(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """While inside, signals leave this process waiting, and those that the terminal does not send go to ``started``."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if number in _PASSED_ON:
            for process in started:
                process.send_signal(number)

    asked = [number for number in (*_OF_THE_TERMINAL, *_PASSED_ON) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, heard) for number in asked}  # a handler, which the program does not inherit
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
