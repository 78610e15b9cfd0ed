"""Appending the tokens of a split to shards of fixed length, after the end of its last finished shard."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fsdp_lab.data.tokens.shards import Meta, Position, Shard, SplitName
from fsdp_lab.data.tokens.tokenizer import TokenArray
from fsdp_lab.files.atomic import write_bytes


class ShardWriter:
    """Collects one split's tokens; whenever `shard_tokens` are there, writes a shard and then meta.json.

    A crash loses at most the shard being collected: a shard file that meta.json does not list is written again,
    with the same bytes. Holds one shard in memory.
    """

    def __init__(self, folder: Path, meta: Meta, split: SplitName, file_bytes: Callable[[], int]) -> None:
        self._folder, self._meta, self._split = folder, meta, split
        self._file_bytes = file_bytes
        self._resume = meta.position(split)
        self._buffer = np.empty(meta.settings.shard_tokens, dtype=meta.settings.numpy_dtype)
        self._filled = 0
        self._document = -1  # the document being added, and its tokens so far
        self._document_tokens = 0

    def needs(self, document: int) -> bool:
        """Whether any token of document number `document` (from 0) is missing from the finished shards."""
        return document >= self._resume.documents

    def add(self, document: int, tokens: TokenArray) -> None:
        """Appends tokens of a document, whose tokens may come in several calls, in order.

        The tokens that an earlier run already wrote are skipped.
        """
        if document != self._document:
            self._document, self._document_tokens = document, 0
        written = self._resume.tokens if document == self._resume.documents else 0
        fresh = tokens[max(0, written - self._document_tokens) :]
        self._document_tokens += len(tokens)
        while len(fresh):
            fitting, fresh = np.split(fresh, [len(self._buffer) - self._filled])
            self._buffer[self._filled : self._filled + len(fitting)] = fitting
            self._filled += len(fitting)
            if self._filled == len(self._buffer):
                self._write(Position(document, self._document_tokens - len(fresh), self._file_bytes()))

    def finish(self, num_documents: int) -> None:
        """Writes the tokens that are left as a last, shorter shard."""
        if self._filled:
            self._write(Position(num_documents, 0, self._file_bytes()))

    def _write(self, position: Position) -> None:
        shards = self._meta.shards[self._split]
        content = self._buffer[: self._filled].tobytes()
        name = f"{self._split}-{len(shards):05d}.bin"
        write_bytes(self._folder / name, content)
        shards.append(Shard(name, self._filled, hashlib.sha256(content).hexdigest(), position))
        self._meta.write(self._folder)
        self._filled = 0
