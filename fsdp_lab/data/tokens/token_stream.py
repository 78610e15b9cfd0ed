"""One split's tokens as if they were one array, though they lie in shards."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fsdp_lab.data.tokens.shards import SplitName, TokenizedCorpus
from fsdp_lab.files.errors import DataError

_CHUNK = 1 << 18


class TokenStream:
    """A split of a corpus: documents end to end, each with its <|endoftext|>, memory-mapped."""

    def __init__(self, corpus: TokenizedCorpus, split: SplitName) -> None:
        settings = corpus.meta.settings
        self.num_tokens = corpus.num_tokens(split)
        self.dtype = settings.numpy_dtype
        self._eot_id, self._shard_tokens = settings.eot_id, settings.shard_tokens
        self._vocab_size = corpus.vocab_size
        self._folder, self._files = corpus.folder, [shard.file for shard in corpus.meta.shards[split]]
        self._shards = [np.asarray(shard) for shard in corpus.shards(split)]  # the same maps; slices cost a third

    def read_into(self, out: npt.NDArray[Any], start: int) -> None:
        """Fill the 1-D ``out``, of any integer dtype that holds the ids, with the tokens from ``start`` on.

        Raises DataError naming the shard that holds a token which the tokenizer does not have.
        """
        assert 0 <= start <= self.num_tokens - len(out), (start, len(out), self.num_tokens)
        number, offset = divmod(start, self._shard_tokens)
        done = 0
        while done < len(out):
            part = self._shards[number][offset : offset + len(out) - done]
            if self._vocab_size is not None and len(part) and int(part.max()) >= self._vocab_size:
                raise DataError(
                    f"token shard {self._folder / self._files[number]} holds token {int(part.max()):,}, the tokenizer "
                    f"has {self._vocab_size:,}: it was overwritten; delete {self._folder} and tokenise again"
                )
            out[done : done + len(part)] = part
            done += len(part)
            number, offset = number + 1, 0

    def document_ends(self, start: int) -> list[int]:
        """Where the next documents from ``start`` on end (exclusive), rising: those of one chunk, one at least.

        A document here is what <|endoftext|> ends: a text that holds this token itself is several. The stream's end
        ends one, too.
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
