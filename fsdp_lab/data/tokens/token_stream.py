"""The tokens of one split, read as if they were one array, although they lie in shards."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fsdp_lab.data.tokens.shards import SplitName, TokenizedCorpus
from fsdp_lab.files.errors import DataError

_CHUNK = 1 << 18


class TokenStream:
    """A split of a corpus, memory-mapped: its documents one after the other, each followed by <|endoftext|>."""

    def __init__(self, corpus: TokenizedCorpus, split: SplitName) -> None:
        settings = corpus.meta.settings
        self.num_tokens = corpus.num_tokens(split)
        self.dtype = settings.numpy_dtype
        self._eot_id, self._shard_tokens = settings.eot_id, settings.shard_tokens
        self._vocab_size = corpus.vocab_size
        self._folder, self._files = corpus.folder, [shard.file for shard in corpus.meta.shards[split]]
        self._shards = [np.asarray(shard) for shard in corpus.shards(split)]  # the same maps; slices cost a third

    def read_into(self, out: npt.NDArray[Any], start: int) -> None:
        """Fills the 1-D ``out``, of any integer dtype that holds the ids, with the tokens from ``start`` on.

        Raises DataError naming the shard that holds a token which the tokenizer does not have.
        """
        assert 0 <= start <= self.num_tokens - len(out), (start, len(out), self.num_tokens)
        number, offset = divmod(start, self._shard_tokens)
        done = 0
        while done < len(out):
            tokens = self._shards[number][offset : offset + len(out) - done]
            if self._vocab_size is not None and len(tokens) and int(tokens.max()) >= self._vocab_size:
                shard = self._folder / self._files[number]
                raise DataError(
                    f"token shard {shard} holds token {int(tokens.max()):,}, the tokenizer has {self._vocab_size:,}: "
                    f"it was overwritten; delete {self._folder} and tokenise again"
                )
            out[done : done + len(tokens)] = tokens
            done += len(tokens)
            number, offset = number + 1, 0

    def places_of_ends(self) -> npt.NDArray[np.int64]:
        """The places of all <|endoftext|>, ascending; reads the whole split once."""
        places, start = [np.empty(0, dtype=np.int64)], 0
        for shard in self._shards:
            places.append(np.flatnonzero(shard == self._eot_id) + start)
            start += len(shard)
        return np.concatenate(places)

    def document_ends(self, start: int) -> list[int]:
        """The ends (exclusive, ascending) of the next documents from ``start`` on: of at least one document.

        A document is here what ends with <|endoftext|>: a text that contains this token counts as several documents.
        The end of the stream also ends a document.
        """
        assert 0 <= start < self.num_tokens, (start, self.num_tokens)
        size = _CHUNK
        while True:
            tokens = np.empty(min(size, self.num_tokens - start), dtype=self.dtype)
            self.read_into(tokens, start)
            ends: list[int] = (np.flatnonzero(tokens == self._eot_id) + (start + 1)).tolist()
            if ends:
                return ends
            if len(tokens) == self.num_tokens - start:
                return [self.num_tokens]
            size *= 2
