"""A disk that refuses to write: every library's error for it becomes one `OSError` with the disk's own reason.

Without this, torch.save says that it is at an unexpected position, torch.distributed.checkpoint wraps that error in its
own, and safetensors and tokenizers raise errors of Rust's.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem

_RUST = re.compile(r"\(os error (\d+)\)")


class _File(io.FileIO):
    """An unbuffered file that remembers why the disk refused."""

    refusal: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.refusal = error
            raise


@contextmanager
def writing(path: Path) -> Iterator[io.BufferedWriter[Any]]:
    """Opens a new file for writing. A refusal of the disk is an OSError, also where the writer raised another error."""
    raw = _File(path, "wb")
    try:
        with io.BufferedWriter(raw) as file:
            yield file
    except Exception as error:
        if raw.refusal is None:
            raise
        raise OSError(raw.refusal.errno, raw.refusal.strerror, str(path)) from error


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turns a refusal of the disk inside the block into an OSError that names ``path``, also where Rust code wrote."""
    try:
        yield
    except Exception as error:
        in_rust = _RUST.search(str(error))
        number = error.errno if isinstance(error, OSError) else in_rust and int(in_rust[1])
        if number is None or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


class _Streams(FileSystem):  # type: ignore[misc]  # torch is not typed here
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode == "wb":
            with writing(Path(path)) as file:
                yield file
        else:
            with super().create_stream(path, mode) as stream:
                yield stream


def checkpoint_writer(folder: Path) -> dcp.FileSystemWriter:
    """The writer of torch.distributed.checkpoint, made to open its files with `writing`."""
    writer = dcp.FileSystemWriter(folder)
    writer.fs = _Streams()
    return writer
