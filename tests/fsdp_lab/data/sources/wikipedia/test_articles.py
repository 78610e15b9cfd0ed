"""Articles of Wikipedia from a package, without repeated titles and stubs."""

from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.wikipedia import articles
from tests.fsdp_lab.data.sources.archives import wheel


def test_wiki_articles_drop_the_repeated_title_and_stubs(tmp_path: Path) -> None:
    body = "long enough " * 40
    text = f'<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\n{body}\n\n</doc>\n'
    text += '<doc id="2" url="u" title="S">\nS\n\nshort\n</doc>\n'
    path = wheel(tmp_path, {"e/standard_cal_data/wiki.utf8": text.encode()})
    assert list(articles.extract(path)) == [Document("wiki-article-1", "A & B", body.strip())]
