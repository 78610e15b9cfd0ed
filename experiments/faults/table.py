"""What becomes of a run when something breaks: every fault with every method, on two real ranks of this machine.

    python -m experiments.faults [--out FILE.md] [--methods none int8 ...] [--faults NAME ...]

What the file beside ``--out`` has already is not done again (``--anew``: it is), so that a table can grow.
Each run is told to break (docs/trainer/faults.md), watched until its last process has ended, and started again by the
same command. "equal" means that the second one finished with the losses and the weights of a run that nothing happened
to, bit for bit. Writes a table in Markdown, and all that was seen beside it as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from experiments.faults.drills import Drill, Ended
from fsdp_lab import results
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

RANKS, STEPS = 2, 12
METHODS: dict[str, dict[str, Any]] = {"none": {}, "int8": {}, "topk": {"ratio": 0.05}, "powersgd": {}, "sketch": {}}


@dataclass(frozen=True)
class Case:
    """One fault: what the environment variable says, or what is done as step 7 is logged.

    ``code`` and ``status`` are what is promised. ``goes_on``: the run, started again, must equal one without the fault.
    ``event`` is done to the run from outside; ``own_tokens``: the data have not been tokenised before."""

    fault: str | None
    code: int
    status: str | None
    launcher_gets: signal.Signals | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    goes_on: bool = True
    event: Literal["terminal closed", "started twice", "no room"] | None = None
    own_tokens: bool = False


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
    "SIGHUP to the launcher": Case(None, 143, "preempted", signal.SIGHUP),
    "SIGQUIT to the launcher": Case(None, 143, "preempted", signal.SIGQUIT),
    "terminal closed": Case(None, 143, "preempted", event="terminal closed"),
    "rank 0 killed while tokenising": Case("kill:rank=0,at=tokenize", 1, "failed", own_tokens=True),
    "rank 1 killed while rank 0 tokenises": Case("kill:rank=1,at=tokenize", 1, "failed", own_tokens=True),
    "SIGTERM while tokenising": Case("term:at=tokenize", 143, "preempted", own_tokens=True),
    "rank 0 killed as the row is written": Case("kill:rank=0,at=row", 1, "failed"),
    "started twice at once": Case(None, 0, "ok", flags={"timeout_s": 600}, event="started twice"),
    "NaN in rank 1": Case("nan:rank=1,step=7", 0, "ok", goes_on=False),
    "disk full while saving": Case("full_disk:rank=1,at=save,step=6", 0, "ok"),
    "disk full while saving weights": Case("full_disk:rank=1,at=weights,step=6", 0, "ok"),
    "disk really full while saving (needs root)": Case(None, 0, "ok", event="no room"),
    "disk full for the model": Case("full_disk:at=model", 1, "ok", goes_on=False),
    "disk full for the row": Case("full_disk:at=row", 1, None, goes_on=False),
    "rank 1 slow": Case("slow:rank=1,s=0.3", 0, "ok"),
}


@dataclass
class Outcome:
    """What was seen. ``equal`` is None where it need not be; ``kept`` are the steps that need not be repeated."""

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
    """The folder in which one method's runs take place."""

    def __init__(self, folder: Path, method: str) -> None:
        self._folder, self._method = folder, method
        self.untouched = self._result("untouched", self._run("untouched").follow())

    def drill(self, name: str, case: Case) -> Outcome:
        """Break a run, see what becomes of it, and start it again."""
        run = "-".join(name.replace("(", "").replace(")", "").split())
        if case.own_tokens:
            case = replace(case, flags={**case.flags, "cache_dir": self._folder / f"tokens of {run}"})
        with ExitStack() as undo:
            act, as_expected = self._act(run, case, undo)
            drill = self._run(run, case.fault, case.flags, in_terminal=case.event == "terminal closed")
            ended = drill.follow(_at_step_7(lambda: act(drill)))
            return self._outcome(name, run, case, ended, as_expected())

    def _act(self, run: str, case: Case, undo: ExitStack) -> tuple[Callable[[Drill], bool], Callable[[], bool]]:
        """What is done at step 7 (it returns True when it was done), and whether all of that came out as promised.

        The second function is asked at the end."""
        seen: list[bool] = []
        if case.launcher_gets is not None:
            number = case.launcher_gets

            def send(drill: Drill) -> bool:
                os.kill(drill.pid, number)
                return True

            return send, lambda: True
        if case.event == "terminal closed":

            def close(drill: Drill) -> bool:
                drill.close_terminal()
                return True

            return close, lambda: True
        if case.event == "started twice":

            def again(drill: Drill) -> bool:
                first = drill.rank_processes()[0]
                os.kill(first, signal.SIGSTOP)  # so that it has not finished before the second has started
                try:
                    second = self._run(run, flags=case.flags).follow()
                finally:
                    os.kill(first, signal.SIGCONT)
                seen.append(second.code == 2 and f"process {first} " in " ".join(second.output))
                return False

            return again, lambda: seen == [True]
        if case.event == "no room":
            small = SmallDisk(self._folder / "runs" / run, undo)

            def fill(drill: Drill) -> bool:
                small.take_room()
                return False

            return fill, lambda: self._rows(run)[-1]["failed_saves"] >= 2 and small.is_full()
        return lambda drill: False, lambda: True

    def _outcome(self, name: str, run: str, case: Case, ended: Ended, as_expected: bool) -> Outcome:
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
        promised = promised and as_expected
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

    def _run(
        self, name: str, fault: str | None = None, flags: dict[str, Any] | None = None, in_terminal: bool = False
    ) -> Drill:
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
        words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        return Drill(words, RANKS, fault, in_terminal=in_terminal)

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


