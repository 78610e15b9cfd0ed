"""Rows of a masked model's batches: what it sees and what it has to say, drawn anew in every epoch.

    [CLS] A [SEP] B [SEP]

A row is int64 ``[max_length, 3]``, for each position: the token, its type (0 up to the first [SEP], 1 in B and after
it), and the label. The label of [CLS] says whether B is a continuation (0) or not (1), as in transformers; of a chosen
position it is the token that was there; elsewhere it is `IGNORED`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsdp_lab.data.batches.loader import TokenDataset
from fsdp_lab.data.batches.masked.masking import Ints, draws_of_masking, mask, num_chosen
from fsdp_lab.data.batches.masked.pairs import DRAWS, Pairs
from fsdp_lab.data.tokens.shards import SplitName, TokenizedCorpus
from fsdp_lab.data.tokens.special import SpecialIds, ends_of_sentences, ordinary_ids, special_ids
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError

SPECIALS = 3  # [CLS] and two [SEP]
SHORTEST = 8  # positions of a sequence: fewer leave no room for two segments and a mask
_PURPOSE = 1  # one word of Philox's counter; the order of an epoch has 0 there


@dataclass(frozen=True)
class Masking:
    """What a tokenizer has to say about masks and segments."""

    ids: SpecialIds
    eot_id: int
    ordinary: npt.NDArray[np.int64]
    ends_sentence: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> Masking:
        """DataError where the tokenizer lacks a token that a masked model needs."""
        return cls(special_ids(tokenizer), tokenizer.eot_id, ordinary_ids(tokenizer), ends_of_sentences(tokenizer))


class MaskedDataset(TokenDataset):
    """The sequences of a split, non-overlapping windows of its text; what is masked follows from (seed, epoch, index).

    Neither the number of ranks nor the batch size has a part in it. DataError for sequences too short for a pair.
    """

    added = SPECIALS

    def __init__(
        self, corpus: TokenizedCorpus, split: SplitName, max_length: int, masking: Masking, seed: int = 0
    ) -> None:
        if max_length < SHORTEST:
            raise DataError(f"--max_length must be at least {SHORTEST} for two segments, not {max_length}")
        super().__init__(corpus, split, max_length)
        self._masking, self._seed = masking, seed
        self._pairs = Pairs(self._stream, self.text_length, masking.eot_id, masking.ends_sentence)

    def num_targets(self, indices: np.ndarray) -> int:
        """The masked tokens; pairs weigh in the mean as transformers has it."""
        return len(indices) * num_chosen(self.max_length)

    def rows(self, indices: np.ndarray, epoch: int = 0) -> Tensor:
        """The sequences ``indices`` as masked in ``epoch``: LongTensor ``[len(indices), max_length, 3]``."""
        batch = np.empty((len(indices), self.max_length, 3), dtype=np.int64)
        for row, index in zip(batch, indices.tolist(), strict=True):
            if not 0 <= index < len(self):
                raise IndexError(f"sequence {index} of {len(self)}")
            self._fill(row, index, epoch)
        return torch.from_numpy(batch)

    def _fill(self, row: Ints, index: int, epoch: int) -> None:
        key = np.array([self._seed, epoch], dtype=np.uint64)
        counter = np.array([0, index, _PURPOSE, 0], dtype=np.uint64)
        draws = np.random.Philox(key=key, counter=counter).random_raw(DRAWS + draws_of_masking(self.max_length))
        first, second, is_random = self._pairs.segments(index * self.text_length, draws[:DRAWS])
        ids, middle = self._masking.ids, 1 + len(first)
        tokens = np.concatenate([[ids.cls], first, [ids.sep], second, [ids.sep]]).astype(np.int64)
        candidates = np.delete(np.arange(1, self.max_length - 1), middle - 1)
        row[:, 0], row[:, 2] = mask(tokens, candidates, draws[DRAWS:], ids.mask, self._masking.ordinary)
        row[:, 1] = np.arange(self.max_length) > middle
        row[0, 2] = is_random
