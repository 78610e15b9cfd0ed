"""survivors.md: when each module was tried, and what no test noticed, with the reasons that people wrote there."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant

UNEXPLAINED = "UNEXPLAINED"
HEAD = """# Mutants that no test notices, and why each may live

Made by `python -m tests.mutation`; the reasons are written by hand, here, and the command keeps them.

| module | tried | mutants | noticed |
|---|---|---|---|
"""
TABLE = """
| module | function | change | reason |
|---|---|---|---|
"""
Row = tuple[str, str, str, str]


def listed(path: Path, module: str, when: str, tried: int, survivors: list[Mutant]) -> int:
    """Write a module's rows anew and keep the others'; how many of all survivors have no reason."""
    runs, found = _read(path)
    reasons = {row[:3]: row[3] for row in found}
    runs = [row for row in runs if row[0] != module]
    runs.append((module, when, str(tried), str(tried - len(survivors))))
    found = [row for row in found if row[0] != module]
    for mutant in survivors:
        key = (module, mutant.where, f"`{mutant.change}`")
        found.append((*key, reasons.get(key, UNEXPLAINED)))
    path.write_text(HEAD + "".join(map(_line, sorted(runs))) + TABLE + "".join(map(_line, sorted(found))))
    return sum(row[3] == UNEXPLAINED for row in found)


def _line(row: Row) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n"


def _read(path: Path) -> tuple[list[Row], list[Row]]:
    """The rows of both tables."""
    tables: tuple[list[Row], list[Row]] = ([], [])
    second = False
    for line in path.read_text().splitlines() if path.exists() else []:
        cells = [c.strip().replace("\0", "|") for c in line.replace(r"\|", "\0").strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4:
            if cells[0] == "module":
                second = cells[1] == "function"
            else:
                tables[second].append((cells[0], cells[1], cells[2], cells[3]))
    return tables
