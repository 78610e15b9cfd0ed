"""Checkpoints on disk, without torch: what a complete one is, how it appears all at once, and which to keep.

    checkpoints/step-00000120/manifest.json      written last: sizes and sha256 of all files, and whose
                              weights/           model and optimizer, by torch.distributed.checkpoint
                              rank-0.pt, ...     what each rank has of its own
                step-00000160.tmp/               a save under way, or one that was killed
                step-00000080.damaged/           set aside by a load that found it damaged
                latest -> step-00000120
                finished                         the run has ended well: it is not resumed

A folder without a valid manifest does not exist. Everything is flushed before the folder gets its name by a rename, so
that a kill at any moment leaves the old checkpoints and, perhaps, the new one; never a mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fsdp_lab.files import disk
from fsdp_lab.settings.reading.strict import load_json

MANIFEST, LATEST, FINISHED = "manifest.json", "latest", "finished"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; names the file or the setting."""


@dataclass(frozen=True)
class FileEntry:
    """A file's path inside the checkpoint, its length and the sha256 (hex) of its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself. ``settings``: those that affect the training, by name."""

    step: int
    world: int
    torch: str
    settings: dict[str, Any]
    files: tuple[FileEntry, ...]
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """The manifest as JSON, with the sha256 of all its other fields."""
        content = asdict(self)
        return json.dumps({**content, "sha256": _digest(content)}, indent=1, allow_nan=False).encode()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of ``folder``. CheckpointError when there is none, or it is not what was written."""
        path = folder / MANIFEST
        try:
            content = load_json(path.read_bytes())
            digest = content.pop("sha256")
            if digest != _digest(content):
                raise CheckpointError(f"{path}: damaged (its sha256 is another)")
            if content["format"] != FORMAT:
                raise CheckpointError(f"{path}: of format {content['format']}, this program knows {FORMAT}")
            files = tuple(FileEntry(**entry) for entry in content.pop("files"))
            manifest = cls(**content, files=files)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: missing") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
        except CheckpointError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}: damaged ({error})") from None
        for entry in manifest.files:
            parts = PurePosixPath(entry.name)
            if parts.is_absolute() or ".." in parts.parts:
                raise CheckpointError(f"{path}: names a file outside the checkpoint: {entry.name!r}")
        return manifest


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(step: int) -> str:
    """The name of the folder of the checkpoint after ``step`` steps."""
    return f"step-{step:08d}"


def found_in(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of everything that has a checkpoint's name, the newest first; nothing is looked into."""
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)


def flush(path: Path) -> None:
    """Wait until ``path``, a file or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk. An OSError names it."""
    with disk.writing(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def entry_of(folder: Path, name: str) -> FileEntry:
    """Length and sha256 of a file, as the disk has it (what the kernel remembers of it is dropped, where it can be)."""
    with (folder / name).open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(name, os.fstat(file.fileno()).st_size, digest)


def complaint(folder: Path, entry: FileEntry) -> str | None:
    """What is wrong with a file of a checkpoint; None when it is as it was written."""
    path = folder / entry.name
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{path}: {'truncated' if size < entry.bytes else 'too long'} ({size} of {entry.bytes} bytes)"
        if entry_of(folder, entry.name).sha256 != entry.sha256:
            return f"{path}: damaged (its sha256 is another)"
    except FileNotFoundError:
        return f"{path}: missing"
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    return None


def complaints(folder: Path, entries: list[FileEntry]) -> list[str]:
    """What is wrong with these files of a checkpoint."""
    texts = (complaint(folder, entry) for entry in entries)
    return [text for text in texts if text is not None]


def publish(unfinished: Path) -> Path:
    """Give a whole checkpoint its name, at once, then point `LATEST` to it."""
    final = unfinished.with_suffix("")
    if final.exists():  # the run went back to an earlier one and came here again
        set_aside(final, "replaced")
    unfinished.rename(final)
    flush(final.parent)
    link = final.parent / f"{LATEST}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(final.parent / LATEST)
    flush(final.parent)
    return final


def set_aside(checkpoint: Path, why: str) -> Path:
    """Take its name from a checkpoint without deleting it; an earlier one set aside like this makes room."""
    aside = checkpoint.with_name(f"{checkpoint.name}.{why}")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    flush(checkpoint.parent)
    return aside


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what replaced ones left. Call it when the newest is sound."""
    for path in (*(path for _, path in found_in(folder)[keep:]), *folder.glob("step-*.replaced")):
        doomed = path if path.suffix else path.rename(path.with_name(f"{path.name}.tmp"))  # not a half one, if killed
        shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Delete what killed saves left. Call it while nothing is being saved."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
