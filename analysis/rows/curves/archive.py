"""Many loss curves in one compressed file: ``curves.zip`` stands for the files of the folder ``curves/`` beside it.

A row names its curve as a file, ``curves/NAME.jsonl``. Where there is no such file, the curve is the entry
``NAME.jsonl`` of the archive, so rows stay as they are when their curves are packed (`analysis.rows.curves.pack`).

An archive may come from anybody. Nothing is ever unpacked onto the disk, and an archive whose entries are no plain
curves, or would take absurdly much memory, is refused as a whole.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=,@-]*\.jsonl")  # names of runs, which the trainer keeps to these letters
_LARGEST_FILE = 64 << 20  # bytes of an archive
_LARGEST_CURVE = 64 << 20  # bytes of one curve, unpacked
_LARGEST_WHOLE = 256 << 20  # bytes of all curves together, unpacked: they are kept in memory
_MOST_CURVES = 100_000
_ENTRY = b"PK\x01\x02"  # what each entry of a ZIP file's directory begins with
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # a date in every entry, the same in all: equal curves make equal archives
_READABLE_BY_ALL = 0o644 << 16
_ON_UNIX = 3
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(NotImplementedError, RuntimeError, ValueError),  # of a format that zipfile does not read
)


class ArchiveError(ValueError):
    """The archive is refused; the message names it and says why."""


def archive_of(curve: Path) -> Path:
    """Where a curve is looked for when it is no file of its own: ``curves.zip`` for ``curves/NAME.jsonl``."""
    return curve.parent.with_name(curve.parent.name + ".zip")


def read_curve_file(path: Path) -> bytes:
    """The bytes of a curve, from its own file or from the archive. OSError where neither has it, or ArchiveError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        archive = archive_of(path)
        if not archive.is_file():
            raise
        entries = read_archive(archive)
        if path.name not in entries:
            raise
        return entries[path.name]


def read_archive(archive: Path) -> Mapping[str, bytes]:
    """Every curve of the archive by its file's name. ArchiveError when the archive is refused."""
    try:
        status = archive.stat()
        return _read(archive, status.st_mtime_ns, status.st_size)
    except _DAMAGE as error:
        raise error if isinstance(error, ArchiveError) else _refused(archive, str(error) or repr(error)) from None


def add_curves(archive: Path, curves: Iterable[Path]) -> int:
    """Write the archive anew with these files in it, and return how many of them it did not have.

    ValueError when the archive has another curve of the same name, or would be one that `read_archive` refuses."""
    kept = dict(read_archive(archive)) if archive.exists() else {}
    before = len(kept)
    for curve in curves:
        content = curve.read_bytes()
        if kept.setdefault(curve.name, content) != content:
            raise ValueError(f"{archive} has another curve named {curve.name}; rename one of the two")
    new = archive.with_name(archive.name + ".new")
    _write(new, kept)
    try:
        read_archive(new)
        os.replace(new, archive)
    finally:
        new.unlink(missing_ok=True)
    return len(kept) - before


@lru_cache(maxsize=2)
def _read(archive: Path, modified_ns: int, size: int) -> dict[str, bytes]:
    """The archive's curves, remembered while the file is the same: a figure reads hundreds of curves of one archive."""
    if size > _LARGEST_FILE:
        raise _refused(archive, f"it has {size} bytes, more than {_LARGEST_FILE}")
    content = archive.read_bytes()
    if content.count(_ENTRY) > _MOST_CURVES:
        raise _refused(archive, f"it has more than {_MOST_CURVES} entries")
    with zipfile.ZipFile(BytesIO(content)) as opened:
        entries = opened.infolist()
        if complaint := _complaint(entries):
            raise _refused(archive, complaint)
        return {entry.filename: _unpacked(opened, entry) for entry in entries}


def _complaint(entries: Iterable[zipfile.ZipInfo]) -> str | None:
    """Why these are not the entries of an archive of curves."""
    names: set[str] = set()
    whole = 0
    for entry in entries:
        name = entry.orig_filename
        whole += entry.file_size
        if not _NAME.fullmatch(name):
            return f"an entry is named {name[:80]!r}, which is no plain name of a curve"
        if name in names:
            return f"two entries are named {name[:80]!r}"
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"{name[:80]!r} is encrypted, or compressed in another way than deflate"
        if entry.file_size > _LARGEST_CURVE or whole > _LARGEST_WHOLE:
            return f"its curves are too large: {name[:80]!r} has {entry.file_size} bytes, all so far have {whole}"
        names.add(name)
    return None


def _unpacked(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of one entry: never more than the directory says, even where the compressed data hold more."""
    with opened.open(entry) as stream:
        parts = []
        while part := stream.read(1 << 20):
            parts.append(part)
    return b"".join(parts)


def _refused(archive: Path, why: str) -> ArchiveError:
    return ArchiveError(f"{archive} is not a sound archive of curves: {why}")


def _write(archive: Path, curves: Mapping[str, bytes]) -> None:
    """Write entries sorted by name with one date and one permission, so that equal curves make an equal file."""
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in sorted(curves.items()):
            entry = zipfile.ZipInfo(name, _FIRST_DAY)
            entry.create_system, entry.external_attr = _ON_UNIX, _READABLE_BY_ALL
            opened.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)
