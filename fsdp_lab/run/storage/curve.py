"""The loss curve of a run, written line by line, so that a crash loses nothing of it.

One JSON object a line, with those of `KEYS` that are known at that step (a step may have a second line: its
evaluation). A number that is not finite is null.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from pathlib import Path

from fsdp_lab.settings.reading.strict import load_json

_log = logging.getLogger(__name__)
KEYS = (
    "step",
    "train_seconds",  # spent in optimiser steps, rank 0's clock
    "tokens",  # trained on so far, all ranks
    "train_loss",  # mean since the last log line, nats a token
    "val_loss",
    "val_ppl",
    "tau",  # a draft's: tokens a pass of the target on held-out prompts
    "grad_norm",  # of this step, before clipping
    "sent_bytes",  # so far, by rank 0; null while stock collectives have not been seen
    "grad_rel_error",  # of this step, see the results schema
    "grad_cos_sim",
    "residual_norm",
    "density",
)
_EVALUATIONS = {"val_loss", "tau"}


class Curve:
    """Rank 0's file; with ``path`` None nothing is written. The file appears with its first line.

    A disk that does not take a line ends the curve with a warning, not the run.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_over = False

    def add(self, **values: float | None) -> None:
        """Append a line, in one write, so that a kill leaves whole lines."""
        assert values.keys() <= set(KEYS), values.keys()
        if self._path is None or self._is_over:
            return
        line = json.dumps({key: _short(values[key]) for key in KEYS if key in values}, allow_nan=False)
        try:
            _append(self._path, line.encode() + b"\n")
        except OSError as error:
            _log.warning("loss curve ends here, cannot write %s: %s", self._path, error.strerror)
            self._is_over = True

    def rewind(self, step: int) -> None:
        """Drop what was written after ``step``'s log line, its evaluation included: it comes again."""
        if self._path is None or not self._path.is_file():
            return
        kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if _is_before(line, step)]
        rewound = self._path.with_suffix(".tmp")
        rewound.write_bytes(b"".join(kept))
        rewound.replace(self._path)


def seen_from(results: Path, curve: Path) -> str | None:
    """Where ``curve`` is, from the folder of the results file; None when nothing was written. Any rank may ask."""
    return os.path.relpath(curve.resolve(), results.resolve().parent) if curve.is_file() else None


def _append(path: Path, line: bytes) -> None:
    """Append all of ``line`` or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def _is_before(line: bytes, step: int) -> bool:
    """Was the line written by the first ``step`` steps? A line that is not whole was not."""
    try:
        values = load_json(line)
        at = values["step"]
        return bool(line.endswith(b"\n") and (at < step or (at == step and values.keys().isdisjoint(_EVALUATIONS))))
    except (ValueError, KeyError, TypeError):
        return False


def _short(value: float | None) -> float | None:
    """Round to seven significant digits, which is what a float32 has; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")
