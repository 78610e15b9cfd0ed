"""Methods as flags of experiments: a name or label that the registry does not know is refused before anything runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import comm_compress as cc
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.refusing.early import checked

_LONGEST = 80  # of a name: files may have 255 bytes, and what is beside it in theirs (a rank, a suffix) as well


def a_method(text: str) -> str:
    """A method's name or label, for argparse's ``type``. ValueError with the nearest name for an unknown one."""
    cc.make(text)
    return text


def a_method_or_none(text: str) -> str:
    """A method's label, of one direction or of both, as ``--method`` takes it, or none; for argparse's ``type``."""
    for part in text.split(" + "):
        if part != "none":
            a_method(part)
    return text


def folder_name(method: str) -> str:
    """The label of a method as a name for files, folders and runs: ``int8-int8``. A long one ends in its digest."""
    name = re.sub(r"[^A-Za-z0-9=.]+", "-", method).strip("-")
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(method.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - len(digest) - 1]}-{digest}"


def check_training_flags(flags: Sequence[str]) -> None:
    """ValueError that lists what is wrong with flags that every run of fsdp_lab.train is to get."""
    if flags:
        checked(TrainConfig, flags)
