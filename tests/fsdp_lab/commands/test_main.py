"""The command `fsdp-lab`: which word runs what, what is said of other words, and what is not imported for it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import comm_compress as cc
from fsdp_lab.commands import main as front
from fsdp_lab.commands.main import found, main
from fsdp_lab.commands.table import COMMANDS, FAMILIES, GROUPS
from fsdp_lab.moved import MOVED

ROOT = Path(__file__).resolve().parents[3]


def module(words: str) -> str | None:
    command, _ = found(words.split())
    return command.module if command else None


def test_a_command_is_found_by_its_words() -> None:
    assert module("report rows.jsonl") == "analysis.report"
    assert module("bench codecs --threads 1") == "experiments.bench.traffic.codecs"
    assert found(["links", "matrix", "--out", "x"])[1] == ["--out", "x"]
    assert module("links -- --comm_compress int8") == "experiments.links"
    assert module("bench") is None


def test_dashes_and_underscores_are_alike() -> None:
    assert module("fidelity update_error") == module("fidelity update-error") == "experiments.fidelity.update_error"
    assert module("rows pack_curves") == "analysis.rows.curves.pack"


def test_names_of_modules_do_too_also_those_before_they_moved() -> None:
    assert module("analysis.report") == "analysis.report"
    assert module("analysis.fairness") == module("fairness") == "analysis.checks"
    assert module("bench_link") == "experiments.bench.traffic.link"
    for old in MOVED:
        assert module(old) == MOVED[old]
    assert module("codecs") is None  # experiments.bench.codecs was never said without its room


def test_what_moved_has_moved() -> None:
    for old, new in MOVED.items():
        here, there = ROOT / new.replace(".", "/"), ROOT / old.replace(".", "/")
        assert here.with_suffix(".py").exists() or (here / "__main__.py").exists(), new
        assert not there.with_suffix(".py").exists(), f"{old} is there again"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("reprot", "reprot: no such command; did you mean fsdp-lab report?"),
        ("bench codec", "bench codec: no such command; did you mean fsdp-lab bench codecs?"),
        ("links calibrat", "links calibrat: no such command; did you mean fsdp-lab links calibrate?"),
        ("eagl", "did you mean fsdp-lab eagle?"),
        ("xyzzy", "fsdp-lab: xyzzy: no such command; fsdp-lab --help lists all"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert hint in capsys.readouterr().err


def test_help_has_every_command_and_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{group}:\n" in text for group in GROUPS)
    assert all(command.words.split()[-1] in text for command in COMMANDS)
    assert main([]) == 2


@pytest.mark.parametrize("word", FAMILIES)
def test_the_first_word_of_several_commands_lists_them(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "--help"]) == main(["help", word]) == 0
    assert main([word]) == 2
    listed = capsys.readouterr()
    texts = [f"  {command.words} " for command in COMMANDS if command.words.startswith(f"{word} ")]
    assert all(listed.out.count(text) == 2 and text in listed.err for text in texts)


def test_the_version_is_that_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fsdp-lab {cc.__version__}\n"


def test_a_command_of_a_checkout_says_so_in_one_line_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front, "ROOT", tmp_path)
    assert main(["sweep", "--help"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fsdp-lab sweep is a command of a checkout")
    assert said.count("\n") == 1


QUICK = """
import sys
from fsdp_lab.commands.main import main
for words in (["--help"], ["--version"], ["bench", "--help"], ["methods"], ["methods", "topk"], ["systems"],
              ["systems", "sdp4bit"], ["doctor", "--fast"], ["completion", "bash"], ["reprot"]):
    try:
        main(words)
    except SystemExit:
        pass
    heavy = {"torch", "numpy", "pandas", "transformers", "yaml"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_what_needs_no_training_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", QUICK], cwd=ROOT, check=True, capture_output=True)


def test_old_lines_of_python_run_what_they_ran(tmp_path: Path) -> None:
    line = [sys.executable, "-X", "utf8", "-m", "fsdp_lab.cli", "show", "--", "--seed", "7", "--run_name", "x=-m"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == "fsdp_lab.cli is fsdp_lab.settings now\n"
    assert "\nseed: 7\n" in done.stdout
    assert "\nrun_name: x=-m\n" in done.stdout


def test_an_old_name_cannot_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fsdp_lab.cli")


def test_a_command_is_given_its_words_and_its_exit_code_comes_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fsdp_lab.commands.methods", raising=False)  # as it is for who types this
    with pytest.raises(SystemExit) as ending:
        main(["methods", "no_such_method"])
    assert ending.value.code == 2
    assert "unknown compression method 'no_such_method'" in capsys.readouterr().err
