import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fsdp_lab.data.reading import documents, json_array
from fsdp_lab.data.reading.documents import Document, read_documents
from fsdp_lab.files.errors import DataError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
records = st.lists(st.fixed_dictionaries({"id": text, "title": text, "text": text}), max_size=8)


def forms(rows: list[dict[str, Any]], *, ascii_only: bool) -> dict[str, bytes]:
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    array = ("[" + ",".join(lines) + "]").encode()
    pretty = json.dumps(rows, indent=2, ensure_ascii=ascii_only).encode()
    jsonl = "\n\n".join([*lines, ""]).encode()
    plain = {"array": array, "pretty": b" \n" + pretty, "bom": b"\xef\xbb\xbf" + array} | (
        {"jsonl": jsonl} if rows else {}
    )
    return plain | {f"{name}.gz": gzip.compress(content) for name, content in plain.items()}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=records, ascii_only=st.booleans(), skip=st.integers(0, 9))
def test_every_form_gives_the_same_documents(
    tmp_path: Path, rows: list[dict[str, str]], ascii_only: bool, skip: int
) -> None:
    expected = [Document(**row) for row in rows]
    for content in forms(rows, ascii_only=ascii_only).values():
        path = tmp_path / "no_hint_in_the_name"
        path.write_bytes(content)
        assert list(read_documents(path)) == expected
        assert list(read_documents(path, skip=skip)) == expected[skip:]


def test_full_text_is_title_newline_text() -> None:
    assert Document("1", "A title", "a text").full_text == "A title\na text"


def test_id_and_title_may_be_missing_and_id_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b'[{"text": "a"}, {"id": 12, "text": "b", "extra": [1.5, null, 123456789012345678901234567890]}]')
    assert list(read_documents(path)) == [Document("", "", "a"), Document("12", "", "b")]


