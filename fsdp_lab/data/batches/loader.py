"""Batches of token sequences, the same for every world size and exactly resumable.

A split's token stream is cut into sequences of `max_length` tokens; every epoch visits them in an order that
follows from (seed, epoch) alone. Ranks are plain integers: nothing here communicates.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from fsdp_lab.data.tokens.shards import SplitName, TokenizedCorpus
from fsdp_lab.data.tokens.token_stream import TokenStream
from fsdp_lab.files.errors import DataError


class SequenceDataset(Dataset[Tensor], ABC):
    """The sequences of a split, all of ``max_length`` positions. ``identity`` names what they were made of."""

    split: SplitName
    max_length: int
    num_tokens: int
    identity: str

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def rows(self, indices: np.ndarray, epoch: int = 0) -> Tensor:
        """The sequences `indices` as `epoch` has them: a LongTensor [len(indices), max_length, ...]."""

    @abstractmethod
    def num_targets(self, indices: np.ndarray) -> int:
        """How many tokens a model predicts in the sequences `indices`."""

    def tokens_in(self, indices: np.ndarray) -> int:
        """How many tokens the sequences `indices` hold, padding left out."""
        return len(indices) * self.max_length

    def __getitem__(self, index: int) -> Tensor:
        return self.rows(np.array([index]))[0]


class TokenDataset(SequenceDataset):
    """Non-overlapping sequences of `max_length` tokens, memory-mapped; what is left at the end fills no sequence.

    dataset[i] is a LongTensor [max_length]. Raises DataError if the split is too small for one sequence.
    """

    added = 0
    """Positions of a sequence that hold no text."""

    def __init__(self, corpus: TokenizedCorpus, split: SplitName, max_length: int) -> None:
        if max_length < 1:
            raise DataError(f"--max_length must be positive, not {max_length}")
        self.split, self.max_length, self.identity = split, max_length, corpus.folder.name
        self.text_length = max_length - self.added
        self.num_tokens = corpus.num_tokens(split)
        self._stream = TokenStream(corpus, split)
        if not len(self):
            raise DataError(
                f"the {split} split has {self.num_tokens:,} tokens, but one sequence needs {max_length:,}: "
                f"lower --max_length or give more text with --data_path (cache {corpus.folder})"
            )

    def __len__(self) -> int:
        return self.num_tokens // self.text_length

    def num_targets(self, indices: np.ndarray) -> int:
        """All tokens but each sequence's first."""
        return len(indices) * (self.max_length - 1)

    def rows(self, indices: np.ndarray, epoch: int = 0) -> Tensor:
        """The sequences `indices`, a LongTensor [len(indices), max_length]: the same in every `epoch`."""
        batch = np.empty((len(indices), self.max_length), dtype=np.int64)
        for row, index in zip(batch, indices.tolist(), strict=True):
            if not 0 <= index < len(self):
                raise IndexError(f"sequence {index} of {len(self)}")
            self._stream.read_into(row, index * self.max_length)
        return torch.from_numpy(batch)


class JoinedDataset(ConcatDataset[Tensor]):
    """The sequences of several datasets of one `max_length`, one dataset after the other."""

    def __init__(self, datasets: Sequence[TokenDataset]) -> None:
        super().__init__(datasets)
        self.max_length = datasets[0].max_length
        assert all(dataset.max_length == self.max_length for dataset in datasets)

    def rows(self, indices: np.ndarray) -> Tensor:
        """The sequences `indices`, a LongTensor [len(indices), max_length]."""
        batch = torch.empty(len(indices), self.max_length, dtype=torch.int64)
        for row, index in zip(batch, indices.tolist(), strict=True):
            row.copy_(self[index])
        return batch


class Cursor(TypedDict):
    """The next batch to draw: `step` counts global batches within `epoch`."""

    epoch: int
    step: int


