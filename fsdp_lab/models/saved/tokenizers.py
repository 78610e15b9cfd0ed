"""The tokenizer of a model folder as transformers reads it, with its chat template. Code in the folder is never run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

import fsdp_lab.models.architectures.families  # noqa: F401 - MiniCPM's configuration, which transformers looks for first
from fsdp_lab.models.architectures.config_json import brings_code, read_config_json


def read_tokenizer(folder: Path, key: str) -> Any:
    """The tokenizer that transformers reads in ``folder``; ``key`` is the flag that named the folder.

    ValueError when there is none, or when only code that comes with the folder (``auto_map``) could read it.
    """
    if (folder / "config.json").is_file():
        read_config_json(folder, key)  # transformers reads it, too, to choose the kind of tokenizer
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a stranger's files: the readers of transformers and tokenizers raise any exception
        what = " ".join(str(error).split())
        if _wants_code(folder):
            what = "only the code that comes with the folder (auto_map) reads it, and such code is never run"
        raise ValueError(f"{key}: {folder} has no usable tokenizer: {what}") from None


def check_ids(ids: Iterable[int], vocab_size: int, key: str) -> None:
    """ValueError when one of ``ids`` is beyond the ``vocab_size`` tokens that the model of the flag ``key`` embeds."""
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise ValueError(f"{key}: the tokenizer gives token {largest:,}, the model has {vocab_size:,} of them")


def _wants_code(folder: Path) -> bool:
    try:  # not the strict reader: transformers itself writes 10^30 for a length without limit
        return brings_code(json.loads((folder / "tokenizer_config.json").read_bytes()))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
