"""The files of a Hugging Face folder that hold its weights, and what tells them from other weights. Needs no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.files.atomic import file_sha256
from fsdp_lab.settings.reading.strict import load_json

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def weight_files(folder: Path, trust_pickle: bool = False, key: str = "model_dir") -> list[Path]:
    """The files that hold the weights: one, or all that an index names.

    ``trust_pickle``: pickles, too, where there are no safetensors. ``key``: the flag that named the folder. ValueError:
    there are none, or what says where they are is damaged or names files elsewhere.
    """
    for single, index in (_SAFETENSORS, *[_PICKLES] * trust_pickle):
        if (folder / index).is_file():
            return _listed(folder / index, key)
        if (folder / single).is_file():
            return [folder / single]
    if any(folder.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{key}: {folder} holds its weights as pickles, which can run code; convert them to "
            f"safetensors{pickle_advice('them', key)}"
        )
    raise ValueError(f"{key}: {folder} holds no model.safetensors")


def pickle_advice(what: str, key: str = "model_dir") -> str:
    """The way out for who knows the pickles' maker; none where the flag ``key`` takes no pickles at all."""
    return f", or give --trust_pickle if you trust whoever made {what}" if key == "model_dir" else ""


def weights_digest(files: Sequence[Path]) -> str:
    """32 hexadecimal digits of the files' bytes. The same weights in other files, or in another order, have others."""
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()[:32]


def _listed(index: Path, key: str) -> list[Path]:
    try:
        files = sorted(set(load_json(index.read_bytes())["weight_map"].values()))
        strange = [file for file in files if Path(file).name != file]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{key}: {index} is no index of weights: {error}") from None
    if strange:
        raise ValueError(f"{key}: {index} names {strange[0]!r}, which is not a file of its folder")
    return [index.parent / file for file in files]