def epoch_order(num_sequences: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation of range(num_sequences), int64. Uses no global generator.

    It sorts the raw output of a counter generator: numpy promises never to change that, but not its shuffles.
    """
    draws = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_sequences)
    return np.argsort(draws, kind="stable")


def steps_per_epoch(num_sequences: int, batch_size: int, world_size: int, accumulation: int = 1) -> int:
    """Optimiser steps in one epoch of `num_sequences`: each takes `accumulation` batches of `batch_size` a rank."""
    return num_sequences // (batch_size * world_size * accumulation)


class Batch(NamedTuple):
    """Sequences of one rank, and how many tokens are predicted in those of all ranks, divided by the number of ranks.

    `rows`: LongTensor [batch_size, max_length] (of a masked model [..., 3], of conversations [..., 2]). Where each rank
    divides its summed loss by `targets`, the mean over ranks is the mean over all predicted tokens.
    """

    rows: Tensor
    targets: float


class Batches:
    """Training batches of one rank. What does not fill a step is dropped.

    With `played` > 1, the batches of that many ranks from `rank` on: [played * batch_size, ...].

    Step s of an epoch takes the sequences s*B to (s+1)*B of the epoch's order, where B = batch_size * world_size, and
    rank r takes `batch_size` of them from r * batch_size on. So the global order of sequences is the same however B
    is divided among ranks. Raises DataError if the data does not fill one step.
    """

    def __init__(
        self, dataset: SequenceDataset, batch_size: int, rank: int, world_size: int, seed: int, played: int = 1
    ) -> None:
        assert 0 <= rank <= world_size - played < world_size, (rank, world_size, played)
        if batch_size < 1:
            raise DataError(f"--batch_size must be positive, not {batch_size}")
        if seed < 0:
            raise DataError(f"--seed must not be negative: {seed}")
        self.dataset, self.batch_size, self.rank, self.world_size, self.seed = (
            dataset,
            batch_size,
            rank,
            world_size,
            seed,
        )
        self.played = played
        self.steps_per_epoch = steps_per_epoch(len(dataset), batch_size, world_size)
        self._order: tuple[int, np.ndarray] | None = None
        if not self.steps_per_epoch:
            raise DataError(
                f"the {dataset.split} split has {len(dataset):,} sequences (--max_length {dataset.max_length}), but "
                f"one step needs {batch_size * world_size:,} (--batch_size {batch_size} x {world_size} ranks): lower "
                f"--batch_size or --max_length, or give more with --data_path"
            )

    def batch(self, epoch: int, step: int) -> Batch:
        """This rank's batch of one step; steps may be asked for in any order."""
        assert 0 <= step < self.steps_per_epoch, (step, self.steps_per_epoch)
        all_ranks = self._of_all_ranks(epoch, step)
        first = self.rank * self.batch_size
        mine = all_ranks[first : first + self.played * self.batch_size]
        return Batch(self.dataset.rows(mine, epoch), self.dataset.num_targets(all_ranks) / self.world_size)

    def tokens_in(self, number: int) -> int:
        """How many tokens all ranks have in batch `number`, counted from 0 over all epochs; padding is left out."""
        return self.dataset.tokens_in(self._of_all_ranks(*divmod(number, self.steps_per_epoch)))

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of one epoch, from `start_step` on."""
        for step in range(start_step, self.steps_per_epoch):
            yield self.batch(epoch, step)

    def stream(self, cursor: Cursor | None = None) -> Iterator[tuple[Batch, Cursor]]:
        """Endless batches from `cursor` (default: the start), each with the cursor of the batch after it.

        Save that cursor in a checkpoint: a stream from it continues exactly. Its step may be steps_per_epoch.
        """
        epoch, step = (cursor["epoch"], cursor["step"]) if cursor else (0, 0)
        while True:
            for batch in self.epoch(epoch, step):
                step += 1
                yield batch, Cursor(epoch=epoch, step=step)
            epoch, step = epoch + 1, 0

    def _of_all_ranks(self, epoch: int, step: int) -> np.ndarray:
        together = self.batch_size * self.world_size
        return self._epoch_order(epoch)[step * together : (step + 1) * together]

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(len(self.dataset), self.seed, epoch)
        return self._order[1]


def num_validation_batches(dataset: SequenceDataset | JoinedDataset, batch_size: int, world_size: int) -> int:
    """How many batches `validation_batches` yields: the same number on every rank."""
    return -(-len(dataset) // (batch_size * world_size))


def validation_batches(
    dataset: SequenceDataset | JoinedDataset, batch_size: int, rank: int, world_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (tokens, weight): LongTensor [batch_size, max_length] and float32 [batch_size].

    Over all ranks every sequence comes exactly once with weight 1. Every rank yields the same number of batches
    of the same shape, because all ranks run an FSDP forward together: rows that are only padding (token 0) have
    weight 0 and must not count.
    """
    assert 0 <= rank < world_size, (rank, world_size)
    if batch_size < 1:
        raise DataError(f"the validation batch size must be positive, not {batch_size}")
    for step in range(num_validation_batches(dataset, batch_size, world_size)):
        first = (step * world_size + rank) * batch_size
        rows = dataset.rows(np.arange(first, min(first + batch_size, len(dataset))))
        tokens = rows.new_zeros(batch_size, *rows.shape[1:])
        tokens[: len(rows)] = rows
        yield tokens, (torch.arange(batch_size) < len(rows)).float()
