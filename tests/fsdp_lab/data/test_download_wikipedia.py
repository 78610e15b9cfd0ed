import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fsdp_lab.data.download_wikipedia import main
from fsdp_lab.data.reading.documents import read_documents


def use_datasets(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_articles_are_streamed_into_a_json_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*names: str, **options: Any) -> Any:
        asked.append((names, options))
        return ({"id": str(i), "url": "u", "title": f"T{i}", "text": "ä\n"} for i in iter(int, 1) for i in range(10**9))

    use_datasets(monkeypatch, load_dataset)
    out = tmp_path / "new folder" / "wiki.json"
    assert main(["--out", str(out), "--num_documents", "3", "--language", "de"]) == 0
    assert asked == [(("wikimedia/wikipedia", "20231101.de"), {"split": "train", "streaming": True})]
    assert json.loads(out.read_text())[2] == {"id": "2", "title": "T2", "text": "ä\n"}
    assert [document.id for document in read_documents(out)] == ["0", "1", "2"]


def failing(*_: Any, **__: Any) -> Any:
    raise ConnectionError("no route to host\nmore lines")


def broken_later(*_: Any, **__: Any) -> Any:
    yield {"id": "1", "title": "t", "text": "x"}
    failing()


@pytest.mark.parametrize("load_dataset", [failing, broken_later])
def test_no_internet_is_one_message_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load_dataset: Any
) -> None:
    use_datasets(monkeypatch, load_dataset)
    assert main(["--out", str(tmp_path / "wiki.json"), "--num_documents", "3"]) == 2
    message = capsys.readouterr().err
    assert "no route to host" in message
    assert "embedded corpus" in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["--out", str(tmp_path / "wiki.json"), "--num_documents", "3"]) == 2
    assert 'pip install "fsdp-comm-compress[datasets]"' in capsys.readouterr().err


def test_silly_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "wiki.json"), "--num_documents", "0"])
    assert ended.value.code == 2
    assert "--num_documents: got '0', wants a whole number, at least 1" in capsys.readouterr().err
