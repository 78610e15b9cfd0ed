"""How a training program starts and, above all, how it ends."""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from fsdp_lab.files.errors import NOBODYS_MISTAKE, DataError
from fsdp_lab.ranks.exit_codes import FAILED, OK, PREEMPTED, USER_ERROR
from fsdp_lab.ranks.meeting.by_hand import is_by_hand
from fsdp_lab.ranks.preempt import Preempted, RankLostError
from fsdp_lab.ranks.processes import end_with_launcher
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.refusing.early import checked

C = TypeVar("C", bound=Config)


def run_as_program(train: Callable[[TrainConfig], Any]) -> NoReturn:
    """Run ``python -m fsdp_lab.train``, as `run_training` says."""
    run_training(train, TrainConfig, "fsdp_lab.train")


def run_training(train: Callable[[C], Any], config: type[C], program: str) -> NoReturn:
    """Parse the command line, train, and leave with 0, 1 (failed), 2 (the user's mistake) or 143 (told to stop).

    A user's mistake, a full disk and a rank that is gone are one message and no traceback.
    """
    _quiet()
    _outlive_the_terminal()
    end_with_launcher()
    speaks = os.environ.get("RANK", "0") == "0" or is_by_hand(os.environ)  # no two of those on one terminal
    code = OK
    try:
        train(checked(config, sys.argv[1:], program))
    except ValueError as error:
        code = USER_ERROR
        if speaks:
            print(f"{program}: {error}", file=sys.stderr)
        else:
            time.sleep(2)  # the first rank to leave has torchrun end the others: let rank 0 speak before
    except Preempted as error:
        code = PREEMPTED
        if speaks:
            print(f"{program}: stopped by {error}", file=sys.stderr)
    except RankLostError as error:
        code = FAILED
        if not error.is_said:
            print(f"{program}: {error}", file=sys.stderr)
    except Exception as error:
        code = FAILED
        rank = os.environ.get("RANK", "0")
        known = _disk_trouble(error, program, rank) or _damaged_data(error, program, rank)
        print(known or f"rank {rank} failed:\n{traceback.format_exc()}", file=sys.stderr)
    _leave(code)


def _disk_trouble(error: Exception, program: str, rank: str) -> str | None:
    if not isinstance(error, OSError) or error.errno not in NOBODYS_MISTAKE:
        return None
    where = f": {error.filename}" if error.filename else ""
    return f"{program}: rank {rank}: {error.strerror}{where}; make room or write elsewhere, and start again"


def _damaged_data(error: Exception, program: str, rank: str) -> str | None:
    """What was wrong with the data, where that came out only in training."""
    return f"{program}: rank {rank}: {error}" if isinstance(error.__cause__, DataError) else None


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # after FSDP2 on gloo a plain exit aborts now and then


class _Output(io.FileIO):
    """A rank's output. What nobody takes any more (a closed terminal, ``| head``, a full disk) is dropped."""

    def write(self, data: Any, /) -> int:
        """Write what can be written, and say that all of it was."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _outlive_the_terminal() -> None:
    """Print through `_Output`: a line that cannot be printed must not end a training that could still save."""
    for name in ("stdout", "stderr"):
        now = getattr(sys, name)
        raw = io.BufferedWriter(_Output(now.fileno(), "wb", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, now.encoding, "backslashreplace", write_through=True))


def _quiet() -> None:
    """Silence warnings that a user can do nothing about."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
