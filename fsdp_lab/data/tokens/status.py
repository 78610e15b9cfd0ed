"""A small file in which the rank that tokenises tells the others how far it is: no collective, no timeout.

Its name contains the start of the training run, so that a file of an earlier run is never believed.
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
    """The state of the builder. `text` is the cache folder's name when done, and the message when failed.

    `beat` counts up while the builder lives.
    """

    state: Literal["building", "done", "failed"]
    text: str = ""
    beat: int = 0


def status_path(cache_dir: Path, run_id: str) -> Path:
    """The path of one run's status file; `run_id` may be any string."""
    name = re.sub(r"[^\w.-]", "_", run_id)
    return cache_dir / _FOLDER / f"{name}.json"


def read_status(path: Path) -> Status | None:
    """The status that the builder wrote last; None while there is none."""
    try:
        return Status(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_status(path: Path, status: Status) -> None:
    """Replaces the status file at `path`, atomically."""
    write_json(path, asdict(status))


@contextlib.contextmanager
def heartbeat(path: Path) -> Iterator[None]:
    """Writes the state "building" with a growing beat once a second, from a thread, while the block runs."""
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
