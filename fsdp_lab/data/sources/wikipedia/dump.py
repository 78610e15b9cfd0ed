"""A small section of a Wikipedia dump of 2016 that gensim ships for its tests (CC BY-SA)."""

import bz2
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, member
from fsdp_lab.data.sources.wikipedia.wikitext import plain_text

PACKAGE = Package(
    "pypi",
    "gensim",
    "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each article; redirects are left out, and markup is removed."""
    dump = bz2.decompress(member(archive, r".*/enwiki-latest-pages-articles1\.xml.*-shortened\.bz2")).decode("utf-8")
    for page in re.findall(r"<page>.*?</page>", dump, re.DOTALL):  # the file is cut off: no whole XML document
        article = ElementTree.fromstring(page)
        text = article.findtext("revision/text") or ""
        if article.find("redirect") is None and (content := plain_text(text)):
            yield Document(f"wiki-page-{article.findtext('id')}", article.findtext("title") or "", content)
