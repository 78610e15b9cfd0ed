"""Faults made on purpose, for tests and drills only: what FSDP_LAB_FAULT says happens to a rank at a point of its run.

    FSDP_LAB_FAULT='kill:rank=1,step=7'                       SIGKILL as rank 1 begins step 7
    FSDP_LAB_FAULT='usr2:at=validate; slow:rank=0,s=0.5'      several, with ;

A fault is ``KIND:key=value,...``: which ``rank`` (none: every one), in which ``step`` (none: whichever comes first;
before the first step it is 0), ``at`` which point of it (`POINTS`), for how many seconds ``s`` (hang and slow), with
which ``code`` (exit). It happens once, but for slow and full_disk, which stay. docs/trainer/faults.md says what each
leads to.

The points are single lines, ``faults.at("validate")``: a loop over nothing when the variable is unset.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_lab.settings.reading.fields import ConfigError

VARIABLE = "FSDP_LAB_FAULT"
KINDS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP: the process stands still, and no thread of it runs",
    "term": "SIGTERM to itself",
    "usr2": "SIGUSR2 to itself",
    "hup": "SIGHUP to itself, which a closed terminal sends",
    "quit": "SIGQUIT to itself, which Ctrl-\\ sends",
    "hang": "sleep in Python for s seconds (none: for ever)",
    "exit": "os._exit(code)",
    "nan": "the loss, and with it every gradient, is NaN",
    "full_disk": "what is written there goes to /dev/full: the kernel refuses it with ENOSPC",
    "slow": "sleep for s seconds each time",
}
POINTS = {
    "tokenize": "before the data are tokenised or waited for",
    "step": "as a step begins",
    "forward": "before a forward pass",
    "backward": "before a backward pass",
    "optimizer": "before the gradients are clipped and applied",
    "validate": "after a validation batch",
    "weights": "as a checkpoint's files of model and optimizer are written",
    "save": "as a checkpoint's file of each rank is written",
    "manifest": "the files are written, the manifest is not",
    "rename": "the manifest is written, the folder has not got its name",
    "model": "as final_model is written",
    "row": "as the results row is written",
}
_SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "usr2": signal.SIGUSR2,
    "hup": signal.SIGHUP,
    "quit": signal.SIGQUIT,
}
_WRITES = ("weights", "save", "manifest", "model", "row")
_FULL = Path("/dev/full")
_LASTING = ("slow", "full_disk")


@dataclass(frozen=True)
class Fault:
    """One fault, as `parse` read it."""

    kind: str
    at: str
    rank: int | None = None
    step: int | None = None
    s: float | None = None
    code: int = 1

    def __str__(self) -> str:
        """The fault as it is written in the variable, without what is a default."""
        given = [f"{k}={v}" for k, v in vars(self).items() if k != "kind" and v != getattr(_default(self.kind), k)]
        return ":".join([self.kind, *([",".join(given)] if given else [])])


def _default(kind: str) -> Fault:
    return Fault(kind, at={"nan": "backward", "full_disk": "save"}.get(kind, "step"))


def parse(text: str) -> tuple[Fault, ...]:
    """The faults that ``text`` asks for. ConfigError names every part that is not understood."""
    faults, complaints = [], []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        try:
            faults.append(_parse(part))
        except ValueError as error:
            complaints.append(f"{VARIABLE}: {part!r}: {error}")
    if complaints:
        raise ConfigError(complaints)
    return tuple(faults)


def _parse(part: str) -> Fault:
    kind, _, rest = part.partition(":")
    if kind not in KINDS:
        raise ValueError(f"no such kind; there are {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _value(kind, key, value)
    if kind == "slow" and "s" not in values:
        raise ValueError("wants s=SECONDS")
    return replace(_default(kind), **values)


def _value(kind: str, key: str, value: str) -> Any:
    points: tuple[str, ...] = _WRITES if kind == "full_disk" else ("backward",) if kind == "nan" else tuple(POINTS)
    if key == "at":
        if value not in points:
            raise ValueError(f"at={value}: wants one of {', '.join(points)}")
        return value
    if key == "s" and kind in ("hang", "slow"):
        if not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ValueError(f"s={value}: wants seconds, such as 0.5")
        return float(value)
    if key in ("rank", "step") or (key, kind) == ("code", "exit"):
        if not re.fullmatch(r"\d+", value):
            raise ValueError(f"{key}={value}: wants a whole number")
        return int(value)
    keys = ["rank", "step", "at", *(["s"] if kind in ("hang", "slow") else []), *(["code"] if kind == "exit" else [])]
    raise ValueError(f"{key}: no such key; there are {', '.join(keys)}")


# ---- what happens in a run: one process is one rank, so the armed faults are the module's ------------------------

_armed: tuple[Fault, ...] = ()  # this rank's, still to come
_step = 0


def arm(rank: int) -> str | None:
    """Read the variable, once a run; returns all ranks' faults for the results row (None without). ConfigError."""
    global _armed, _step
    faults = parse(os.environ.get(VARIABLE, ""))
    _armed, _step = tuple(fault for fault in faults if fault.rank in (None, rank)), 0
    return "; ".join(map(str, faults)) or None


def at(point: str, *, step: int | None = None, path: Path | None = None, writes: bool = True) -> None:
    """Let the faults happen that are due now that the run has come to ``point``.

    ``step``: the one that it belongs to, where that is not the step that training is in (saving goes on beside it).
    ``path``: of the file that is about to be written, for full_disk. ``writes``: does this rank write it? For others no
    disk is full.
    """
    global _step
    if point == "step" and step is not None:
        _step = step
    now = _step if step is None else step
    for fault in _armed:
        is_due = fault.at == point and fault.step in (None, now) and fault.kind != "nan"
        if is_due and (writes or fault.kind != "full_disk"):
            _happen(fault, now, path)


def spoiled(loss: Any) -> Any:
    """The tensor ``loss``, or NaN (with NaN gradients) where that is due."""
    for fault in _armed:
        if fault.kind == "nan" and fault.step in (None, _step):
            _announce(fault, _step)
            return loss * float("nan")
    return loss


def _happen(fault: Fault, step: int, path: Path | None) -> None:
    global _armed
    _announce(fault, step)
    if fault.kind not in _LASTING:
        _armed = tuple(other for other in _armed if other is not fault)
    if fault.kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[fault.kind])
    elif fault.kind == "exit":
        os._exit(fault.code)
    elif fault.kind == "full_disk":
        _fill_disk(path, fault)
    elif fault.kind == "hang":
        end = float("inf") if fault.s is None else time.monotonic() + fault.s
        while time.monotonic() < end:
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))
    else:
        time.sleep(fault.s or 0.0)


def _fill_disk(path: Path | None, fault: Fault) -> None:
    """Whoever writes ``path`` fails as on a full disk, in the way of the library that writes."""
    if path is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"(injected at {fault.at})")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(_FULL)


def _announce(fault: Fault, step: int) -> None:
    """Write one line to stderr past every buffer, because a kill may come next."""
    if fault.kind != "slow":
        os.write(2, f"injected fault: {fault} (step {step}, pid {os.getpid()})\n".encode())
