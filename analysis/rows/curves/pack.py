"""Pack the loss curves of results rows into one archive beside the results file.

    python -m analysis.rows.curves.pack results/reference/fresh_weights/sweeps.jsonl [MORE.jsonl ...] [--remove]

adds the curve files that the rows name to ``curves.zip``, where every command of ``analysis`` finds them, too;
``--remove`` then deletes the curve files. The same curves make the same archive, byte for byte, in whichever order they
were added.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis.rows.curves.archive import add_curves, archive_of, read_archive
from analysis.rows.reading import Row, read_all
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors


def curve_files(rows: Iterable[Row]) -> dict[Path, list[Path]]:
    """The curve files that rows name and that exist, by the archive that they belong to."""
    by_archive: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(row.curve for row in rows):
        if path is not None and path.is_file():
            by_archive.setdefault(archive_of(path), []).append(path)
    return by_archive


def main(argv: Sequence[str]) -> int:
    """Read the rows, write the archives, say what was added."""
    parser = program("analysis.rows.curves.pack", __doc__)
    parser.add_argument("file", nargs="+", type=Path, help="results rows (JSON lines)")
    parser.add_argument("--remove", action="store_true", help="delete the curve files once the archive has them")
    options = parser.parse_args(argv)
    with user_errors("pack_curves"):
        by_archive = curve_files(read_all(options.file))
        try:
            for archive, files in by_archive.items():
                added = add_curves(archive, files)
                print(printable(f"{archive}: {added} curves added, {len(read_archive(archive))} in all"))
                for file in files if options.remove else ():
                    file.unlink()
        except OSError as error:
            raise ValueError(f"cannot write {error.filename} ({error.strerror})") from None
    if not by_archive:
        print("no curve file is left to pack")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
