"""Rows as a DataFrame and as CSV: every field of every row, nothing lost, one value a cell."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.rows.__main__ import main
from analysis.rows.frames import frame
from tests.analysis import planted_drafts
from tests.analysis.planted_rows import died, fair, row, write

ROOT = Path(__file__).resolve().parents[3]


def test_every_field_of_a_committed_row_is_in_it() -> None:
    file = ROOT / "results/reference/fresh_weights/bar.jsonl"
    found = frame(file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found) == len(rows)
    for values, (_, line) in zip(rows, found.iterrows(), strict=True):
        for name, value in values.items():
            cells = value if isinstance(value, dict) and not name.endswith("compress_config") else {"": value}
            for key, cell in cells.items():
                there = line[f"{name}.{key}" if key else name]
                if cell is None:
                    assert pd.isna(there), name
                elif isinstance(cell, dict | list):
                    assert json.loads(there) == cell, name
                else:
                    assert there == cell, name


def test_statistics_of_pandas_are_ours(tmp_path: Path) -> None:
    found = frame(write(tmp_path / "rows.jsonl", fair()))
    table = found.groupby(["config.model", "arm"])["val_ppl"].agg(["mean", "std", "count"])
    losses = [math.log(table.loc[("gpt2-nano", arm), "mean"]) for arm in ("none", "int4 + int4")]
    assert losses[1] - losses[0] == pytest.approx(0.052, abs=1e-3)
    assert set(table["count"]) == {3}
    assert str(found["seed"].dtype) == "Int64"


def test_selection_drafts_and_failed_runs(tmp_path: Path) -> None:
    rows = [row("none"), died("int8", 2), *planted_drafts.fair()[:1]]
    file = write(tmp_path / "rows.jsonl", rows)
    assert list(frame(file)["line"]) == [1, 2, 3]
    failed = frame(file, status="failed")
    assert list(failed["error"]) == ["rank 1 died"]
    with pytest.raises(ValueError, match="did you mean 'status'"):
        frame(file, statsu="failed")
    with pytest.raises(ValueError, match="cannot read"):
        frame(tmp_path / "none.jsonl")


def test_the_command_writes_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = row("int8", run_name='comma, "quote"\nline', compress_config={"ratio": 0.01})
    file = write(tmp_path / "rows.jsonl", [*fair(), nasty])
    out = tmp_path / "rows.csv"
    assert main([str(file), "--out", str(out), "--select", "compress_method=int8"]) == 0
    assert "4 rows" in capsys.readouterr().out
    back = pd.read_csv(out)
    assert list(back["run_name"])[-1] == nasty["run_name"]
    assert list(back["compress_config"])[-1] == '{"ratio":0.01}'
    assert list(back["val_loss"]) == list(frame(file, compress_method="int8")["val_loss"])
    assert main([str(file), "--select", "compress_method=int8"]) == 0
    assert len(pd.read_csv(io.StringIO(capsys.readouterr().out))) == 4


def test_mistakes_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", fair())
    (tmp_path / "bad.jsonl").write_text("{half\n")
    for words, why in (
        ([str(file), "--out", str(tmp_path / "no" / "rows.csv")], "wants a file in a folder that exists"),
        ([str(tmp_path / "bad.jsonl")], "no sound row"),
        ([str(file), "--select", "sede=1"], "did you mean 'seed'"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
        assert why in capsys.readouterr().err.splitlines()[-1]
