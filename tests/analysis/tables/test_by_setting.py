"""The table of several settings: a line a setting, a column an arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.comparing.groups import several
from analysis.tables import comparison
from analysis.tables.by_setting import by_setting_table
from tests.analysis.planted_rows import arm, write

ROWS = [
    *(row for method, worse in (("none", 0.0), ("int8", 0.01), ("int4", 0.0)) for row in arm(method, worse)),
    *(row for method, worse in (("none", 1.0), ("int8", 1.03)) for row in arm(method, worse, max_steps=400)),
]


def test_changes_stand_under_their_arm() -> None:
    (group,) = several(comparisons([*ROWS, *arm("bf16", 0.0), *arm("none", max_steps=7), *arm("bf16", max_steps=7)]))
    table = by_setting_table(group)
    assert table.heads[3:] == ("int8 + int8", "bf16 + bf16")
    assert {row[0]: row[3:] for row in table.rows} == {
        "as most": ["+1.01 % [+1.01, +1.01]", "+0.00 % [+0.00, +0.00]"],
        "max_steps 400": ["+3.05 % [+3.05, +3.05]", "-"],
        "max_steps 7": ["-", "+0.00 % [+0.00, +0.00]"],
    }


def test_the_command_prints_it_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS)
    assert comparison.main([str(file)]) == 0
    last = capsys.readouterr().out.split("\n\n")[-2:]
    assert last[0] == "Change of PPL in each setting, against its own baseline"
    assert [line.split("  ")[0] for line in last[1].splitlines()[1:]] == ["as most", "max_steps 400"]
