"""A small file through which the rank that builds tells the others how it goes. No collective, no timeout.

It is named by the start of the training run, so that what an earlier run left behind is never believed.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fsdp_lab.files.atomic import write_json

BEAT_SECONDS = 1.0
_KEEP_SECONDS = 7 * 24 * 3600.0
_FOLDER = "runs"


@dataclass(frozen=True)
class Status:
    """`state` of the builder; `text` is the cache folder's name when done, the message when failed; `beat` counts
    up while it lives."""

    state: Literal["building", "done", "failed"]
    text: str = ""
    beat: int = 0


def status_path(cache_dir: Path, run_id: str) -> Path:
    """The status file of one run; a run_id may be any string."""
    name = re.sub(r"[^\w.-]", "_", run_id)
    return cache_dir / _FOLDER / f"{name}.json"


def read_status(path: Path) -> Status | None:
    """The builder's last word; None while there is none."""
    try:
        return Status(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_status(path: Path, status: Status) -> None:
    """Replace the status file, atomically."""
    write_json(path, asdict(status))


@contextlib.contextmanager
def heartbeat(path: Path) -> Iterator[None]:
    """Write state "building" with a growing beat, once a second, from a thread, for as long as the block runs."""
    _remove_old(path.parent)
    stop = threading.Event()

    def beat() -> None:
        count = 1
        while not stop.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a full disk is the builder's own error to report
                write_status(path, Status("building", beat=count))
            count += 1

    write_status(path, Status("building"))
    thread = threading.Thread(target=beat, name="tokeniser heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _remove_old(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEEP_SECONDS:
                path.unlink()
