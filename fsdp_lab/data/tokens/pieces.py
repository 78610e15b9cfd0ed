"""Documents cut into pieces and grouped into batches of bounded size, so that tokenising needs bounded memory."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp_lab.data.tokens.shards import SplitName

PIECE_CHARS = 1 << 18
_BATCH_CHARS = 1 << 21
_BATCH_PIECES = 1 << 12

# Positions where byte-level BPE tokenizers (GPT-2's, Qwen's, Llama 3's) split anyway: before a lone space, and
# after a lone newline. (GPT-2's splits two newlines where text goes on, and not where it ends.)
_LONE_SPACE = re.compile(r"(?<=\S)(?= \S)")
_LINE_START = re.compile(r"(?<=\S\n)(?=\S)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A section of a document's text; `last` if the document ends with it."""

    document: int
    split: SplitName
    text: str
    last: bool


def pieces(document: int, split: SplitName, text: str) -> Iterator[Piece]:
    """Cuts a text into pieces of at most PIECE_CHARS, where a token ends in any case.

    So the tokens are those of the whole text. There are two exceptions, both in texts longer than a piece: PIECE_CHARS
    / 2 characters without such a place, and tokenizers that merge across spaces.
    """
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = _cut(text, start + PIECE_CHARS // 2, start + PIECE_CHARS)
        yield Piece(document, split, text[start:end], last=False)
        start = end
    yield Piece(document, split, text[start:], last=True)


def batches(stream: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Groups pieces, in order, into lists of a few MB of text."""
    batch: list[Piece] = []
    num_chars = 0
    for piece in stream:
        batch.append(piece)
        num_chars += len(piece.text)
        if num_chars >= _BATCH_CHARS or len(batch) == _BATCH_PIECES:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _cut(text: str, low: int, high: int) -> int:
    """The first safe cut in [low, high), else `high`."""
    for pattern in (_LONE_SPACE, _LINE_START):
        if match := pattern.search(text, low, high):
            return match.start()
    return high
