"""The token cache on disk: what its meta file says, and opening it.

    cache_dir/<key>/meta.json          settings, every finished shard, "finalized"; replaced atomically
    cache_dir/<key>/train-00000.bin    raw little-endian uint16 (uint32 above 65,536 ids), no header
    cache_dir/<key>/val-00000.bin

Every shard but a split's last holds exactly `shard_tokens` tokens. A shard exists once meta.json lists it, the
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
"""Raise it whenever the same text would give other bytes: it is part of every cache key."""

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = ("train", "val")
_META = "meta.json"


@dataclass(frozen=True)
class Settings:
    """Everything the tokens depend on."""

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
    """Where a split stands in the document stream.

    Its shards hold all its tokens of the first `documents` documents, and the first `tokens` tokens of the next
    one. `file_bytes` (bytes of the data file read by then) only moves progress bars.
    """

    documents: int = 0
    tokens: int = 0
    file_bytes: int = 0


@dataclass(frozen=True)
class Shard:
    """One finished file of a split."""

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
        """Tokens in the split's finished shards."""
        return sum(shard.tokens for shard in self.shards[split])

    def write(self, folder: Path) -> None:
        """Replace the folder's meta.json, atomically."""
        write_json(folder / _META, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Meta | None":
        """The folder's meta.json, None if there is none. Raises DataError if it is damaged."""
        path = folder / _META
        try:
            content = load_json(path.read_bytes())
            shards = {split: [_shard(entry) for entry in content["shards"][split]] for split in SPLITS}
            found = cls(Settings(**content["settings"]), shards, content["documents"], content["finalized"])
            _check_meta(found)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); delete the folder {folder} and start again") from None


@dataclass(frozen=True)
class TokenizedCorpus:
    """A finished token cache: two streams of tokens, each document's followed by <|endoftext|>.

    `vocab_size`: of the tokenizer, if known; tokens are compared with it when they are read.
    """

    folder: Path
    meta: Meta
    vocab_size: int | None = None

    @classmethod
    def open(cls, folder: Path, *, verify: bool = False, vocab_size: int | None = None) -> "TokenizedCorpus":
        """Open a finished cache folder. Sizes are always checked, SHA-256 sums if `verify`.

        Without `verify` a shard's sum is still looked at where the file is not the one that was seen last (its size,
        time of change or inode differ). Raises DataError naming the file that is missing, cut off or changed.
        """
        meta = Meta.read(folder)
        if meta is None or not meta.finalized:
            raise DataError(f"{folder} holds no finished token cache; tokenise the data first")
        check_shards(folder, meta, file_sha256 if verify else known_sha256)
        return cls(folder, meta, vocab_size)

    def num_tokens(self, split: SplitName) -> int:
        """Tokens of a split, "train" or "val"."""
        return self.meta.num_tokens(split)

    def shards(self, split: SplitName) -> list[npt.NDArray[Any]]:
        """Memory maps of the split's shards in order, 1-D, uint16 or uint32."""
        dtype = self.meta.settings.numpy_dtype
        return [np.memmap(self.folder / shard.file, dtype=dtype, mode="r") for shard in self.meta.shards[split]]


def known_sha256(path: Path) -> str:
    """SHA-256 of a shard; remembered in the --cache_dir it lies in, and read again only when the file has changed."""
    cache_dir = path.parent.parent
    return remembered_sha256(path, cache_dir, _silent) if has_memory(cache_dir) else file_sha256(path)


def check_shards(folder: Path, meta: Meta, sha256_of: Callable[[Path], str] | None = None) -> None:
    """Compare every shard `meta` lists with the file: size, and SHA-256 as told. Raises DataError naming it."""
    for shard in (shard for split in SPLITS for shard in meta.shards[split]):
        path = folder / shard.file
        expected = shard.tokens * meta.settings.numpy_dtype.itemsize
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            size = "is missing" if found is None else f"has {found:,} bytes instead of {expected:,}"
            raise DataError(f"token shard {path} {size}; delete the folder {folder} and tokenise again")
        if sha256_of is not None and sha256_of(path) != shard.sha256:
            raise DataError(f"token shard {path} has changed (SHA-256 differs); delete {folder} and tokenise again")


def _silent(_: str) -> None: ...


def _check_meta(meta: Meta) -> None:
    """ValueError for what would break those who believe it."""
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
