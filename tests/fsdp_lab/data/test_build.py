import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_lab.data import build
from fsdp_lab.data.reading.documents import Document, read_documents
from fsdp_lab.data.sources import corpora, dictionaries, packages, wiki_articles
from fsdp_lab.data.sources.corpora import Source
from fsdp_lab.data.sources.embedded_files import GPT2_MERGES, WIKI_LEADS
from fsdp_lab.data.sources.packages import Package, fetch, member, members
from fsdp_lab.data.sources.wikitext import plain_text
from fsdp_lab.files.errors import DataError

WHEEL = Package("pypi", "thing", "thing-1-py3-none-any.whl", "1")


def wheel(folder: Path, files: dict[str, bytes], name: str = WHEEL.file) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_a_cached_package_is_checked_not_downloaded(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"a": b"1"})
    pinned = Package("pypi", "thing", WHEEL.file, "1", hashlib.sha256(path.read_bytes()).hexdigest())
    assert fetch(pinned, tmp_path) == path
    path.write_bytes(b"other")
    with pytest.raises(DataError, match="sha256 differs"):
        fetch(pinned, tmp_path)


@pytest.mark.parametrize(("registry", "client"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_missing_client_is_one_message_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registry: str, client: str
) -> None:
    monkeypatch.setenv("PATH", "")
    source = Source(Package(registry, "thing", "thing-*"), wiki_articles.extract, 0, 0)
    monkeypatch.setitem(corpora.CORPORA, "prose", (source,))
    assert build.main(["prose", "--out", str(tmp_path), "--cache", str(tmp_path)]) == 2
    assert f"build: {client} is not installed" in capsys.readouterr().err


def test_a_failing_client_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"failed"):
        packages._run(["ls", "/no such folder"], tmp_path)


def test_members_of_every_kind_of_archive(tmp_path: Path) -> None:
    files = {"p/b.txt": b"2", "p/a.txt": b"1", "p/c.json": b"3"}
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    for path in (tmp_path / "x.tgz", wheel(tmp_path, files)):
        assert list(members(path, r"p/.*\.txt")) == [("p/a.txt", b"1"), ("p/b.txt", b"2")]
        assert member(path, r".*\.json") == b"3"
        with pytest.raises(DataError, match="expected one file"):
            member(path, r".*\.txt")


def test_platform_wheels_are_asked_for_by_their_tags() -> None:
    assert packages._wheel_tags("a-1-py3-none-any.whl") == packages._wheel_tags("a-1.tar.gz") == []
    assert packages._wheel_tags("g-4-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl") == [
        "--only-binary=:all:", "--python-version", "311", "--abi", "cp311",
        "--platform=manylinux_2_24_x86_64", "--platform=manylinux_2_28_x86_64",
    ]  # fmt: skip


def test_embedded_files_are_rebuilt_byte_for_byte_from_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = {d.title: {"extract": d.text} for d in reversed(list(read_documents(WIKI_LEADS)))}
    content = {
        "x/summaries_en-us.json": json.dumps(leads).encode(),
        "x/vocab.bpe": gzip.decompress(GPT2_MERGES.read_bytes()),
    }
    monkeypatch.setattr(build, "fetch", lambda package, cache: wheel(tmp_path, content))
    build.build_embedded(tmp_path / "out", tmp_path)
    for path in (WIKI_LEADS, GPT2_MERGES):
        rebuilt = (tmp_path / "out" / path.name).read_bytes()
        assert gzip.decompress(rebuilt) == gzip.decompress(path.read_bytes())
        assert rebuilt[4:8] == b"\0\0\0\0"  # no time stamp


def extract_twice(archive: Path) -> Iterator[Document]:
    yield Document("1", "A", "one  text")
    yield Document("2", "B", "One text\n")
    yield Document("3", "B", "another")


def test_mixtures_keep_each_text_once_and_check_counts(tmp_path: Path) -> None:
    path = wheel(tmp_path, {})
    package = Package("pypi", "thing", path.name, "1")
    assert [d.id for d in corpora.mix((Source(package, extract_twice, 3, 25),), tmp_path)] == ["1", "3"]
    assert [d.id for d in corpora.mix((Source(package, extract_twice, 3, 25, is_wikipedia=True),), tmp_path)] == [
        "1",
        "2",
    ]
    with pytest.raises(DataError, match="gave 3 documents, expected 4"):
        list(corpora.mix((Source(package, extract_twice, 4, 25),), tmp_path))
    moving = Package("apt", "thing", path.name)
    assert len(list(corpora.mix((Source(moving, extract_twice, 3, 27),), tmp_path))) == 2
    with pytest.raises(DataError, match="characters"):
        list(corpora.mix((Source(moving, extract_twice, 3, 40),), tmp_path))


def test_a_mixture_is_written_as_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(Package("pypi", "thing", wheel(tmp_path, {}).name, "1"), extract_twice, 3, 25)
    monkeypatch.setitem(corpora.CORPORA, "prose", (source,))
    assert build.main(["prose", "--out", str(tmp_path / "out"), "--cache", str(tmp_path)]) == 0
    assert [d.title for d in read_documents(tmp_path / "out" / "prose.jsonl.gz")] == ["A", "B"]


def test_wiki_articles_drop_the_repeated_title_and_stubs(tmp_path: Path) -> None:
    body = "long enough " * 40
    text = f'<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\n{body}\n\n</doc>\n'
    text += '<doc id="2" url="u" title="S">\nS\n\nshort\n</doc>\n'
    path = wheel(tmp_path, {"e/standard_cal_data/wiki.utf8": text.encode()})
    assert list(wiki_articles.extract(path)) == [Document("wiki-article-1", "A & B", body.strip())]


def test_dictionaries_follow_the_index(tmp_path: Path) -> None:
    def digits(value: int) -> str:
        raw = base64.b64encode((value << 2).to_bytes(3, "big")).decode()  # 4 digits of 6 bits, value in the first 22
        return {0: "A", 5: "F", 70: "BG", 75: "BL"}.get(value, raw)

    text = b"intro" + b"x" * 65 + b"Apple\n   A fruit.\n"
    index = "".join(
        f"{word}\t{digits(start)}\t{length}\n"
        for word, start, length in [("00-database-info", 0, "F"), ("apple", 70, "S"), ("apples", 70, "S")]
    )
    files = {"u/gcide.dict.dz": gzip.compress(text), "u/gcide.index": index.encode()}
    path = wheel(tmp_path, files, "dict-gcide_1_all.whl")
    assert list(dictionaries.extract(path)) == [Document("gcide-70", "apple", "Apple\nA fruit.")]


def test_wikitext() -> None:
    markup = (
        "{{Infobox|x={{nested}}}}'''Bold''' [[link|shown]] and [[plain]]<ref>gone</ref> text.<!-- no -->\n"
        "[[File:a.jpg|thumb|A [[caption]] here]]\n== Heading ==\n* item [http://a.b site]\n\n\n\n"
        "{| class=x\n|-\n| cell\n|}\nLast &amp; least.\n== References ==\ngone"
    )
    assert plain_text(markup) == "Bold shown and plain text.\n\nHeading\nitem site\n\nLast & least."
