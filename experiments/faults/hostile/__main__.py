"""Hostile files and flags against our own commands: what was promised, what was seen.

    python -m experiments.faults.hostile --out results/reference/faults/hostile.md
    python -m experiments.faults.hostile --areas YAML flags --cases "a seed"        # some of them, printed

Every case runs in a process of its own with a limit on memory (address space) and time. It must end with the promised
exit code (2; 0 where the bad part is left out and counted), say the promised words, and show no traceback. Writes a
table in Markdown and all that was seen as JSON beside it; the exit code is 1 when a promise was broken.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.faults.hostile.case import Case, Seen, judged
from experiments.faults.hostile.limited_process import run_limited
from fsdp_lab.files.atomic import write_bytes, write_json
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.reading.strict import load_json
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def tried(case: Case) -> Seen:
    """Make the case's files, run its command, and judge what it did."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ended = run_limited(case.make(folder), case.memory_mb, case.seconds)
        return judged(case, folder, ended.code, ended.output, ended.peak_mb)


def table(seen: Iterable[Seen]) -> str:
    """The cases in Markdown, those that broke their promise first."""
    seen = sorted(seen, key=lambda one: one.kept)
    broken = sum(not one.kept for one in seen)
    lines = [
        "# Hostile files and flags",
        "",
        f"Made by `python -m experiments.faults.hostile`: {len(seen)} cases, {broken} promises broken. Promised: the "
        "exit code, one message that names what is wrong, no traceback, no code of a stranger run, under a limit on "
        "memory and time. Exit code 0: the bad part is left out and counted. The memory is the process's largest, "
        "libraries included, and never below that of the program that started it.",
        "",
        "| area | case | exit code | MB | said | promise |",
        "|---|---|---:|---:|---|---|",
    ]
    lines += [
        f"| {one.area} | {one.name} | {'stopped' if one.code is None else one.code} | {one.peak_mb:,} | "
        f"{_cell(one.line)} | {'kept' if one.kept else _cell('; '.join(one.broken))} |"
        for one in seen
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def _chosen(cases: Sequence[Case], areas: Sequence[str], words: Sequence[str]) -> list[Case]:
    strange = set(areas) - {case.area for case in cases}
    if strange:
        raise ValueError(f"areas: no {sorted(strange)[0]!r}; known: {', '.join(dict.fromkeys(c.area for c in cases))}")
    chosen = [
        case
        for case in cases
        if (not areas or case.area in areas) and (not words or any(word in case.name for word in words))
    ]
    if not chosen:
        raise ValueError(f"cases: none has {' or '.join(words)} in its name")
    return chosen


def _kept(out: Path | None) -> dict[tuple[str, str], Seen]:
    if out is None:
        raise ValueError("again: wants --out, the table to mend")
    try:
        rows = load_json(out.with_suffix(".json").read_bytes())
    except OSError as error:
        raise ValueError(f"again: cannot read {out.with_suffix('.json')} ({error.strerror})") from None
    return {(row["area"], row["name"]): Seen(**_fields(row)) for row in rows if row["kept"]}


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "kept"} | {"broken": tuple(row["broken"])}


def _told(case: Case) -> Seen:
    seen = tried(case)
    result = "kept" if seen.kept else "BROKEN: " + "; ".join(seen.broken)
    print(f"{case.area}: {case.name}: {result}", file=sys.stderr, flush=True)
    return seen


def main(argv: Sequence[str]) -> int:
    """Try the cases; returns 1 when a promise was broken."""
    parser = program("experiments.faults.hostile", __doc__)
    parser.add_argument("--out", type=new_file(), help="Markdown file to write, with JSON beside it; none: print")
    parser.add_argument("--areas", nargs="+", default=[], help="only these; none: all")
    parser.add_argument("--cases", nargs="+", default=[], help="only those with one of these texts in their names")
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, 17), metavar="N", help="cases at once")
    parser.add_argument("--again", action="store_true", help="only what --out has not seen kept; the rest stays")
    options = parser.parse_args(argv)
    from experiments.faults.hostile.cases import CASES  # some of them make models, with torch: not for --help

    with user_errors("experiments.faults.hostile"):
        cases = _chosen(CASES, options.areas, options.cases)
        known = _kept(options.out) if options.again else {}
        with ThreadPoolExecutor(options.jobs) as pool:
            seen = list(pool.map(lambda case: known.get((case.area, case.name)) or _told(case), cases))
        if options.out is None:
            print(table(seen), end="")
        else:
            write_bytes(options.out, table(seen).encode())
            write_json(options.out.with_suffix(".json"), [asdict(one) | {"kept": one.kept} for one in seen])
    return 0 if all(one.kept for one in seen) else 1


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
