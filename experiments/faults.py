"""What becomes of a run when something breaks: every fault with every method, on two real ranks of this machine.

    python -m experiments.faults [--out results/reference/faults.md] [--methods none int8 ...] [--faults NAME ...]

Each run is told to break (docs/faults.md), watched until its last process has ended, and started again by the same
command. "equal" means that the second one finished with the losses and the weights of a run that nothing happened to,
bit for bit. Writes a table in Markdown, and all that was seen beside it as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.drills import Drill, Ended
from fsdp_lab import results
from fsdp_lab.user_errors import unix_pipes, user_errors

RANKS, STEPS = 2, 12
METHODS: dict[str, dict[str, Any]] = {"none": {}, "int8": {}, "topk": {"ratio": 0.05}, "powersgd": {}, "sketch": {}}


@dataclass(frozen=True)
class Case:
    """One fault: what the variable says, or what happens to the launcher as step 7 is logged.

    ``code`` and ``status``: what is promised. ``goes_on``: must the run, started again, equal one without the fault?
    """

    fault: str | None
    code: int
    status: str | None
    launcher_gets: signal.Signals | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    goes_on: bool = True


CASES: dict[str, Case] = {
    "rank 1 killed": Case("kill:rank=1,step=7", 1, "failed"),
    "rank 0 killed": Case("kill:rank=0,step=7", 1, "failed"),
    "killed while saving": Case("kill:rank=1,at=save,step=6", 1, "failed"),
    "killed before the rename": Case("kill:rank=0,at=rename,step=6", 1, "failed"),
    "rank 1 leaves with 0": Case("exit:rank=1,step=7,code=0", 1, "failed"),
    "rank 1 stopped (SIGSTOP)": Case("stop:rank=1,step=7", 1, "failed", flags={"hang_timeout_s": 10}),
    "rank 1 hangs in Python": Case("hang:rank=1,step=7", 1, "failed", flags={"hang_timeout_s": 10}),
    "SIGTERM to rank 1": Case("term:rank=1,step=7", 143, "preempted"),
    "SIGUSR2 in validation": Case("usr2:rank=1,at=validate,step=6", 143, "preempted"),
    "SIGUSR2 to the launcher": Case(None, 143, "preempted", signal.SIGUSR2),
    "launcher killed": Case(None, -signal.SIGKILL, "preempted", signal.SIGKILL),
    "NaN in rank 1": Case("nan:rank=1,step=7", 0, "ok", goes_on=False),
    "disk full while saving": Case("full_disk:rank=1,at=save,step=6", 0, "ok"),
    "disk full for the row": Case("full_disk:at=row", 1, None, goes_on=False),
    "rank 1 slow": Case("slow:rank=1,s=0.3", 0, "ok"),
}


@dataclass
class Outcome:
    """What was seen. ``equal``: None where it need not be; ``kept``: the steps that did not have to be repeated."""

    method: str
    case: str
    as_promised: bool
    code: int
    seconds: float | None
    message: str
    status: str | None
    error: str | None
    kept: int | None
    equal: bool | None
    left: list[str]


class Lab:
    """A folder in which one method's runs take place."""

    def __init__(self, folder: Path, method: str) -> None:
        self._folder, self._method = folder, method
        self.untouched = self._result("untouched", self._run("untouched").follow())

    def drill(self, name: str, case: Case) -> Outcome:
        """Break a run, look, and start it again."""
        run = "-".join(name.replace("(", "").replace(")", "").split())
        drill = self._run(run, case.fault, case.flags)
        ended = drill.follow(_hits_launcher(drill, case.launcher_gets))
        rows = self._rows(run)
        row = rows[-1] if rows else None
        status = row["status"] if row else None
        result, kept = self._result(run, ended), None
        if case.goes_on and status != "ok":
            again = self._run(run, flags=case.flags).follow()
            result, resumed = self._result(run, again), self._rows(run)[-1]
            kept = (resumed["resumed_at_steps"] or [0])[-1]
        equal = result == self.untouched and result is not None if case.goes_on else None
        promised = (ended.code, status, ended.left) == (case.code, case.status, []) and equal is not False
        error = row["error"] if row else None
        return Outcome(
            self._method,
            name,
            promised,
            ended.code,
            ended.seconds,
            ended.message,
            status,
            error,
            kept,
            equal,
            ended.left,
        )

    def _run(self, name: str, fault: str | None = None, flags: dict[str, Any] | None = None) -> Drill:
        settings = {
            "comm_compress": self._method,
            "comm_config_json": json.dumps(METHODS[self._method]),
            "run_name": name,
            "output_dir": self._folder,
            "results_path": self._folder / "rows.jsonl",
            "cache_dir": self._folder.parent / "tokens",
            "model": "gpt2-nano",
            "max_length": 16,
            "batch_size": 2,
            "max_steps": STEPS,
            "eval_steps": 6,
            "val_fraction": 0.001,
            "save_steps": 3,
            "log_interval": 1,
            "grad_error_every": 0,
            "threads": 1,
            "timeout_s": 120,
            "tensorboard": "false",
            **(flags or {}),
        }
        return Drill([word for key, value in settings.items() for word in (f"--{key}", str(value))], RANKS, fault)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / "rows.jsonl"
        return [row for row in results.load(path) if row["run_name"] == name] if path.exists() else []

    def _result(self, name: str, ended: Ended) -> tuple[Any, ...] | None:
        """All losses of a finished run, every bit of its weights; None when it has not finished."""
        rows = self._rows(name)
        if ended.code or not rows or rows[-1]["status"] != "ok":
            return None
        row, run = rows[-1], self._folder / "runs" / name
        lines = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
        losses = tuple((line["step"], line.get("train_loss"), line.get("val_loss")) for line in lines)
        weights = hashlib.sha256((run / "final_model" / "model.safetensors").read_bytes()).hexdigest()
        return row["train_loss"], row["val_loss"], row["bytes_compressed_total"], losses, weights


