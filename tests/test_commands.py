"""How commands begin (what --help says, how flags may be written), and how they end when nobody reads them."""

from __future__ import annotations

import functools
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_lab.commands.main import main
from fsdp_lab.commands.table import COMMANDS, RUNS, STARTED_BY_OTHERS
from fsdp_lab.settings.flags import as_typed, commands_are_typed, program
from tests.distributed import run_program

ROOT = Path(__file__).resolve().parents[1]
ROWS = "results/reference/fresh_weights/all_methods.jsonl"
FAILS = """
from fsdp_lab.settings.user_errors import unix_endings
with unix_endings():
    raise BrokenPipeError('a socket')
"""


def run(*words: str, stdout: int) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [["fsdp_lab.results", "show", ROWS], ["analysis.checks", ROWS]], ids=lambda w: w[0])
def test_a_reader_that_leaves_ends_a_command_without_a_word(words: list[str]) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    try:
        assert run("-m", *words, stdout=ours) == (141, "")
    finally:
        os.close(ours)


@pytest.mark.parametrize("where", ["output", "file"])
def test_a_full_disk_is_one_line(where: str, tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    out.symlink_to("/dev/full")  # the kernel refuses what is written there with ENOSPC
    words = ["-m", "analysis.chart.rates", ROWS] + (["--out", str(out)] if where == "file" else [])
    with open("/dev/full" if where == "output" else os.devnull, "w") as stdout:
        code, said = run(*words, stdout=stdout.fileno())
    assert code == 1
    assert said == "cannot write a file: No space left on device; make room, or name another place\n"


def test_another_broken_pipe_is_an_error_like_any_other() -> None:
    code, said = run("-c", FAILS, stdout=subprocess.PIPE)
    assert code == 1
    assert "BrokenPipeError: a socket" in said


def test_every_command_ends_like_that() -> None:
    endings = {
        path: path.read_text().partition('if __name__ == "__main__":\n')[2].split("\n")[0].strip()
        for package in ("fsdp_lab", "experiments", "analysis")
        for path in (ROOT / package).rglob("*.py")
    }
    commands = {path: first for path, first in endings.items() if first}
    # these write to files and sockets
    ranks = {"train.py", "tcp_stream.py", "step_times.py", "collective_times.py", "launch.py"}
    others = {path for path, first in commands.items() if path.name not in ranks and first != "with unix_endings():"}
    assert not others
    assert len(commands) > 20


GUARD = 'if __name__ == "__main__":\n'
PACKAGES = ("comm_compress", "fsdp_lab", "experiments", "analysis")


def modules() -> list[str]:
    """What `python -m` can run."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if GUARD in path.read_text()]
    return [name.removesuffix(".__main__") for name in names]


def say_all() -> None:
    """The help of every module as `python -m` runs it, then of every command, in one process: most of it is imports.

    Each comes after a line with its name and before one with its exit code.
    """
    for module in modules():
        say(module, functools.partial(runpy.run_module, module, None, "__main__", True))
    for command in COMMANDS:
        say(f"fsdp-lab {command.words}", functools.partial(main, [*command.words.split(), "--help"]))


def say(name: str, run: Callable[[], Any]) -> None:
    print(f"==== {name}", flush=True)
    sys.argv[1:] = ["--help"]
    code: Any = 0
    try:
        run()
    except SystemExit as ending:
        code = ending.code or 0
    print(f"exit code {code}", flush=True)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What each module and each command says when it is asked for help."""
    code, said, complaint = run_program(say_all, [[]], [{}], timeout=280)
    assert code == 0, complaint
    assert "Traceback" not in complaint
    return dict(part.split("\n", 1) for part in said.split("==== ")[1:])


@pytest.mark.parametrize("module", [name for name in modules() if name != "fsdp_lab.commands"])
def test_every_module_says_how_it_is_run(module: str, helps: dict[str, str]) -> None:
    assert re.search(rf"(?m)^usage: python -m {re.escape(module)}\s", helps[module]), helps[module]
    assert helps[module].endswith("exit code 0\n")


@pytest.mark.parametrize("words", [command.words for command in COMMANDS])
def test_every_command_names_itself_as_typed(words: str, helps: dict[str, str]) -> None:
    text = helps[f"fsdp-lab {words}"]
    assert re.search(rf"(?m)^usage: fsdp-lab {words}( |$)", text), text
    assert text.endswith("exit code 0\n")
    assert not re.search(r"python -m (fsdp_lab|experiments|analysis|comm_compress)", text), text


def test_every_module_that_can_be_run_has_a_word() -> None:
    known = [command.module for command in COMMANDS] + [*RUNS.values(), *STARTED_BY_OTHERS, "fsdp_lab.commands"]
    assert sorted(modules()) == sorted(known)
    assert len({command.words for command in COMMANDS}) == len(COMMANDS)


def test_modules_are_named_as_was_told_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_lab.settings.flags._TYPED", {})
    text = "run python -m a.b FILE, then python -m a.b.c. Or python -m a."
    assert as_typed(text) == text
    commands_are_typed({"a.b": "tool b"})
    assert as_typed(text) == "run tool b FILE, then python -m a.b.c. Or python -m a."
    assert program("a.b", text).format_usage().startswith("usage: tool b ")


def test_there_are_many_of_them() -> None:
    assert len(modules()) > 40


def test_only_the_shared_parser_is_used() -> None:
    alone = {
        "fsdp_lab/settings/flags.py",
        "experiments/network/tcp_stream.py",
        "comm_compress/conformance.py",
    }  # need no flags of ours
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if str(path.relative_to(ROOT)) not in alone:
                assert "argparse.ArgumentParser(" not in path.read_text(), path


def test_dashes_are_as_good_as_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    parser = program("a.b", "What it does.")
    parser.add_argument("--dry_run", action="store_true")
    parser.add_argument("--max-len", type=int)
    parser.add_argument("rest", nargs="*")
    for words in (["--dry_run", "--max-len", "3"], ["--dry-run", "--max_len=3"]):
        found = parser.parse_args([*words, "a-b", "--", "--dry-run"])
        assert (found.dry_run, found.max_len, found.rest) == (True, 3, ["a-b", "--dry-run"])
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--dri-run"])
    assert stop.value.code == 2
    assert "--dri-run: no such flag; did you mean --dry_run?" in capsys.readouterr().err


def test_dashes_below_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    parser = program("a.b", None)
    below = parser.add_subparsers(required=True).add_parser("show")
    below.add_argument("--target_dir")
    assert parser.parse_args(["show", "--target-dir", "x"]).target_dir == "x"
    with pytest.raises(SystemExit):
        parser.parse_args(["show", "--help"])
    assert capsys.readouterr().out.startswith("usage: python -m a.b show ")
