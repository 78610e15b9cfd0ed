"""The SHA-256 of big files, remembered: nobody wants to hash 500 MB again at every start."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from fsdp_lab.files.atomic import file_sha256, write_json
from fsdp_lab.files.errors import DataError

_MEMORY = "file_hashes.json"
# A file changed within the clock's granularity after hashing can keep its time stamp: do not remember fresh files.
_SETTLED_SECONDS = 2.0

Identity = list[int]
"""Size in bytes, time of last change in ns, inode: what must be equal for a remembered hash to be believed."""


def file_identity(path: Path) -> Identity:
    """Size, mtime_ns and inode of `path`. Raises DataError if it is missing or a folder."""
    if not path.is_file():
        kind = "is a folder; give one file" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {kind} (--data_path)")
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def remembered_sha256(path: Path, cache_dir: Path, say: Callable[[str], None]) -> str:
    """SHA-256 of the file's content, from `cache_dir` if path, size, mtime and inode are unchanged.

    `say` is told when a remembered hash is reused, because only then the content is not looked at.
    """
    key, identity = str(path.resolve()), file_identity(path)
    known = _read(cache_dir).get(key)
    if isinstance(known, dict) and known.get("identity") == identity and "sha256" in known:
        say(f"{path}: unchanged since it was hashed (same size, time and inode), content not read again")
        return str(known["sha256"])
    sha256 = file_sha256(path)
    if file_identity(path) != identity:
        raise DataError(f"{path} changed while it was being read; start again when it is complete")
    if time.time() - identity[1] / 1e9 > _SETTLED_SECONDS:
        with contextlib.suppress(OSError):  # a cache that others may only read: hashed again the next time
            _remember(cache_dir, key, {"identity": identity, "sha256": sha256})
    return sha256


def has_memory(cache_dir: Path) -> bool:
    """Whether hashes are remembered in `cache_dir` already."""
    return (cache_dir / _MEMORY).is_file()


def _read(cache_dir: Path) -> dict[str, Any]:
    try:
        content = json.loads((cache_dir / _MEMORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # nothing remembered, or damaged: hashing again repairs it
    return content if isinstance(content, dict) else {}


def _remember(cache_dir: Path, key: str, entry: dict[str, Any]) -> None:
    with FileLock(cache_dir / f"{_MEMORY}.lock"):
        write_json(cache_dir / _MEMORY, _read(cache_dir) | {key: entry})
