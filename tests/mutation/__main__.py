"""Change the library on purpose and see whether the tests notice: python -m tests.mutation [MODULE ...]

Takes a sample of the mutants (`tests.mutation.mutants`) of each core module, the same for the same seed, and runs
against each the test files that ought to catch it (`tests.mutation.targets`): those without processes first, then those
with real ranks. It works on a copy of the checkout. Mutants that no test noticed are written to survivors.md, each with
the reason that stands there already; exit code 1 when one has none. To be run by hand: it takes seconds a mutant.

Our own, because mutmut's mutants would not be active in the ranks (they are chosen in the environment of the process
that runs pytest, and ours fork from a server), and cosmic-ray deletes no statements and changes type annotations.
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
from tests.mutation.survivors import listed
from tests.mutation.targets import TARGETS, Stages

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.md")


def main() -> int:
    """Run the sample, write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=sorted(TARGETS), help="of comm_compress; default: all")
    parser.add_argument("--each", type=int, default=10, help="mutants of a module (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one stage; longer counts as noticed")
    parser.add_argument("--first-stage", action="store_true", help="only the tests that run first: seconds a mutant")
    options = parser.parse_args()
    if unknown := set(options.modules) - TARGETS.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(sorted(TARGETS))}")
    how = f"--each {options.each} --seed {options.seed}{' --first-stage' * options.first_stage}"
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        for name in ("comm_compress", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, checkout / name)
        for module in options.modules:
            stages = TARGETS[module][:1] if options.first_stage else TARGETS[module]
            tried, survivors = _try(checkout, module, stages, options)
            unexplained = listed(SURVIVORS, module, f"{date.today()}, `{how}`", tried, survivors)
    print(f"{unexplained} survivors without a reason in {SURVIVORS}")
    return 1 if unexplained else 0


def _try(checkout: Path, module: str, stages: Stages, options: argparse.Namespace) -> tuple[int, list[Mutant]]:
    """How many mutants of a module were tried, and those that no test noticed."""
    path = checkout / "comm_compress" / f"{module}.py"
    original = path.read_text()
    if _caught(checkout, stages, 1200):
        raise ValueError(f"the tests of {module} fail without a mutant")
    sample, survivors = _sample(mutants(original), options.each, f"{options.seed} {module}"), []
    for mutant in sample:
        path.write_text(mutant.source)
        caught = _caught(checkout, stages, options.timeout)
        print(f"{'caught  ' if caught else 'SURVIVED'} {module}:{mutant.line} {mutant.change}", flush=True)
        if not caught:
            survivors.append(mutant)
    path.write_text(original)
    return len(sample), survivors


def _sample(found: list[Mutant], number: int, seed: str) -> list[Mutant]:
    chosen = random.Random(seed).sample(range(len(found)), min(number, len(found)))
    return [found[i] for i in sorted(chosen)]


def _caught(checkout: Path, stages: Stages, timeout: float) -> bool:
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


if __name__ == "__main__":
    sys.exit(main())
