"""Python imports this as it starts, because `audit_program` put its folder on PYTHONPATH.

It takes itself off the path, runs the ``sitecustomize`` that would have been found without it, and then waits for the
module of torch in which processes become ranks. It imports nothing but Python's own library, and whatever goes wrong in
counting is written down beside the counts and never raised: the program must run as it would without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "COMM_COMPRESS_AUDIT"
"""The environment variable with the folder in which every rank counts."""

_MODULE = "torch.distributed.distributed_c10d"
_BEGINS = "init_process_group"
_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = str(Path(__file__).resolve().parents[5])  # where the package comm_compress lies


class _Waiting(MetaPathFinder):
    """Hears of every import, and changes that of `_MODULE` alone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that others find for the module, whose execution then ends with `_watch`."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                _watch(module, self._folder)

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def _watch(module: ModuleType, folder: str) -> None:
    begins: Callable[..., Any] = getattr(module, _BEGINS)

    @functools.wraps(begins)
    def begins_and_counts(*args: Any, **kwargs: Any) -> Any:
        result = begins(*args, **kwargs)
        _count(folder)
        return result

    setattr(module, _BEGINS, begins_and_counts)


def _count(folder: str) -> None:
    sys.path.append(_ROOT)  # the last place, and for a moment: nothing that the program imports is shadowed
    try:
        from comm_compress.integrations.audit.whole_program.rank import begin

        begin(Path(folder))
    except Exception as error:
        _write_down(folder, f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        sys.path.remove(_ROOT)


def _write_down(folder: str, trouble: str) -> None:
    with (
        contextlib.suppress(OSError),  # the folder has gone with the one who waits for it
        open(os.path.join(folder, f"{os.getpid()}.trouble"), "w") as file,
    ):
        file.write(f"{' '.join(sys.argv[:1])} (process {os.getpid()}): {trouble}")


def _make_room_for_the_users() -> None:
    """Have the ``sitecustomize`` run that Python would have found without this one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # another one, now
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)  # the import system wants one when this has ended


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, _Waiting(os.environ[FOLDER]))
    _make_room_for_the_users()
