"""The text that a model has seen, and the one that it is fine-tuned on."""

from __future__ import annotations

from pathlib import Path

from experiments.finetuning import divided, write_texts
from fsdp_lab.data.reading.documents import read_documents
from fsdp_lab.data.sources.embedded_files import WIKI_LEADS


def test_every_article_is_in_one_of_the_texts_and_in_the_same_one_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = write_texts(tmp_path / "first"), write_texts(tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    places, rest = ([document.title for document in read_documents(path)] for path in first)
    everything = [document.title for document in read_documents(WIKI_LEADS)]
    assert (len(places), len(rest)) == (678, len(everything) - 678)
    assert sorted(places + rest) == sorted(everything)


def test_the_first_sentence_decides() -> None:
    articles = [{"text": "Ulm is a City. It lies there."}, {"text": "A clock. Made in a city."}, {"text": "Cityscape."}]
    assert divided(articles) == (articles[:1], articles[1:])
