"""Tokenise a data file into a cache of shards; after a crash, continue from the last complete shard.

The steps: hash the file, find or make the cache folder, lock it, stream documents -> pieces -> batches ->
encode_batch -> one ShardWriter for each split, then finalize.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from fsdp_lab.data.reading.documents import Document, read_documents
from fsdp_lab.data.tokens.pieces import Piece, batches, pieces
from fsdp_lab.data.tokens.progress import Progress
from fsdp_lab.data.tokens.shard_writer import ShardWriter
from fsdp_lab.data.tokens.shards import SPLITS, Meta, Settings, SplitName, TokenizedCorpus, check_shards
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.atomic import TEMPORARY
from fsdp_lab.files.errors import DataError
from fsdp_lab.files.fingerprints import file_identity, remembered_sha256

DEFAULT_SHARD_TOKENS = 1 << 23
DEFAULT_VAL_FRACTION = 0.05


def _nothing() -> None: ...


def tokenize(
    data_path: Path,
    tokenizer: TextTokenizer,
    cache_dir: Path,
    *,
    val_fraction: float = DEFAULT_VAL_FRACTION,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    progress: bool = True,
    check: Callable[[], None] = _nothing,
) -> TokenizedCorpus:
    """The token cache of `data_path`, built if `cache_dir` does not hold it yet.

    A document belongs to validation if the hash of its text says so (`val_fraction` of them on average), so
    equal texts are always in the same split. The bytes depend only on the file's content, the tokenizer, `val_fraction`
    and `shard_tokens`, however often the work was interrupted. Two processes may call this at the same time.
    `check` is called every few MB and while waiting; what it raises stops the work, to be resumed later.

    Memory: below 200 MB, plus about seven times the largest document. Raises DataError for unusable data, a
    damaged cache, or settings out of range.
    """
    if not 0 <= val_fraction < 1 or shard_tokens < 1:
        raise DataError(f"val_fraction {val_fraction} must be in [0, 1) and shard_tokens {shard_tokens} positive")
    identity = file_identity(data_path)
    report = Progress(data_path.name, identity[0], shown=progress)
    with contextlib.closing(report), cache_errors(cache_dir):
        cache_dir.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            data_sha256=remembered_sha256(data_path, cache_dir, report.say),
            tokenizer=tokenizer.fingerprint,
            eot_id=tokenizer.eot_id,
            dtype=np.dtype(tokenizer.dtype).name,
            val_fraction=float(val_fraction),
            shard_tokens=shard_tokens,
        )
        folder = cache_dir / settings.key
        if not _is_finished(folder):
            folder.mkdir(exist_ok=True)
            with _locked(folder, report, check):
                _finish(data_path, tokenizer, folder, settings, report, check)
        if file_identity(data_path) != identity:
            raise DataError(f"{data_path} changed while it was being tokenised; start again when it is complete")
    return TokenizedCorpus.open(folder, vocab_size=tokenizer.vocab_size)


def _is_finished(folder: Path) -> bool:
    meta = Meta.read(folder)
    return meta is not None and meta.finalized


@contextlib.contextmanager
def cache_errors(cache_dir: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into a DataError that says where: the user can repair it."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        raise DataError(f"cannot use the token cache {cache_dir}: {what}; choose another --cache_dir") from error


@contextlib.contextmanager
def _locked(folder: Path, report: Progress, check: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of the folder; the system releases it when its holder dies."""
    lock = FileLock(folder / "lock")
    waiting = False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=1.0 if waiting else 0.0)
        except Timeout:
            if not waiting:
                report.say(f"another process is tokenising into {folder}: waiting for it")
            waiting = True
            check()
    try:
        yield
    finally:
        lock.release()


def _finish(
    path: Path, tokenizer: TextTokenizer, folder: Path, settings: Settings, report: Progress, check: Callable[[], None]
) -> None:
    """Completes the locked cache folder, in whatever state it is, until it is finalized."""
    meta = Meta.read(folder) or Meta(settings)
    if meta.finalized:  # by the process that held the lock before
        return
    for leftover in folder.glob(f"*{TEMPORARY}"):
        leftover.unlink()
    check_shards(folder, meta)
    reader = _Reader(path, meta)
    writers = {split: ShardWriter(folder, meta, split, lambda: reader.file_bytes) for split in SPLITS}
    if meta.shards["train"]:
        report.resume_from(meta.position("train").file_bytes)
        report.say(f"resuming after {meta.num_tokens('train'):,} train tokens")
    for batch in batches(reader.pieces(writers)):
        check()
        report.update(reader.file_bytes, _encode(batch, tokenizer, writers))
    if not reader.num_documents:
        raise DataError(f"{path} holds no documents")
    for writer in writers.values():
        writer.finish(reader.num_documents)
    meta.documents, meta.finalized = reader.num_documents, True
    meta.write(folder)
    report.say(f"tokenised {path}: {meta.documents:,} documents, {report.rate()}")


class _Reader:
    """Reads the documents from the first one that a shard still needs, and counts documents and bytes."""

    def __init__(self, path: Path, meta: Meta) -> None:
        self.path = path
        self.num_documents = min(meta.position(split).documents for split in SPLITS)
        self.file_bytes = 0
        self._val_fraction = meta.settings.val_fraction

    def pieces(self, writers: dict[SplitName, ShardWriter]) -> Iterator[Piece]:
        """The pieces of all documents that the finished shards of their split do not hold completely."""
        for document in read_documents(self.path, skip=self.num_documents, on_bytes=self._on_bytes):
            number, split = self.num_documents, split_of(document, self._val_fraction)
            self.num_documents += 1
            if writers[split].needs(number):
                yield from pieces(number, split, document.full_text)

    def _on_bytes(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes


def _encode(batch: list[Piece], tokenizer: TextTokenizer, writers: dict[SplitName, ShardWriter]) -> int:
    """Gives the tokens of every piece to its writer; returns their number."""
    end = np.array([tokenizer.eot_id], dtype=tokenizer.dtype)
    num_tokens = 0
    for piece, tokens in zip(batch, tokenizer.encode_batch([piece.text for piece in batch]), strict=True):
        whole = np.concatenate([tokens, end]) if piece.last else tokens
        writers[piece.split].add(piece.document, whole)
        num_tokens += len(whole)
    return num_tokens


def split_of(document: Document, val_fraction: float) -> SplitName:
    """The split of a document, by the BLAKE2b hash of its text alone: the same in every file, process and order."""
    digest = hashlib.blake2b(document.text.encode("utf-8"), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < val_fraction * 2**64 else "train"
