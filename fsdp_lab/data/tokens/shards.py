"""The token cache on disk: its files, what meta.json says about them, and opening them.

    cache_dir/<key>/meta.json          settings, every finished shard, "finalized"; replaced atomically
    cache_dir/<key>/train-00000.bin    raw little-endian uint16 (uint32 above 65,536 ids), no header
    cache_dir/<key>/val-00000.bin

Every shard but the last of a split holds exactly `shard_tokens` tokens. A shard counts once meta.json lists it, the
corpus once "finalized" is true.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fsdp_lab.files.atomic import file_sha256, write_json
from fsdp_lab.files.errors import DataError
from fsdp_lab.files.fingerprints import has_memory, remembered_sha256
from fsdp_lab.settings.reading.strict import load_json

FORMAT = 1
"""Increase it whenever the same text would give other bytes: it is part of every cache key."""

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = ("train", "val")
_META = "meta.json"


@dataclass(frozen=True)
class Settings:
    """Everything that the tokens of a cache depend on; the cache's key follows from it."""

    data_sha256: str
    tokenizer: str  # fingerprint
    eot_id: int
    dtype: str  # "uint16" or "uint32"
    val_fraction: float
    shard_tokens: int
    format: int = FORMAT

    @property
    def key(self) -> str:
        """Name of the cache folder: 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The little-endian dtype of the shards."""
        return np.dtype(self.dtype).newbyteorder("<")


@dataclass(frozen=True)
class Position:
    """How far the shards of a split reach in the stream of documents.

    They hold all the split's tokens of the first `documents` documents, and the first `tokens` tokens of the next
    one. `file_bytes` (bytes of the data file read by then) is used by progress bars only.
    """

    documents: int = 0
    tokens: int = 0
    file_bytes: int = 0


@dataclass(frozen=True)
class Shard:
    """One finished file of tokens of a split."""

    file: str
    tokens: int
    sha256: str
    position: Position


@dataclass
class Meta:
    """Content of meta.json. `documents` is the number of documents in the data file, known when finalized."""

    settings: Settings
    shards: dict[SplitName, list[Shard]] = field(default_factory=lambda: {"train": [], "val": []})
    documents: int = 0
    finalized: bool = False

    def position(self, split: SplitName) -> Position:
        """Where the split stands after its last finished shard."""
        return self.shards[split][-1].position if self.shards[split] else Position()

    def num_tokens(self, split: SplitName) -> int:
        """How many tokens the finished shards of the split hold."""
        return sum(shard.tokens for shard in self.shards[split])

    def write(self, folder: Path) -> None:
        """Replaces the file meta.json in `folder`, atomically."""
        write_json(folder / _META, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Meta | None":
        """The folder's meta.json, None if there is none. Raises DataError if it is damaged."""
        path = folder / _META
        try:
            content = load_json(path.read_bytes())
            shards = {split: [_shard(entry) for entry in content["shards"][split]] for split in SPLITS}
            meta = cls(Settings(**content["settings"]), shards, content["documents"], content["finalized"])
            _check_meta(meta)
            return meta
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); delete the folder {folder} and start again") from None


@dataclass(frozen=True)
class TokenizedCorpus:
    """A finished token cache: a stream of tokens for each split, in which <|endoftext|> follows every document.

    `vocab_size`: of the tokenizer, if known; tokens are compared with it when they are read.
    """

    folder: Path
    meta: Meta
    vocab_size: int | None = None

    @classmethod
    def open(cls, folder: Path, *, verify: bool = False, vocab_size: int | None = None) -> "TokenizedCorpus":
        """Opens a finished cache folder. Sizes are always checked, SHA-256 sums if `verify`.

        Without `verify` a shard's sum is checked only if the file is not the one that was hashed last (its size, time
        of change or inode differ). Raises DataError naming the file that is missing, cut off or changed.
        """
        meta = Meta.read(folder)
        if meta is None or not meta.finalized:
            raise DataError(f"{folder} holds no finished token cache; tokenise the data first")
        check_shards(folder, meta, file_sha256 if verify else known_sha256)
        return cls(folder, meta, vocab_size)

    def num_tokens(self, split: SplitName) -> int:
        """How many tokens a split ("train" or "val") has."""
        return self.meta.num_tokens(split)

    def shards(self, split: SplitName) -> list[npt.NDArray[Any]]:
        """Memory maps of the split's shards in order, 1-D, uint16 or uint32."""
        dtype = self.meta.settings.numpy_dtype
        return [np.memmap(self.folder / shard.file, dtype=dtype, mode="r") for shard in self.meta.shards[split]]


def known_sha256(path: Path) -> str:
    """SHA-256 of a shard: the one remembered in its --cache_dir, unless the file has changed since it was hashed."""
    cache_dir = path.parent.parent
    return remembered_sha256(path, cache_dir, _silent) if has_memory(cache_dir) else file_sha256(path)


def check_shards(folder: Path, meta: Meta, sha256_of: Callable[[Path], str] | None = None) -> None:
    """Compares every shard in `meta` with its file: size, and SHA-256 by `sha256_of`. DataError names a bad shard."""
    for shard in (shard for split in SPLITS for shard in meta.shards[split]):
        path = folder / shard.file
        expected = shard.tokens * meta.settings.numpy_dtype.itemsize
        size = path.stat().st_size if path.is_file() else None
        if size != expected:
            what = "is missing" if size is None else f"has {size:,} bytes instead of {expected:,}"
            raise DataError(f"token shard {path} {what}; delete the folder {folder} and tokenise again")
        if sha256_of is not None and sha256_of(path) != shard.sha256:
            raise DataError(f"token shard {path} has changed (SHA-256 differs); delete {folder} and tokenise again")


def _silent(_: str) -> None: ...


def _check_meta(meta: Meta) -> None:
    """Raises ValueError for entries that would break the code that relies on them."""
    settings = meta.settings
    whole = {"eot_id": settings.eot_id, "shard_tokens": settings.shard_tokens, "documents": meta.documents}
    for split in SPLITS:
        for number, shard in enumerate(meta.shards[split]):
            whole |= {f"tokens of {split} shard {number}": shard.tokens}
            if not isinstance(shard.file, str) or Path(shard.file).name != shard.file:
                raise ValueError(f"{shard.file!r} is not the name of a file in it")
    for name, value in whole.items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}, wants a whole number")
    if settings.dtype not in ("uint16", "uint32") or settings.shard_tokens < 1:
        raise ValueError("its settings are not those of a token cache")
    for split in SPLITS:
        if any(shard.tokens != settings.shard_tokens for shard in meta.shards[split][:-1]):
            raise ValueError(f"a {split} shard before the last has not {settings.shard_tokens:,} tokens")


def _shard(entry: dict[str, Any]) -> Shard:
    return Shard(entry["file"], entry["tokens"], entry["sha256"], Position(**entry["position"]))
