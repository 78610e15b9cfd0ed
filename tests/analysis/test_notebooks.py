"""The notebooks run, as notebooks, on the rows that are committed, and show figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "analysis" / "notebooks").glob("[a-z]*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="needs the extra: pip install -e .[notebooks]")
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook: Any = jupytext.read(path)
    client.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
