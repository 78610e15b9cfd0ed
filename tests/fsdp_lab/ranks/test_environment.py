"""The variables that ranks start with: the user's own win, and jemalloc is taken where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_lab.ranks import environment
from fsdp_lab.ranks.environment import become_a_rank, rank_environment

VARIABLES = ("LD_PRELOAD", "MALLOC_CONF", "MALLOC_MMAP_THRESHOLD_", "THP_MEM_ALLOC_ENABLE", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def jemalloc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    library = tmp_path / "libjemalloc.so.2"
    library.touch()
    monkeypatch.setattr(environment, "_places", lambda: [tmp_path / "absent", library])
    return library


def test_glibc_without_jemalloc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "_places", lambda: [tmp_path / "absent"])
    found = rank_environment(1)
    assert "LD_PRELOAD" not in found
    assert int(found["MALLOC_MMAP_THRESHOLD_"]) == 4 << 20


def test_jemalloc_where_it_is_installed(jemalloc: Path) -> None:
    found = rank_environment(1)
    assert found["LD_PRELOAD"] == str(jemalloc)
    assert "MALLOC_MMAP_THRESHOLD_" not in found


@pytest.mark.parametrize("preloaded", ["", "/lib/of/the/user.so"])
def test_the_user_s_own_choice_of_a_library_wins(
    jemalloc: Path, preloaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = rank_environment(1)
    assert (found["LD_PRELOAD"], found["OMP_NUM_THREADS"]) == (preloaded, "7")
    assert "MALLOC_CONF" not in found


def test_threads_are_divided_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert [rank_environment(ranks)["OMP_NUM_THREADS"] for ranks in (1, 3, 9)] == ["8", "2", "1"]


def test_a_program_starts_again_as_a_rank_once(tmp_path: Path) -> None:
    program = tmp_path / "says.py"
    program.write_text(
        "import os, sys\n"
        "from fsdp_lab.ranks.environment import become_a_rank\n"
        "print('begun', flush=True)\n"
        "become_a_rank('says', sys.argv[1:])\n"
        "print(os.environ['OMP_NUM_THREADS'].isdecimal(), *sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "says", "a b"]
    path = {"PYTHONPATH": f"{tmp_path}:{Path(environment.__file__).parents[2]}", "PATH": ""}
    said = subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["begun", "begun", "True a b"]


def test_no_second_start_in_a_rank_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rank_environment(1).items():
        monkeypatch.setenv(name, value)
    become_a_rank("does.not.exist", [])  # would take this process's place
