"""Two English dictionaries in dictd's format: GCIDE (GPL-2+) and FOLDOC (GFDL 1.1+)."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, member

GCIDE = Package("apt", "dict-gcide", "dict-gcide_*_all.deb")
FOLDOC = Package("apt", "dict-foldoc", "dict-foldoc_*_all.deb")

_DIGITS = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}


def extract(archive: Path) -> Iterator[Document]:
    """One document for each entry, titled by its headword."""
    name = archive.name.partition("_")[0].removeprefix("dict-")
    # A .dict.dz is a gzip file with a seek table in its header.
    text = gzip.decompress(member(archive, rf".*/{name}\.dict\.dz"))
    index = member(archive, rf".*/{name}\.index").decode("utf-8")
    for start, length, headword in entries(index):
        body = text[start : start + length].decode("utf-8", errors="replace")
        yield Document(f"{name}-{start}", headword, _unindent(body))


def entries(index: str) -> list[tuple[int, int, str]]:
    """(first byte, number of bytes, headword) of every entry in file order; headwords with one text are one entry."""
    headwords: dict[tuple[int, int], str] = {}
    for line in index.splitlines():
        headword, start, length = line.split("\t")[:3]
        if not headword.startswith("00-"):  # the dictionary's own title, address and licence
            headwords.setdefault((_number(start), _number(length)), headword)
    return [(start, length, headword) for (start, length), headword in sorted(headwords.items())]


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = 64 * value + _DIGITS[digit]
    return value


def _unindent(body: str) -> str:
    return re.sub(r"\n +", "\n", body).strip()
