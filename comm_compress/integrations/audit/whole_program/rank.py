"""In a process of the audited program that has become a rank: count until it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from comm_compress.integrations.audit.lines import Line
from comm_compress.integrations.audit.session import Audit
from comm_compress.integrations.audit.whole_program.count_files import Kept


class Recording(Audit):  # type: ignore[no-untyped-call]
    """An audit that keeps its counts in files and never disturbs the program: what fails in it ends the counting."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(())
        self._kept: Kept | None = kept
        self.pid = os.getpid()

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Line | None:
        if self._kept is None or os.getpid() != self.pid:  # a fork of the rank is no rank
            return None
        try:
            line = self._counted(func, args, kwargs)
            if line is None:
                self._kept.put_named(func.name(), self.not_counted[func.name()])
            else:
                self._kept.put(line)
            return line
        except Exception as error:  # the disk is full
            self.end(f"{type(error).__name__}: {error}")
            return None

    def _counted(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Line | None:
        try:
            return super()._note(func, args, kwargs)
        except Exception:  # a group that torch itself does not know: of a program with a transport of its own
            self.not_counted[func.name()] = self.not_counted.get(func.name(), 0) + 1
            return None

    def end(self, trouble: str | None = None) -> None:
        """Count no more: the process ends, or ``trouble`` has come."""
        if self._kept is not None and os.getpid() == self.pid:
            kept, self._kept = self._kept, None
            with contextlib.suppress(OSError):  # of a full disk: the file ends without a last word
                kept.end(trouble)


_recording: Recording | None = None


def begin(folder: Path) -> None:
    """Count what this thread sends from now on; called whenever the process has joined a group of ranks.

    RuntimeError where the program is inside a dispatch mode of its own, which would be left before this one is.
    """
    global _recording
    active = _get_current_dispatch_mode_stack()
    if _recording is not None and _recording in active and _recording.pid == os.getpid():
        return
    if any(mode is not _recording for mode in active):
        names = ", ".join(type(mode).__name__ for mode in active)
        raise RuntimeError(f"not counted: its ranks met inside of a dispatch mode of torch ({names})")
    if _recording is None or _recording.pid != os.getpid():
        _recording = Recording(Kept(folder, dist.get_rank(), dist.get_world_size(), dist.get_backend()))
        atexit.register(_recording.end)
    _recording.__enter__()
