"""The notebooks run, as notebooks, on the rows that are committed or on two ranks, and show figures."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "analysis" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[a-z]*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jupytext = pytest.importorskip("jupytext", reason="needs the extra: pip install -e .[notebooks]")
    client = pytest.importorskip("nbclient")
    traitlets = pytest.importorskip("traitlets.config")
    notebook: Any = jupytext.read(path)
    # The front page's program is run by tests/examples/test_front_page.py; again, it would cost 9 processor seconds.
    notebook.cells = [cell for cell in notebook.cells if "print(two_ranks(FRONT_PAGE))" not in cell.source]
    for cell in notebook.cells:
        cell.source = cell.source.replace("STEPS = 60", "STEPS = 10")
    # Jupyter picks TCP ports, lets them go and tells the kernel to bind them: another test may take one meanwhile.
    # Sockets in a folder of one's own have no such gap. Its name is short: a socket's may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", folder)
        sockets = traitlets.Config(KernelManager={"transport": "ipc", "ip": f"{folder}/socket"})
        where = {"metadata": {"path": str(path.parent)}}
        client.NotebookClient(notebook, timeout=120, resources=where, config=sockets).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_the_notebook_for_colab_has_the_front_pages_program() -> None:
    (program,) = re.findall(r"(?ms)^```python\n(.+?)^```$", (ROOT / "README.md").read_text())
    assert f'FRONT_PAGE = """\n{program}"""' in (FOLDER / "colab.py").read_text()


def test_the_notebook_that_colab_opens_has_the_same_cells() -> None:
    """Colab opens .ipynb only, so this one is committed, without outputs."""
    jupytext = pytest.importorskip("jupytext", reason="needs the extra: pip install -e .[notebooks]")
    source, paired = (jupytext.read(FOLDER / name) for name in ("colab.py", "colab.ipynb"))
    advice = "make it anew: jupytext --to ipynb analysis/notebooks/colab.py"
    cells = [[(cell.cell_type, cell.source) for cell in notebook.cells] for notebook in (source, paired)]
    assert cells[0] == cells[1], advice
    assert [cell.outputs for cell in paired.cells if cell.cell_type == "code" and cell.outputs] == []


def test_the_notebook_for_colab_asks_for_the_address_where_nothing_is_installed(tmp_path: Path) -> None:
    (cell,) = re.findall(r"(?ms)^import importlib.util\n.+?(?=^# %% )", (FOLDER / "colab.py").read_text())
    (tmp_path / "cell.py").write_text(cell)
    done = subprocess.run([sys.executable, "-I", "-S", "cell.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ValueError: comm_compress is not installed: set REPOSITORY")
