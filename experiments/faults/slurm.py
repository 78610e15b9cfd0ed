"""The scripts that a sweep writes for Slurm, tried under a Slurm whose only node is this machine.

    fsdp-lab faults slurm [--out slurm.md] [--cases NAME ...]

With --cases the table keeps what the file beside --out has of others.
Submits a sweep of two cells; has a running cell requeued, as for a job of higher priority; lets the time of one run
out, which saves at Slurm's notice and goes on; and cancels one. "equal" means: what the same recipe gives without
Slurm, bit for bit. The Slurm is started for this and ended after it (`one_machine_slurm`; needs root, slurm-wlm and
munge). Exits with 1 when something is not as promised.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.faults.one_machine_slurm import OneMachineSlurm, require_tools
from experiments.runs.processes import leaving_tidily
from fsdp_lab import results
from fsdp_lab.ranks.faults import VARIABLE
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.reading.strict import dump_yaml
from fsdp_lab.settings.user_errors import unix_endings, user_errors

RANKS, STEPS = 2, 40
_CLUSTER = {"GPUS": "no", "RANKS_PER_NODE": str(RANKS), "CPUS_PER_RANK": "1", "AT_ONCE": "2"}
_PATIENCE_S = 900
_ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
_COMPARED = ("val_ppl", "train_loss", "bytes_compressed_total", "tokens_seen")


@dataclass
class Outcome:
    """What was seen of one case: the end of each job, its rows' status, after which steps it went on."""

    case: str
    as_promised: bool
    states: list[str]
    rows: list[str]
    went_on_after: list[int]
    equal: bool | None
    seconds: float