def _hits_launcher(drill: Drill, number: signal.Signals | None) -> Callable[[str], bool]:
    def on_line(line: str) -> bool:
        if number is None or line.split()[:2] != ["step", f"7/{STEPS}"]:
            return False
        os.kill(drill.pid, number)
        return True

    return on_line


def table(outcomes: Sequence[Outcome]) -> str:
    """Faults by methods, and under it what was said, in Markdown."""
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes))
    names = list(dict.fromkeys(outcome.case for outcome in outcomes))
    by = {(outcome.case, outcome.method): outcome for outcome in outcomes}
    lines = [
        f"# Faults, {RANKS} ranks on gloo, fp32, {STEPS} steps, a checkpoint every 3",
        "",
        "Made by `python -m experiments.faults`. A cell: seconds from the fault to the end of the last process; the "
        "step that the same command went on from; whether losses, bytes and weights then equal those of an untouched "
        "run bit for bit.",
        "",
        f"| fault | exit code | row | {' | '.join(methods)} |",
        f"|---|---|---|{'---|' * len(methods)}",
    ]
    for name in names:
        row = [by[name, method] for method in methods if (name, method) in by]
        codes, statuses = ({str(o.code) for o in row}, {o.status or "none" for o in row})
        cells = [_cell(by.get((name, method))) for method in methods]
        lines.append(f"| {name} | {', '.join(sorted(codes))} | {', '.join(sorted(statuses))} | {' | '.join(cells)} |")
    lines += ["", f"What was said, with {methods[-1]}:", ""]
    for name in names:
        if (outcome := by.get((name, methods[-1]))) is not None:
            lines.append(f"- **{name}**: {outcome.message or 'nothing'}")
            if outcome.error and outcome.error not in outcome.message:
                lines.append(f"  The row: {outcome.error}")
    return "\n".join(lines) + "\n"


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    parts = ["finished" if outcome.seconds is None else f"{outcome.seconds:.0f} s"]
    if outcome.kept is not None:
        parts.append(f"from {outcome.kept}")
    if outcome.equal is not None:
        parts.append("equal" if outcome.equal else "NOT EQUAL")
    if outcome.left:
        parts.append(f"{len(outcome.left)} PROCESSES LEFT")
    if not outcome.as_promised:
        parts.append("(not as promised)")
    return ", ".join(parts)


def main(argv: list[str]) -> int:
    """Run the drills; 1 when something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("faults.md"), help="the table; .json beside it has all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--faults", nargs="+", default=list(CASES), metavar="NAME", help=f"of: {'; '.join(CASES)}")
    arguments = parser.parse_args(argv)
    with user_errors("faults"):
        for given, known in ((arguments.methods, METHODS), (arguments.faults, CASES)):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"no such drill: {', '.join(unknown)}; there are {', '.join(known)}")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for method in arguments.methods:
            lab = Lab(Path(folder) / method, method)
            if lab.untouched is None:
                print(f"{method}: the run that nothing happened to did not finish", file=sys.stderr)
                return 1
            for name in arguments.faults:
                outcomes.append(lab.drill(name, CASES[name]))
                print(f"{method}, {name}: exit code {outcomes[-1].code}, {_cell(outcomes[-1])}", flush=True)
                arguments.out.with_suffix(".json").write_text(
                    json.dumps([asdict(o) for o in outcomes], indent=1) + "\n"
                )
                arguments.out.write_text(table(outcomes))
    return 0 if all(outcome.as_promised for outcome in outcomes) else 1


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
