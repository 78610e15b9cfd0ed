"""The tables of parameters, and what is refused. A real run's are in `test_update_error`."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.fidelity.by_parameter import main, markdown
from experiments.fidelity.capture import GRADIENTS
from experiments.fidelity.outliers_and_errors import Line


def test_a_table_has_names_without_what_all_begin_with() -> None:
    vector = Line(GRADIENTS, "hf.model.layers.norm.weight", 2, 20, 0.25, 1.5, None, None, {"int4": None})
    matrix = Line(GRADIENTS, "hf.model.embed.weight", 1, 1200, 0.75, 48.123, 2.0, 1.0, {"int4": 0.1})
    assert markdown(GRADIENTS, [vector, matrix]).splitlines() == [
        "| gradients | tensors | elements | share, % | largest | row | column | int4 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        "| layers.norm.weight | 2 | 20 | 25 | 1.5 | - | - | - |",
        "| embed.weight | 1 | 1,200 | 75 | 48.1 | 2 | 1 | 0.1 |",
    ]


def test_one_kind_keeps_its_name() -> None:
    line = Line(GRADIENTS, "w", 1, 4, 1.0, 1.0, 1.0, 1.0, {})
    assert "| w | 1 | 4 |" in markdown(GRADIENTS, [line])


def test_nothing_to_measure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--gradients", "--parameters"])
    assert "name a method" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "run fsdp-lab fidelity capture" in capsys.readouterr().err