class Lab:
    """A folder with recipes, and a Slurm to submit them to."""

    def __init__(self, folder: Path, slurm: OneMachineSlurm) -> None:
        self._folder, self._slurm = folder, slurm
        self._direct: dict[str, list[dict[str, Any]]] = {}

    def sweep(self) -> Outcome:
        """Two cells, submitted and left alone."""
        start = time.monotonic()
        arms = ["none", "int8"]
        job = self._submit("sweep", arms)
        states = [self._ended(f"{job}_{number}") for number in (1, 2)]
        return self._outcome("two cells", "sweep", arms, states, start, promised=["COMPLETED"] * 2)

    def requeued(self) -> Outcome:
        """A running cell is requeued by the administrator, which is what preemption does."""
        start = time.monotonic()
        job = self._submit("requeued", ["int8"], fault="slow:s=0.5")
        self._has_trained("requeued", steps=8)
        self._slurm.do("scontrol", "requeue", f"{job}_1")
        states = [self._ended(f"{job}_1")]
        return self._outcome("requeued while training", "requeued", ["int8"], states, start, ["COMPLETED"])

    def out_of_time(self) -> Outcome:
        """A cell needs longer than its time limit."""
        start = time.monotonic()
        limits = {"TIME": "4", "NOTICE": "60"}  # Slurm counts minutes, and may give notice a minute early
        slow = "; ".join(f"slow:s=15,step={step}" for step in range(4, 15))  # together longer than that
        job = self._submit("out of time", ["int8"], fault=slow, further=limits)
        states = [self._ended(f"{job}_1")]
        return self._outcome("its time is up", "out of time", ["int8"], states, start, ["COMPLETED"])

    def cancelled(self) -> Outcome:
        """A cell that is cancelled is not started again."""
        start = time.monotonic()
        job = self._submit("cancelled", ["int8"], fault="slow:s=0.5")
        self._has_trained("cancelled", steps=4)
        self._slurm.do("scancel", f"{job}_1")
        _wait(lambda: not self._slurm.ask("squeue", "--noheader"), "the cancelled job's end")
        states, rows = [self._slurm.state(f"{job}_1")], self._rows("cancelled")
        statuses = [str(row["status"]) for row in rows]
        promised = states == ["CANCELLED"] and statuses == ["preempted"]
        return Outcome("cancelled while training", promised, states, statuses, [], None, time.monotonic() - start)

    def _outcome(
        self, case: str, name: str, arms: Sequence[str], states: list[str], start: float, promised: list[str]
    ) -> Outcome:
        seconds, rows = time.monotonic() - start, self._rows(name)
        finished = [row for row in rows if row["status"] == "ok"]
        went_on = [step for row in finished for step in row["resumed_at_steps"] or []]
        is_stopped = len(rows) > len(finished)
        equal = _compared(finished) == _compared(self._without_slurm(arms))
        good = states == promised and equal and bool(went_on) == is_stopped == (len(arms) == 1)
        return Outcome(case, good, states, [str(row["status"]) for row in rows], went_on, equal, seconds)

    def _submit(self, name: str, arms: Sequence[str], fault: str = "", further: dict[str, str] | None = None) -> str:
        """Write the scripts for a recipe and submit them; the number of the job."""
        folder = self._folder / name
        words = [str(self._recipe(name, arms)), "--out", str(folder / "rows.jsonl"), "--slurm", str(folder / "job")]
        _run(["-m", "experiments.sweep", *words], dict(os.environ))
        environment = {**self._slurm.environment, **_CLUSTER, **(further or {}), **({VARIABLE: fault} if fault else {})}
        script = ["bash", str(folder / "job" / "submit.sh")]
        done = subprocess.run(script, env=environment, capture_output=True, text=True)
        if (match := re.search(r"Submitted batch job (\d+)", done.stdout)) is None:
            raise RuntimeError(f"submit.sh: {done.stdout}{done.stderr}")
        return match[1]

    def _recipe(self, name: str, arms: Sequence[str]) -> Path:
        common: dict[str, Any] = {
            "max_steps": STEPS,
            "max_length": 16,
            "batch_size": 2,
            "val_fraction": 0.001,
            "log_interval": 1,
        }
        common |= {"eval_steps": 0, "grad_error_every": 0, "threads": 1, "cache_dir": str(self._folder / "tokens")}
        recipe = {"name": name.replace(" ", "_"), "seeds": [1], "models": ["gpt2-nano"], "world_sizes": [RANKS]}
        path = self._folder / name / "recipe.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(dump_yaml({**recipe, "common": common, "arms": list(arms)}))
        return path

    def _without_slurm(self, arms: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of the same cells, run by the sweep itself."""
        name = f"without Slurm {' '.join(arms)}"
        if name not in self._direct:
            recipe, out = self._recipe(name, arms), self._folder / name / "rows.jsonl"
            _run(["-m", "experiments.sweep", str(recipe), "--out", str(out)], dict(os.environ))
            self._direct[name] = self._rows(name)
        return self._direct[name]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / name / "rows.jsonl"
        return results.load(path) if path.exists() else []

    def _has_trained(self, name: str, steps: int) -> None:
        curves = self._folder / name

        def has() -> bool:
            return any(
                len(path.read_text().splitlines()) >= steps for path in curves.rglob("*.jsonl") if _is_curve(path)
            )

        _wait(has, f"step {steps} of {name}")

    def _ended(self, job: str) -> str:
        """The state that the job ends in."""
        _wait(lambda: self._slurm.progress(job) in _ENDED, f"the end of job {job}")
        return self._slurm.state(job)


def _is_curve(path: Path) -> bool:
    return path.name != "rows.jsonl"


def _compared(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["config_hash"], *(row[key] for key in _COMPARED)) for row in rows)


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_PATIENCE_S} s in vain for {what}")
        time.sleep(0.5)


def _run(words: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")


CASES: dict[str, Callable[[Lab], Outcome]] = {
    "sweep": Lab.sweep,
    "requeued": Lab.requeued,
    "time-up": Lab.out_of_time,
    "cancelled": Lab.cancelled,
}


def table(outcomes: Sequence[Outcome], version: str) -> str:
    """What was seen of every script, as a Markdown page."""
    lines = [
        f"# The scripts of a sweep under {version}, one machine, {RANKS} ranks, {STEPS} steps",
        "",
        "Made by `fsdp-lab faults slurm`. A job's end is what Slurm says of it.",
        "",
        "| what happens | jobs end | rows | goes on after step | PPL, loss, bytes, tokens | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        equal = {True: "those without Slurm", False: "NOT those without Slurm", None: ""}[o.equal]
        after = ", ".join(map(str, o.went_on_after))
        note = "" if o.as_promised else " (not as promised)"
        cells = [o.case + note, ", ".join(o.states), ", ".join(o.rows), after, equal, f"{o.seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def known_of(out: Path) -> dict[str, Outcome]:
    """What earlier starts have seen, by case, without cases that do not exist any more."""
    path = out.with_suffix(".json")
    entries = json.loads(path.read_text()) if path.exists() else {}
    return {name: Outcome(**entry) for name, entry in entries.items() if name in CASES}


def main(argv: list[str]) -> int:
    """Run the drill; 1 when something is not as promised."""
    parser = program("experiments.faults.slurm", __doc__)
    parser.add_argument("--out", type=new_file(), default=Path("slurm.md"), help="the table; .json beside it has all")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="NAME")
    arguments = parser.parse_args(argv)
    with user_errors("slurm"):
        require_tools()
        with leaving_tidily(), tempfile.TemporaryDirectory(prefix="fsdp_lab_slurm_") as folder:
            (Path(folder) / "daemons").mkdir()
            cpus = max(RANKS, os.cpu_count() or 1)
            with OneMachineSlurm(Path(folder) / "daemons", cpus) as slurm:
                lab, seen = Lab(Path(folder), slurm), known_of(arguments.out)
                version = slurm.ask("sinfo", "--version")
                for name in arguments.cases:
                    seen[name] = CASES[name](lab)
                    print(f"{name}: {seen[name]}", file=sys.stderr, flush=True)
    outcomes = [seen[name] for name in CASES if name in seen]
    arguments.out.write_text(table(outcomes, version))
    by_name = {name: asdict(seen[name]) for name in CASES if name in seen}
    arguments.out.with_suffix(".json").write_text(json.dumps(by_name, indent=1) + "\n")
    print(table(outcomes, version))
    return 0 if all(outcome.as_promised for outcome in outcomes) else 1


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
