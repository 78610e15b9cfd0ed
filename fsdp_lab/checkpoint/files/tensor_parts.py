"""Pieces of tensors in torch's distributed checkpoints: saved as parts of the whole, and loaded into any other parts.

A checkpoint knows whole tensors by name, and which rectangles of them lie in which file. DTensor says which rectangle
a rank has; a piece may be several (GPT-2's queries, keys and values of some heads), so it says so itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from fsdp_lab.models.model import Placed
from fsdp_lab.models.shards.sharding import Chunk, Held, held


def placed(tensors: Mapping[str, Tensor], pieces: Mapping[str, Placed]) -> dict[str, Tensor]:
    """``tensors``, of which those named in ``pieces`` say which part of the whole they are. Memory is shared."""
    return {
        name: PieceTensor.of(held(tensor, pieces[name].piece), pieces[name].shape) if name in pieces else tensor
        for name, tensor in tensors.items()
    }


class PieceTensor(torch.Tensor):
    """What a process holds of a whole tensor; it answers the planners of `torch.distributed.checkpoint`."""

    held: Held
    whole: torch.Size

    @staticmethod
    def of(part: Held, whole: torch.Size) -> PieceTensor:
        """``part`` of a tensor of shape ``whole``, in its own memory."""
        made: PieceTensor = part.local.as_subclass(PieceTensor)
        made.held, made.whole = part, whole
        return made

    def size(self, dim: int | None = None) -> Any:
        """The size of the whole, with which a planner compares what it finds."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.held.local)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.whole),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._storage_of(chunk) for chunk in self.held.chunks]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for chunk in self.held.chunks:
            if self._storage_of(chunk).offsets == index.offset:
                return self.held.local[chunk.here]
        raise ValueError(f"{index.fqn}: no part begins at {index.offset}")

    def _storage_of(self, chunk: Chunk) -> ChunkStorageMetadata:
        bounds = [part.indices(n)[:2] for part, n in zip(chunk.whole, self.whole, strict=False)]
        bounds += [(0, n) for n in self.whole[len(bounds) :]]
        sizes = torch.Size(stop - start for start, stop in bounds)
        return ChunkStorageMetadata(torch.Size(start for start, _ in bounds), sizes)
