"""The program that makes mutants, and the list that it keeps."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.survivors import UNEXPLAINED, listed

SOURCE = '''
def mark(rows: A | B) -> C | D:
    """1 + 1"""
    if rows.empty and not rows.frozen:
        raise ValueError(f"{rows + 1} of {7 < 8}")
    rows[0] = rows[1] - 2
    take(rows, name="x", device=rows.device, strict=True)
    return rows
'''


def test_every_mistake_is_made_once_where_it_can_change_something() -> None:
    found = mutants(SOURCE)
    assert {mutant.where for mutant in found} == {"mark"}
    assert [mutant.change for mutant in found] == [
        "if rows.empty and (not rows.frozen): -> if not (rows.empty and (not rows.frozen)):",
        "rows.empty and (not rows.frozen) -> rows.empty or not rows.frozen",
        "not rows.frozen -> rows.frozen",
        "raise ValueError(f'{rows + 1} of {7 < 8}') -> pass",
        "rows[0] = rows[1] - 2 -> pass",
        "0 -> 1",
        "rows[1] - 2 -> rows[1] + 2",
        "1 -> 2",
        "2 -> 3",
        "take(rows, name='x', device=rows.device, strict=True) -> pass",
        "take(rows, name='x', device=rows.device, strict=True) -> take(rows, device=rows.device, strict=True)",
        "True -> False",
    ]
    assert len({mutant.source for mutant in found}) == len(found)


def test_reasons_stay_and_other_modules_stay(tmp_path: Path) -> None:
    path = tmp_path / "survivors.md"
    one, two = Mutant("f", 3, "a | b -> a & b", ""), Mutant("g", 5, "0 -> 1", "")
    assert listed(path, "rounds", "today", 10, [one, two]) == 2
    path.write_text(path.read_text().replace(UNEXPLAINED, "the same set", 1))
    assert listed(path, "state", "today", 5, []) == 1
    assert listed(path, "rounds", "tomorrow", 8, [one]) == 0
    text = path.read_text()
    assert "| rounds | tomorrow | 8 | 7 |" in text
    assert "| state | today | 5 | 5 |" in text
    assert r"| rounds | f | `a \| b -> a & b` | the same set |" in text
    assert "0 -> 1" not in text
