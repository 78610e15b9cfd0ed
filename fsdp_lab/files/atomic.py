"""Writing files so that a reader, or the next start after a crash, sees either the whole new file or the old state."""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TEMPORARY = ".tmp"


@contextlib.contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary neighbour of `path`; on success fsync it and rename it over `path`, else remove it.

    The temporary name is unique, so two writers of one file cannot mix their bytes: the last rename wins.
    Without ``durable`` nothing is synced: after a crash of the machine `path` may hold anything.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def make_folder(path: Path, key: str) -> None:
    """Make `path` and what is above it, where they are missing. ValueError naming the setting `key` if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{key}: cannot make the folder {path} ({error.strerror}); name another") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, atomically and durably."""
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by the JSON of `content`, atomically and durably."""
    write_bytes(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    # A rename is durable only once its folder is. Some file systems refuse to sync one: nothing more can be done.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
