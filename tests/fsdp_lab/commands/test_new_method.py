"""`fsdp-lab new-method`: the package that it writes passes its own tests, and names that will not do are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fsdp_lab.commands.new_method.__main__ import FILES, main

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_a_whole_package_whose_tests_pass(tmp_path: Path) -> None:
    out = tmp_path / "made"
    assert main(["my_signs", "--out", str(out)]) == 0
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        name.format(name="my_signs") for name in FILES.values()
    }
    assert not any("@" in path.read_text().replace("@pytest", "").replace("@cc", "") for path in out.rglob("*.toml"))
    points = tomllib.loads((out / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points == {"comm_compress.methods": {"my_signs": "my_signs"}}
    assert len((out / "README.md").read_text().splitlines()) <= 20
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "35 passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Method", "small letters"),
        ("class", "small letters"),
        ("torch", "is the name of a module"),
        ("json", "is the name of a module"),
        ("topk", "there is a method 'topk' already"),
    ],
)
def test_names_that_will_not_do(name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["my_signs", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "is not empty" in capsys.readouterr().err
