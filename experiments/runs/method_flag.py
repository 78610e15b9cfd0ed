"""Methods as flags of experiments: a name or label that the registry does not know is refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import comm_compress as cc
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.refusing.early import checked


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
    """The label of a method as a name for files and folders: ``int8-int8``."""
    return re.sub(r"[^A-Za-z0-9=.]+", "-", method).strip("-")


def check_training_flags(flags: Sequence[str]) -> None:
    """ValueError that lists what is wrong with flags that every run of fsdp_lab.train is to get."""
    if flags:
        checked(TrainConfig, flags)
