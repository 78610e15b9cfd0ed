"""Conversations as the sequences of a run: one a row, of which only the assistant's tokens are predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.loader import SequenceDataset
from fsdp_lab.data.chats.examples import Example, digest_of
from fsdp_lab.data.tokens.shards import SplitName
from fsdp_lab.files.errors import DataError


class ConversationDataset(SequenceDataset):
    """The conversations of a split, each a row of its own, in the file's order.

    A row is int64 ``[max_length, 2]``, for each position: the token, and its label, which is the same token where the
    assistant says it and `IGNORED` elsewhere. What follows a conversation is padding (token 0, no label), where causal
    attention never looks. Rows are the same in every epoch.
    """

    def __init__(self, examples: Sequence[Example], split: SplitName, max_length: int) -> None:
        self.split, self.max_length = split, max_length
        self._examples = examples
        self._lengths = np.array([len(example.tokens) for example in examples], dtype=np.int64)
        self.num_tokens = int(self._lengths.sum())
        self._targets = np.array([int(example.said[1:].sum()) for example in examples], dtype=np.int64)
        self.identity = digest_of(examples)

    def __len__(self) -> int:
        return len(self._examples)

    def rows(self, indices: np.ndarray, epoch: int = 0) -> Tensor:
        """The conversations ``indices``: LongTensor ``[len(indices), max_length, 2]``."""
        batch = torch.zeros(len(indices), self.max_length, 2, dtype=torch.int64)
        batch[..., 1] = IGNORED
        for row, index in zip(batch, indices.tolist(), strict=True):
            if not 0 <= index < len(self):
                raise IndexError(f"conversation {index} of {len(self)}")
            _, tokens, said = self._examples[index]
            row[: len(tokens), 0] = tokens
            row[: len(tokens), 1] = tokens.where(said, IGNORED)
        return batch

    def num_targets(self, indices: np.ndarray) -> int:
        """The assistant's tokens in the conversations ``indices``."""
        return int(self._targets[indices].sum())

    def tokens_in(self, indices: np.ndarray) -> int:
        """The tokens of the conversations ``indices``, without padding."""
        return int(self._lengths[indices].sum())


def split_examples(examples: Sequence[Example], val_fraction: float) -> tuple[list[Example], list[Example]]:
    """Conversations to train on, and those held out: ``val_fraction`` of them, at least one.

    A hash of its tokens decides about each, so equal conversations are in the same split, whatever the order of the
    file. DataError where nothing would be left to train on.
    """
    hashes = [digest_of([example]) for example in examples]
    last = sorted(hashes)[max(1, round(val_fraction * len(examples))) - 1]
    training = [example for example, its in zip(examples, hashes, strict=True) if its > last]
    held_out = [example for example, its in zip(examples, hashes, strict=True) if its <= last]
    if not training:
        raise DataError(
            f"data_path: {len(examples)} usable conversations, of which {len(held_out)} are held out, leave none to "
            f"train on: give more, or lower --val_fraction"
        )
    return training, held_out