GOOD = b'{"id": "1", "title": "t", "text": "good"}'
# content, byte of the complaint, part of the reason
BROKEN: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 0, "empty"),
    "white space": (b" \n\t ", 4, "only white space"),
    "neither array nor lines": (b'  "text"', 2, "expected a JSON array"),
    "utf-16": ("[]".encode("utf-16"), 0, "expected a JSON array"),
    "array: syntax": (b"[" + GOOD + b', {"text": }]', 53, "broken JSON: Expecting value"),
    "array: missing comma": (b"[" + GOOD + b"   " + GOOD + b"]", 45, 'wants "," or "]" after'),
    "array: cut off": (b"[" + GOOD + b', {"text": "abc', 57, "cut off"),
    "array: trailing": (b"[" + GOOD + b"] x", 44, "something follows the end of the array"),
    "array: utf-8": (b"[" + GOOD + b', {"text": "a\xffb"}]', 55, "not UTF-8"),
    "array: NaN": (b'[{"text": "a", "x": NaN}]', 1, "NaN is not JSON"),
    "array: no object": (b"[" + GOOD + b", 17]", 44, "element 1 of the array is a JSON number"),
    "array: no text": (b"[" + GOOD + b', {"title": "x"}]', 44, 'needs a string "text", found nothing'),
    "array: null text": (b'[{"text": null}]', 1, 'needs a string "text", found null'),
    "array: title": (b'[{"text": "x", "title": 3}]', 1, 'needs a string "title" (or none), found number'),
    "array: nothing after": (b"[" + GOOD + b" ", 43, "the array is cut off after an element"),
    "array: a comma too many": (b"[" + GOOD + b",]", 43, "broken JSON: Expecting value"),
    "array: cut off in a word": (b'[{"text": tru', 10, "broken JSON: Expecting value"),
    "array: lone surrogate": (b'[{"text": "\\ud800"}]', 1, "surrogates not allowed"),
    "array: a long number": (b"[" + GOOD + b', {"x": ' + b"9" * 100_000 + b"}]", 44, "whole number of 100,000 digits"),
    "array: nested too deep": (b'[{"x": ' + b"[" * 200_000, 1, "recursion"),
    "lines: a long number": (b'{"text": "a", "x": -' + b"9" * 5000 + b"}", 0, "whole number of 5,001 digits"),
    "lines: syntax": (GOOD + b'\n{"text": }\n', 51, "line 2 is not one whole JSON object"),
    "lines: two on a line": (GOOD + GOOD, 41, "line 1 is not one whole"),
    "lines: cut off": (GOOD + b'\n\n{"text": "abc', 52, "line 3 is not one whole JSON object"),
    "lines: utf-8": (GOOD + b'\n{"text": "a\xffb"}', 53, "not UTF-8"),
    "lines: NaN": (b'{"text": "a", "x": NaN}', 0, "NaN is not JSON"),
    "lines: no object": (GOOD + b"\n[1]", 42, "is a JSON array, not an object"),
    "lines: no text": (GOOD + b'\n{"title": "x"}', 42, 'needs a string "text", found nothing'),
    "lines: text is a list": (b'{"text": ["x"]}', 0, "found array"),
    "lines: lone surrogate": (b'{"text": "\\ud800"}', 0, "surrogates not allowed"),
    "lines: nested too deep": (b'{"x": ' + b"[" * 200_000, 0, "recursion"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("compress", [False, True])
def test_errors_name_file_byte_and_reason(tmp_path: Path, name: str, compress: bool) -> None:
    content, byte, reason = BROKEN[name]
    path = tmp_path / "broken.json"
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(DataError) as caught:
        list(read_documents(path))
    message = str(caught.value)
    assert str(path) in message
    assert reason in message
    assert message.endswith(f"({'decompressed ' if compress else ''}byte {byte:,})"), message


def test_documents_before_the_broken_one_are_yielded_first(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"[" + GOOD + b"," + GOOD + b', {"text": oops}]')
    stream = read_documents(path)
    assert [next(stream).text, next(stream).text] == ["good", "good"]
    with pytest.raises(DataError):
        next(stream)


def test_error_far_into_a_big_array_is_located_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "data"
    head = b"[" + b",".join([GOOD] * 20_000) + b","
    path.write_bytes(head + b'{"text": 5}' + b"," + GOOD + b"]")
    with pytest.raises(DataError, match=rf"element 20,000 .*\(byte {len(head):,}\)"):
        list(read_documents(path))
    path.write_bytes(head + b"!" + GOOD + b"]")
    with pytest.raises(DataError, match=rf"\(byte {len(head):,}\)"):
        list(read_documents(path))


@pytest.mark.parametrize("lines", [False, True])
def test_truncated_gzip(tmp_path: Path, lines: bool) -> None:
    rows = [json.dumps({"text": f"text {i}" * 50}) for i in range(2000)]
    content = gzip.compress(("\n".join(rows) if lines else "[" + ",".join(rows) + "]").encode())
    path = tmp_path / "data.gz"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"ends too early.*decompressed byte"):
        list(read_documents(path))
    path.write_bytes(content[:500] + b"\0" * 100 + content[600:])
    with pytest.raises(DataError, match=r"damaged gzip|invalid|broken|not UTF-8|not one whole"):
        list(read_documents(path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list(read_documents(tmp_path / "nothing"))
    with pytest.raises(DataError, match="is a folder"):
        list(read_documents(tmp_path))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("lines", [False, True])
def test_the_hook_hears_growing_bytes_of_the_file(tmp_path: Path, compress: bool, lines: bool) -> None:
    rows = [json.dumps({"text": f"{i} " * 500}) for i in range(3000)]
    content = ("\n".join(rows) if lines else "[" + ",".join(rows) + "]").encode()
    path = tmp_path / "data"
    path.write_bytes(gzip.compress(content, 1) if compress else content)
    heard: list[int] = []
    assert len(list(read_documents(path, on_bytes=heard.append))) == 3000
    assert heard == sorted(heard)
    assert heard[0] > 0
    assert heard[-1] == path.stat().st_size
    if not compress:
        assert heard[0] <= 3 << 20  # not read ahead without end


@pytest.mark.parametrize("lines", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, lines: bool) -> None:
    row = json.dumps({"text": "some text " * 1000})
    path = tmp_path / "data"
    path.write_text("\n".join([row] * 3000) if lines else "[" + ",".join([row] * 3000) + "]")
    tracemalloc.start()
    for _ in read_documents(path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20 < path.stat().st_size


@pytest.mark.parametrize("array", [False, True])
def test_a_document_beyond_the_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: bool
) -> None:
    for module in (json_array, documents):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:  # 300 kB that become 64 MB
        file.write(b'[{"text": "' if array else b'{"text": "')
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"more than [0-9,]+ characters; split that document.*byte"):
        list(read_documents(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20


@pytest.mark.parametrize("inner", ["9" * 100_000, "[" * 80_000 + "]" * 80_000])
def test_a_hostile_array_kills_no_process_and_takes_no_memory(tmp_path: Path, inner: str) -> None:
    path = tmp_path / "hostile.json"
    path.write_text(f'[{{"text": "good"}}, {{"text": "x", "y": {inner}}}]')
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fsdp_lab.data.reading.documents import read_documents\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "try:\n"
        "    list(read_documents(Path(sys.argv[1])))\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # a segmentation fault is a number below 0
    assert str(path) in done.stdout
    assert done.stdout.endswith("it begins (byte 19)\n")


def test_one_huge_document_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "data"
    text = "a b " * 10_000_000  # 40 MB; fixed pieces of 64 kB would take many seconds
    path.write_text(json.dumps([{"text": text}]))
    assert next(read_documents(path)).text == text
