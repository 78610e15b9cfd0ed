"""Fetch Wikipedia articles from the Hugging Face hub into one JSON array.

    python -m fsdp_lab.data.download_wikipedia --out wiki.json --num_documents 100000

Needs the internet and `pip install "fsdp-comm-compress[datasets]"`. Articles are streamed: neither memory nor disk
holds more than what is asked for.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fsdp_lab.data.sources.embedded_files import WIKI_LEADS
from fsdp_lab.files.atomic import atomic_file
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings

DATASET, SNAPSHOT = "wikimedia/wikipedia", "20231101"
_WITHOUT_DOWNLOAD = (
    f"Without it: train on the embedded corpus ({WIKI_LEADS}), or run this where there is internet and copy the file."
)


def main(arguments: list[str] | None = None) -> int:
    """Downloads what the command line asks for. Returns 0, or 2 after one message when that is not possible."""
    options = _parser().parse_args(arguments)
    try:
        count = download(options.out, options.num_documents, options.language)
    except DataError as error:
        print(f"download_wikipedia: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {count:,} documents")
    return 0


def download(out: Path, num_documents: int, language: str = "en") -> int:
    """Writes the first `num_documents` articles to `out`, a JSON array of {"id", "title", "text"}, atomically.

    Returns how many there were. Raises DataError without `datasets`, without internet, and if the hub fails.
    """
    load = _load_dataset()
    try:
        articles = load(DATASET, f"{SNAPSHOT}.{language}", split="train", streaming=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        return write_array(out, islice(articles, num_documents))
    except Exception as error:  # whatever datasets, its hub client or their network stack raise
        raise DataError(
            f"{DATASET} ({language}) cannot be downloaded: {_first_line(error)}. {_WITHOUT_DOWNLOAD}"
        ) from error


def write_array(out: Path, articles: Iterable[dict[str, Any]]) -> int:
    """Writes articles as a JSON array, one element on each line. Returns their number."""
    count = 0
    with atomic_file(out) as file:
        for line in _lines(articles):
            file.write(("[\n" if count == 0 else ",\n").encode() + line)
            count += 1
        if not count:
            raise DataError("the dataset gave no documents")
        file.write(b"\n]\n")
    return count


def _lines(articles: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for article in articles:
        fields = {key: article[key] for key in ("id", "title", "text")}
        yield json.dumps(fields, ensure_ascii=False).encode()


def _load_dataset() -> Callable[..., Iterable[dict[str, Any]]]:
    try:
        from datasets import load_dataset
    except ImportError:
        message = 'the package `datasets` is not installed: pip install "fsdp-comm-compress[datasets]".'
        raise DataError(f"{message} {_WITHOUT_DOWNLOAD}") from None
    loader: Callable[..., Iterable[dict[str, Any]]] = load_dataset
    return loader


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _parser() -> Parser:
    parser = program("fsdp_lab.data.download_wikipedia", __doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write; its folder is made")
    parser.add_argument(
        "--num_documents", type=whole(1), required=True, help="how many articles, in the dataset's order"
    )
    parser.add_argument("--language", default="en", help="language code of the Wikipedia (default: en)")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
