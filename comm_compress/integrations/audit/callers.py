"""Who calls a collective: the line of the user's code, and the part of torch or comm_compress that it went through."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_DEPTH = 4  # frames of the user's that are kept
_OURS = ("comm_compress", "torch")
# Everything goes through these, so that they say nothing; nor do torch's packages whose names begin with an underscore.
_PLUMBING = (
    "comm_compress.integrations.audit",
    "torch._",
    "torch.distributed._functional_collectives",
    "torch.distributed.c10d_logger",
    "torch.distributed.distributed_c10d",
    "torch.nn.modules.module",
    "torch.utils",
)


class Caller(NamedTuple):
    """``where``: FILE:LINE of the innermost frame outside of torch, comm_compress and Python's own library; ``code``:
    what stands there; ``through``: the package that made the call ("user" when the line did so itself); ``stack``: the
    innermost frames of the user's, FILE:LINE FUNCTION."""

    where: str
    code: str
    through: str
    stack: tuple[str, ...]


def caller() -> Caller:
    """Who called the caller of this function. Where no frame is the user's, as in a thread of autograd, it says so."""
    frames = list(_frames(sys._getframe(1)))
    users = [frame for frame in frames if _is_users(_module(frame))][:_DEPTH]
    inner = frames[: frames.index(users[0])] if users else frames
    through = next((name for frame in inner if (name := _speaking(_module(frame)))), "user" if users else "torch")
    if not users:
        return Caller("(no frame of the user's)", "", through, ())
    line = linecache.getline(users[0].f_code.co_filename, users[0].f_lineno).strip()
    return Caller(_place(users[0]), line, through, tuple(f"{_place(f)} {f.f_code.co_name}" for f in users))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_users(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in _OURS and root not in sys.stdlib_module_names and bool(root)


def _speaking(module: str) -> str | None:
    """The package that is worth naming: comm_compress, or up to three parts of torch's name."""
    if module.startswith(_PLUMBING) or module.partition(".")[0] not in _OURS:
        return None
    return "comm_compress" if module.startswith("comm_compress") else ".".join(module.split(".")[:3])


def _place(frame: FrameType) -> str:
    """FILE:LINE, the file as seen from the working folder where it is below it, else its last two parts."""
    path = Path(frame.f_code.co_filename)
    here = Path(os.getcwd())
    name = path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-2:])
    return f"{name}:{frame.f_lineno}"