class SmallDisk:
    """A tmpfs at ``folder`` that has no room left after `take_room`, except for what is removed. Needs root."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(folder)], check=True)
        undo.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)

    def take_room(self) -> None:
        """Leave 30 MB free: enough for a model, not for a checkpoint."""
        now = os.statvfs(self._folder)
        size = (now.f_blocks - now.f_bfree) * now.f_frsize + (30 << 20)
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self._folder)], check=True)

    def is_full(self) -> bool:
        """Has the disk no room for another checkpoint?"""
        now = os.statvfs(self._folder)
        return now.f_bavail * now.f_frsize < 40 << 20


def _at_step_7(act: Callable[[], bool]) -> Callable[[str], bool]:
    """Call the function once, when step 7 is logged or the progress bar has come to it."""
    done: list[bool] = []

    def on_line(line: str) -> bool:
        if done or not re.search(rf"(^step +|\| )7/{STEPS} ", line):
            return False
        done.append(True)
        return act()

    return on_line


def table(outcomes: Sequence[Outcome]) -> str:
    """A table of faults by methods and, below it, the runs' messages, in Markdown."""
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


def known_of(path: Path) -> list[Outcome]:
    """What an earlier start has seen, without drills that do not exist any more."""
    outcomes = [Outcome(**entry) for entry in json.loads(path.read_text())] if path.exists() else []
    return [outcome for outcome in outcomes if outcome.case in CASES and outcome.method in METHODS]


def _can_be(name: str) -> bool:
    if CASES[name].event != "no room" or os.geteuid() == 0:
        return True
    print(f"{name}: left out", file=sys.stderr)
    return False


def main(argv: list[str]) -> int:
    """Run the drills; 1 when something is not as promised."""
    parser = program("experiments.faults", __doc__)
    parser.add_argument("--out", type=new_file(), default=Path("faults.md"), help="the table; .json beside it has all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--anew", action="store_true", help="do again what --out has already")
    parser.add_argument("--faults", nargs="+", default=list(CASES), metavar="NAME", help=f"of: {'; '.join(CASES)}")
    arguments = parser.parse_args(argv)
    with user_errors("faults"):
        for flag, given, known in (("methods", arguments.methods, METHODS), ("faults", arguments.faults, CASES)):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"--{flag}: got {', '.join(map(repr, unknown))}, wants some of {', '.join(known)}")
    outcomes = [] if arguments.anew else known_of(arguments.out.with_suffix(".json"))
    there = {(outcome.method, outcome.case) for outcome in outcomes}
    with tempfile.TemporaryDirectory() as folder:
        for method in arguments.methods:
            names = [name for name in arguments.faults if (method, name) not in there and _can_be(name)]
            if not names:
                continue
            lab = Lab(Path(folder) / method, method)
            if lab.untouched is None:
                print(f"{method}: the run that nothing happened to did not finish", file=sys.stderr)
                return 1
            for name in names:
                outcome = lab.drill(name, CASES[name])
                outcomes.append(outcome)
                print(f"{method}, {name}: exit code {outcome.code}, {_cell(outcome)}", flush=True)
                outcomes.sort(key=lambda o: (list(METHODS).index(o.method), list(CASES).index(o.case)))
                arguments.out.with_suffix(".json").write_text(
                    json.dumps([asdict(o) for o in outcomes], indent=1) + "\n"
                )
                arguments.out.write_text(table(outcomes))
    return 0 if all(outcome.as_promised for outcome in outcomes) else 1
