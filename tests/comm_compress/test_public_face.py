"""What `import comm_compress` offers: every name is there, and nothing is imported before it is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import comm_compress as cc

ROOT = Path(__file__).resolve().parents[2]
FOR_METHODS = {"Codec", "Encoded", "Field", "Layout", "State", "Traits", "register", "require", "rounds", "conformance"}


@pytest.mark.parametrize("name", cc.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(cc, name) is getattr(cc, name)
    assert name in dir(cc)


def test_a_methods_author_needs_no_other_import() -> None:
    assert set(cc.__all__) >= FOR_METHODS


def test_an_unknown_name_is_refused_as_python_refuses_it() -> None:
    with pytest.raises(AttributeError, match=r"comm_compress.*attch"):
        _ = cc.attch


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    program = "import sys, comm_compress as cc; cc.labels, cc.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_version_is_said_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", cc.__version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "comm_compress.__version__"}
