"""Documents of a JSON array or a JSON-lines file, plain or gzip, one at a time."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_lab.data.reading.byte_stream import ByteStream
from fsdp_lab.data.reading.json_array import array_elements
from fsdp_lab.data.reading.json_decoder import DECODER, LARGEST, too_large, unusable

BytesHook = Callable[[int], None]
"""Called with the bytes of the file (compressed ones for gzip) consumed so far."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its title. `id` is "" when the file gives none, and so is `title`."""

    id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """What a model is trained on: title, newline, text."""
        return self.title + "\n" + self.text


def read_documents(path: Path, *, skip: int = 0, on_bytes: BytesHook | None = None) -> Iterator[Document]:
    """Yields the documents of `path` in file order, without the first `skip` (which are not checked).

    The file is a JSON array of {"id", "title", "text"}, or has one such object on each line; the first byte that is
    not white space tells which. Either may be gzip. The whole file is never loaded: memory is bounded by a few times
    the largest document. A JSON-lines file may hold empty lines.

    Raises DataError, naming file, byte offset (within the decompressed content for gzip) and reason, for a
    missing, empty or truncated file, broken JSON or UTF-8, and elements that are not objects with a text.
    """
    kind = _first_byte(path)
    with ByteStream(path) as stream:
        for document in _array(stream, skip) if kind == b"[" else _lines(stream, skip):
            if on_bytes:
                on_bytes(stream.file_position)
            yield document


def _first_byte(path: Path) -> bytes:
    with ByteStream(path) as stream:
        while chunk := stream.read(4096):
            if content := chunk.lstrip(b" \t\r\n"):
                if content[:1] in (b"[", b"{"):
                    return content[:1]
                raise stream.error(
                    f'expected a JSON array ("[") or JSON lines ("{{"), found {content[:1]!r}',
                    stream.offset - len(content),
                )
        raise stream.error("the file is empty" if not stream.offset else "the file holds only white space")


def _array(stream: ByteStream, skip: int) -> Iterator[Document]:
    for number, element in enumerate(array_elements(stream)):
        if number < skip:
            continue
        try:
            document = _document(element.value)
        except (ValueError, RecursionError) as error:
            reason = f"element {number:,} of the array {unusable(error)}; it begins"
            raise stream.error(reason, element.start) from None
        yield document


def _lines(stream: ByteStream, skip: int) -> Iterator[Document]:
    number = 0
    start = stream.offset
    while line := stream.readline(LARGEST + 1):
        number += 1
        if len(line) > LARGEST:
            raise stream.error(f"line {number:,} {too_large()}", start)
        if line.strip() and (skip := skip - 1) < 0:
            yield _line(stream, line, number, start)
        start = stream.offset


def _line(stream: ByteStream, line: bytes, number: int, start: int) -> Document:
    try:
        return _document(DECODER.decode(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        at, reason = error.start, f"is not UTF-8: {error.reason}"
    except json.JSONDecodeError as error:
        at, reason = len(error.doc[: error.pos].encode("utf-8")), f"is not one whole JSON object: {error.msg}"
    except (ValueError, RecursionError) as error:
        at, reason = 0, unusable(error)
    raise stream.error(f"line {number:,} {reason}", start + at)


def _document(element: Any) -> Document:
    if not isinstance(element, dict):
        raise ValueError(f'is a JSON {_json_type(element)}, not an object with "text"')
    if not isinstance(text := element.get("text"), str):
        kind = _json_type(text) if "text" in element else "nothing"
        raise ValueError(f'needs a string "text", found {kind}')
    title = element.get("title", "")
    if not isinstance(title, str):
        raise ValueError(f'needs a string "title" (or none), found {_json_type(title)}')
    for value in (title, text):
        if not value.isascii():
            value.encode("utf-8")  # "\ud800" is valid JSON but no text: a ValueError that says so
    return Document(str(element.get("id", "")), title, text)


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
