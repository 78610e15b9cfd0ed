"""Are these the files that the command wrote, all of them, and rows that a trainer could have written?"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.speedrun.entry import ROWS, Entry, hashes


def complaints(entry: Entry) -> Iterator[str]:
    """Files that were changed, added or taken away since entry.json was written; lines that are no rows.

    Who changes a file can change entry.json, too: the other checks are for that."""
    written, now = entry.header.get("files"), hashes(entry.folder)
    if not isinstance(written, dict):
        yield "entry.json does not say which files it goes with"
        return
    for name in sorted(written.keys() | now.keys()):
        if name not in now:
            yield f"{name} is missing"
        elif name not in written:
            yield f"{name} was not written by the command"
        elif written[name] != now[name]:
            yield f"{name} was changed after the run: its sha256 is another"
    for line in entry.bad_rows:
        yield f"{ROWS}: {line}"
