"""Reading a checkpoint's files without running what somebody may have put into them.

torch.distributed.checkpoint keeps its index, `.metadata`, as a pickle, and unpickles any other than tensors with full
powers. Here the index may name only the classes it is made of, entries are tensors, and tensors are read with
``weights_only``.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as dcp_metadata

from fsdp_lab.checkpoint.files.folder import CheckpointError

_ALLOWED = {
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # its name from Python 3.13 on
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no index of tensors needs")
        return super().find_class(module, name)


def read_index(path: Path) -> dcp_metadata.Metadata:
    """The index in ``path``, naming files beside it only. CheckpointError when it is anything else."""
    try:
        index = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(f"{path}: refused: {error}") from None
    if not isinstance(index, dcp_metadata.Metadata):
        raise CheckpointError(f"{path}: refused: it holds a {type(index).__name__}, not an index of tensors")
    for name, entry in index.state_dict_metadata.items():
        if not isinstance(entry, dcp_metadata.TensorStorageMetadata):
            raise CheckpointError(f"{path}: refused: its entry {name} is no tensor")
    for stored in (index.storage_data or {}).values():
        if Path(stored.relative_path).name != stored.relative_path or stored.transform_descriptors:
            raise CheckpointError(f"{path}: refused: it points to {stored.relative_path!r}")
    return index


class TensorReader(dcp.FileSystemReader):  # type: ignore[misc]
    """torch's reader, with an index that runs no code. ``refusal``: why there was none; torch 2.11 drops the error."""

    refusal: str | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """The index (of all ranks; saves with one index a rank are not ours)."""
        try:
            index = read_index(Path(self.path) / ".metadata")
        except CheckpointError as error:
            self.refusal = str(error)
            raise
        index.storage_meta = dcp_metadata.StorageMeta(load_id=self.load_id)
        return index


class TensorPlanner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """torch's planner, which loads nothing but tensors."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Refuse what is no tensor, because it would be unpickled."""
        raise CheckpointError(f"the checkpoint's entry {read_item.dest_index.fqn} is no tensor")


def why_refused(error: BaseException) -> str:
    """What torch's restricted reader found, without its advice to read the file in the way that runs code."""
    text = " ".join(str(error).split())
    if (asked := re.search(r"GLOBAL ([\w.]+)", text)) is not None:
        return f"it asks for {asked[1]}, which is neither a plain value nor a tensor"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text or "Weights only" in text:
        return "it holds something else than plain values and tensors, or is damaged"
    return text.partition(". ")[0]


def load_own(path: Path) -> dict[str, Any]:
    """A rank's own file: plain values and tensors (on the CPU). CheckpointError when it holds anything else."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except Exception as error:  # a damaged file may raise anything
        raise CheckpointError(f"{path}: refused: {why_refused(error)}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: refused: it holds a {type(content).__name__}")
    return content
