"""Where the time of a call goes: kernels, torch calls, fresh memory, the ledger, the driver, and Python around all."""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args
from unittest import mock

import torch
from numba.core.dispatcher import Dispatcher
from torch.overrides import TorchFunctionMode

import comm_compress.kernels
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.drive import transport

Part = Literal["python", "torch", "kernel", "allocation", "transport", "ledger"]
PARTS: tuple[Part, ...] = get_args(Part)
TORCH: tuple[Part, ...] = ("torch", "allocation")
MADE = ("empty", "zeros", "ones", "full")
ALLOCATES = {"clone", *MADE, *(f"{name}_like" for name in MADE), *(f"new_{name}" for name in MADE)}
NO_CALL = {"__get__", "__set__"}  # a look at a tensor's shape or dtype


class Clock:
    """The time of the calling thread on its core, shared out among parts: always to the innermost that runs."""

    def __init__(self) -> None:
        self.nanoseconds: Counter[Part] = Counter()
        self.calls: Counter[Part] = Counter()
        self._part: Part = "python"
        self._since = time.thread_time_ns()

    def timed(self, part: Part, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``call`` returns; its time is that of ``part``."""
        before = self._turn_to(part)
        self.calls[part] += 1
        try:
            return call(*args, **kwargs)
        finally:
            self._turn_to(before)

    def reset(self) -> None:
        """Forget the times of all parts counted so far."""
        self.nanoseconds.clear()
        self.calls.clear()
        self._since = time.thread_time_ns()

    def reading(self) -> dict[Part, float]:
        """The seconds of each part so far."""
        self._turn_to(self._part)
        own = {part: self.nanoseconds[part] - self.calls[part] * _watching_takes(part in TORCH) for part in PARTS}
        return {part: max(nanoseconds, 0) / 1e9 for part, nanoseconds in own.items()}

    def _turn_to(self, part: Part) -> Part:
        before, now = self._part, time.thread_time_ns()
        self.nanoseconds[before] += now - self._since
        self._part = part
        self._since = time.thread_time_ns()  # what it costs to keep the books belongs to nobody
        return before


class _TorchCalls(TorchFunctionMode):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in NO_CALL:
            return func(*args, **(kwargs or {}))
        return self._clock.timed("allocation" if name in ALLOCATES else "torch", func, *args, **(kwargs or {}))


@functools.cache
def _watching_takes(torch_call: bool) -> float:
    """Nanoseconds of a watched call that are the watching's own, in the part that it is counted in."""
    clock, repeats, x = Clock(), 2000, torch.zeros(8)
    if not torch_call:
        for _ in range(repeats):
            clock.timed("kernel", _nothing)
        return clock.nanoseconds["kernel"] / repeats
    start = time.thread_time_ns()
    for _ in range(repeats):
        x.view(2, 4)
    bare = time.thread_time_ns() - start
    with _TorchCalls(clock):
        for _ in range(repeats):
            x.view(2, 4)
    return max(clock.nanoseconds["torch"] - bare, 0) / repeats


def _nothing() -> None:
    pass


@contextlib.contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Inside, ``clock`` runs by parts. Kernels must have been compiled: called once before with the same types."""
    for torch_call in (True, False):
        _watching_takes(torch_call)  # before anything is watched
    with contextlib.ExitStack() as stack:
        for owner, name, part in [*_kernels(), *_books()]:
            stack.enter_context(mock.patch.object(owner, name, _watched(clock, part, getattr(owner, name))))
        stack.enter_context(_TorchCalls(clock))
        yield


def _watched(clock: Clock, part: Part, call: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        return clock.timed(part, call, *args, **kwargs)

    return inside


def _kernels() -> Iterator[tuple[Any, str, Part]]:
    """Every name under which Python calls a compiled kernel."""
    for module in _kernel_modules():
        for name, value in vars(module).items():
            if isinstance(value, Dispatcher) or name == "over_blocks":
                yield module, name, "kernel"


@functools.cache
def _kernel_modules() -> list[Any]:
    modules = pkgutil.walk_packages(comm_compress.kernels.__path__, "comm_compress.kernels.")
    return [sys.modules[module.name] for module in modules if module.name in sys.modules]


def _books() -> Iterator[tuple[Any, str, Part]]:
    yield from ((Ledger, name, "ledger") for name in ("add",))
    yield from ((Collective, name, "ledger") for name in ("charge", "spent", "now"))
    yield from ((transport, name, "ledger") for name in ("sent_by", "messages_by"))
