"""Change the library on purpose and see whether the tests notice: python -m tests.mutation [MODULE ...]

Takes a sample of the mutants (`tests.mutation.mutants`) of each core module, the same for the same seed, and runs
against each the test files that ought to catch it (`tests.mutation.targets`): those without processes first, then those
with real ranks. It works on a copy of the checkout. Mutants that no test noticed are written to survivors.md, each with
the reason that stands there already; exit code 1 when one has none. To be run by hand: it takes seconds a mutant.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import hypothesis  # noqa: F401
import numba  # noqa: F401
import pytest
import torch.distributed.fsdp  # noqa: F401  (imported once, for all mutants' processes)

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.md")
UNEXPLAINED = "UNEXPLAINED"


def main() -> int:
    """Run the sample, write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=sorted(TARGETS), help="of comm_compress; default: all")
    parser.add_argument("--each", type=int, default=10, help="mutants of a module (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one stage; longer counts as noticed")
    options = parser.parse_args()
    if unknown := set(options.modules) - TARGETS.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(sorted(TARGETS))}")
    reasons, tried, rows = _reasons(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        for name in ("comm_compress", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, checkout / name)
        for module in options.modules:
            path = checkout / "comm_compress" / f"{module}.py"
            original = path.read_text()
            assert not _caught(checkout, TARGETS[module], 600), f"the tests of {module} fail without a mutant"
            print(f"{module}: its tests pass", flush=True)
            for mutant in _sample(mutants(original), options.each, f"{options.seed} {module}"):
                path.write_text(mutant.source)
                caught = _caught(checkout, TARGETS[module], options.timeout)
                print(f"{'caught  ' if caught else 'SURVIVED'} {module}:{mutant.line} {mutant.change}", flush=True)
                tried += 1
                if not caught:
                    key = (module, mutant.where, mutant.change)
                    rows.append((*key, reasons.get(key, UNEXPLAINED)))
            path.write_text(original)
    _write(rows, tried, options)
    unexplained = sum(row[-1] == UNEXPLAINED for row in rows)
    print(f"{tried} mutants, {len(rows)} survived, {unexplained} without a reason: {SURVIVORS}")
    return 1 if unexplained else 0


def _sample(found: list[Mutant], number: int, seed: str) -> list[Mutant]:
    chosen = random.Random(seed).sample(range(len(found)), min(number, len(found)))
    return [found[i] for i in sorted(chosen)]


def _caught(checkout: Path, stages: Sequence[Sequence[str]], timeout: float) -> bool:
    return any(_fails(checkout, stage, timeout) for stage in stages)


def _fails(checkout: Path, words: Sequence[str], timeout: float) -> bool:
    """Does pytest fail, or hang? In a fork of this process: it need not import torch again."""
    child = os.fork()
    if child == 0:
        os.setsid()  # its ranks with it, should it hang
        os.chdir(checkout)
        sys.path[:] = [str(checkout), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "comm_compress")]:
            del sys.modules[name]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os._exit(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "--rootdir", str(checkout), *words]))
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
                raise ValueError(f"pytest cannot run {words}")
            return code != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _reasons() -> dict[tuple[str, str, str], str]:
    """What survivors.md says already, by module, function and change."""
    found = {}
    for line in SURVIVORS.read_text().splitlines() if SURVIVORS.exists() else []:
        cells = [cell.strip() for cell in line.strip("|").replace(r"\|", "\0").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] in TARGETS:
            module, where, change, reason = (cell.replace("\0", "|") for cell in cells)
            found[module, where, change.strip("`")] = reason
    return found


def _write(rows: list[tuple[str, str, str, str]], tried: int, options: argparse.Namespace) -> None:
    only = "" if set(options.modules) == TARGETS.keys() else " " + " ".join(options.modules)
    lines = [
        "# Mutants that no test notices, and why each may live",
        "",
        f"Made by `python -m tests.mutation{only} --each {options.each} --seed {options.seed}` on {date.today()}: "
        f"{tried} mutants, {tried - len(rows)} noticed. Reasons are written by hand, here; the command keeps them.",
        "",
        "| module | function | change | reason |",
        "|---|---|---|---|",
    ]
    for module, where, change, reason in rows:
        escaped = change.replace("|", r"\|")
        lines.append(f"| {module} | {where} | `{escaped}` | {reason} |")
    SURVIVORS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
