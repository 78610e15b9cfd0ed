"""`fsdp-lab WORDS` in this process: what it writes, how it ends, and what it leaves behind.

A process for each of many commands would spend its time on importing torch. So they share one, as their functions see
it: arguments, folder, environment, output. A command that is not refused would start something: that is kept from it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from experiments.faults.wrong_inputs.case import Case, Seen
from fsdp_lab.commands.main import main as fsdp_lab
from fsdp_lab.settings.flags import as_typed_now

SECONDS = 30  # for one command; importing torch is among it


class TooLateError(BaseException):
    """The command was not refused in time. Not an Exception, so that no command takes it for a mistake."""


def tried(case: Case) -> Seen:
    """Make the case's files, run its command among them, and see how it answers. Needs the main thread."""
    importlib.import_module("matplotlib.font_manager")  # on a new machine it asks a program for the fonts, once
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        case.make(folder)
        before = _contents(folder)
        said, written = io.StringIO(), io.StringIO()
        with _as_program(folder), redirect_stderr(said), redirect_stdout(written):
            code = _ended([*case.command.split(), *case.words])
        changed = sorted(path for path, _ in before.items() ^ _contents(folder).items())
        message, output = (text.getvalue().strip("\n").replace(str(folder), ".") for text in (said, written))
    return Seen(case, code, message, output, tuple(dict.fromkeys(changed)))


def _ended(words: list[str]) -> int | None:
    try:
        return fsdp_lab(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except TooLateError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return None
    except BaseException:  # what the interpreter would do
        traceback.print_exc()
        return 1


@contextmanager
def _as_program(folder: Path) -> Iterator[None]:
    """For a while this process is a command's own: in ``folder``, and whatever the command changes is put back."""
    here, argv, path = Path.cwd(), sys.argv, list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    sys.argv = ["fsdp-lab"]
    os.chdir(folder)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(SECONDS)
    try:
        with (
            mock.patch.dict(os.environ),
            mock.patch.object(subprocess.Popen, "__init__", _refuse),
            as_typed_now(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # runpy's, of modules that this process has imported before
            yield
    finally:
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.chdir(here)
        sys.argv, sys.path[:] = argv, path


def _too_late(number: int, frame: FrameType | None) -> None:
    raise TooLateError(f"not refused after {SECONDS} s")


def _refuse(process: Any, words: Any, *rest: Any, **options: Any) -> None:
    if not isinstance(words, str) and shutil.which(words[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
    raise TooLateError(f"started {words}")


def _contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below ``folder``, and of folders their being there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }
