"""What a method may pass data through beside its messages: variables, files, sockets, functions that it replaces.

Nothing here is proof against a program that means to deceive (docs/library/judging.md lists what is not seen); it
names what honest mistakes and simple tricks leave behind.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

import comm_compress as cc

_DEPTH = 5
_CODE = (FunctionType, BuiltinFunctionType, classmethod, staticmethod, property, type)
_WATCHED = ("comm_compress", "torch.distributed")
_NEEDED = (
    "comm_compress.drive.transport",
    "comm_compress.integrations",
    "comm_compress.laws",
    "torch.distributed",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = (
    *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "subprocess.Popen", "os.system"),
    *("os.posix_spawn", "os.exec", "os.fork", "mmap.__new__"),
)

Library = dict[str, Any]
"""Functions, classes and their members by dotted name, as they were."""


def library() -> Library:
    """What comm_compress and torch.distributed consist of now. To be asked before the method's file is imported."""
    for name in _NEEDED:
        importlib.import_module(name)
    cc.available()
    values: Library = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(_WATCHED) and isinstance(module, ModuleType):
            for key, value in vars(module).items():
                if issubclass(type(value), type) and value.__module__ == name:  # isinstance would wake deprecations
                    members = {k: v for k, v in vars(value).items() if _is_code(v)}
                    values |= {f"{name}.{key}.{k}": v for k, v in members.items()}
                if issubclass(type(value), _CODE):
                    values[f"{name}.{key}"] = value
    return values


def replaced(before: Library) -> list[str]:
    """Names of functions, classes and members that are not what they were: somebody put others in their place."""
    now = library()
    return sorted(name for name, value in before.items() if now.get(name, value) is not value)


def variables(module: ModuleType, compressor: cc.Compressor) -> dict[str, str]:
    """Everything that the file's own code can remember outside of `cc.State`, by name, as digests of its contents.

    Variables of the module, of its classes, defaults and closures of its functions, attributes of the compressor and
    of those inside it.
    """
    values: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        own = getattr(value, "__module__", None) == module.__name__
        if isinstance(value, type):
            if own:
                values |= {f"{name}.{k}": v for k, v in vars(value).items() if not _is_code(v)}
        elif isinstance(value, FunctionType):
            if own:
                values[f"{name}()"] = [value.__defaults__, value.__kwdefaults__, vars(value), _closure(value)]
        else:
            values[name] = value
    inner: Any = compressor
    while inner is not None:
        values |= {f"{type(inner).__name__} object .{k}": v for k, v in vars(inner).items() if k != "inner"}
        inner = vars(inner).get("inner")
    return {name: _digest(value) for name, value in values.items()}


def _closure(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if not _is_code(cell.cell_contents)]


def _is_code(value: Any) -> bool:
    return isinstance(value, _CODE) or hasattr(value, "__get__")


def _digest(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in _parts(value, _DEPTH):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """The bytes that make a value what it is; of objects deep inside only the type."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif value is None or isinstance(value, str | bytes | int | float | complex | torch.dtype):
        yield repr(value).encode()
    elif depth == 0:
        yield type(value).__name__.encode()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(key, depth - 1)
            yield from _parts(item, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        yield type(value).__name__.encode()
        for item in value:
            yield from _parts(item, depth - 1)
    else:
        yield type(value).__name__.encode()
        names = [f.name for f in fields(value)] if is_dataclass(value) else list(getattr(value, "__dict__", {}))
        for name in names:
            yield from _parts(getattr(value, name, None), depth - 1)


class Opened:
    """Files written to, sockets and programs that the process opens while `watching`: Python's own audit events."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._on = False
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every file that is opened inside."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _EVENTS:
            self.seen.append(event)
        elif event == "open" and _writes(*args) and "__pycache__" not in str(args[0]):
            self.seen.append(f"file {args[0]!s}")


def _writes(path: Any, mode: Any, flags: Any) -> bool:
    return any(letter in str(mode or "") for letter in "wax+") or bool(isinstance(flags, int) and flags & _WRITES)
