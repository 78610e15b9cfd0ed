"""How commands begin (what --help says, how flags may be written), and how they end when nobody reads them."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_lab.settings.flags import program
from tests.distributed import run_program

ROOT = Path(__file__).resolve().parents[1]
ROWS = "results/reference/all_methods.jsonl"
FAILS = (
    "from fsdp_lab.settings.user_errors import unix_pipes\nwith unix_pipes():\n    raise BrokenPipeError('a socket')"
)


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
    others = {path for path, first in commands.items() if path.name not in ranks and first != "with unix_pipes():"}
    assert not others
    assert len(commands) > 20


GUARD = 'if __name__ == "__main__":\n'
PACKAGES = ("comm_compress", "fsdp_lab", "experiments", "analysis")


def modules() -> list[str]:
    """What `python -m` can run."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if GUARD in path.read_text()]
    return [name.removesuffix(".__main__") for name in names]


@pytest.mark.parametrize("module", modules())
def test_every_module_says_how_it_is_run(module: str) -> None:
    """As `python -m` runs it, in a process that has torch already: most of --help is imports."""
    run_as_main = functools.partial(runpy.run_module, module, None, "__main__", True)
    code, said, complaint = run_program(run_as_main, [["--help"]], [{}], timeout=250)
    assert code == 0, complaint
    assert "Traceback" not in complaint
    usage = next(line for line in said.splitlines() if line.startswith("usage: "))
    assert usage.startswith(f"usage: python -m {module} ")


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
