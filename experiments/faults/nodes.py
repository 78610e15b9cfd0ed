"""Runs over several machines: the same result as on one, and every loss of a rank named on all the others.

    fsdp-lab faults nodes [--out nodes.md] [--cases NAME ...]

With --cases the table keeps what the file beside --out has of others.
Machines are made of this one (`experiments.faults.machines`; needs root): each has an address, a name, process ids and
a folder of its own. Ranks are started by torchrun's own rendezvous (c10d), a launcher on each machine, or by hand, each
with a settings file of its own, as on edge devices. "equal" means: every loss, the validation's PPL, the bytes and the
weights are those of a run on one machine, bit for bit. Exits with 1 when something is not as promised.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from experiments.faults.machines import Machines, Program
from experiments.runs.training import torchrun
from fsdp_lab import results
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.ranks.faults import VARIABLE
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.reading.strict import dump_yaml
from fsdp_lab.settings.user_errors import unix_endings, user_errors

STEPS, PORT = 12, 29500
SETTINGS = {
    "method": "int8",
    "run_name": "drill",
    "model": "gpt2-nano",
    "max_length": 16,
    "batch_size": 2,
    "max_steps": STEPS,
    "eval_steps": 6,
    "val_fraction": 0.001,
    "log_interval": 1,
    "grad_error_every": 0,
    "threads": 1,
    "timeout_s": 120,
    "tensorboard": False,
}


@dataclass(frozen=True)
class Case:
    """One run over ``machines`` with ``per_machine`` ranks each, started ``by`` torchrun or hand.

    ``fault`` is injected (docs/trainer/faults.md); ``cable`` is the machine that leaves the network after step 7;
    ``further`` are settings of all, ``differing`` rank 1's own, ``ranks`` the numbers that are said by hand. ``codes``:
    the exit codes that are promised (None: any, of one that is cut off), ``named``: a pattern of what every machine
    must say whose rank is not killed, ``row_on`` the machine that then has the row."""

    by: Literal["torchrun", "hand"]
    machines: int
    per_machine: int = 1
    fault: str | None = None
    cable: int | None = None
    further: dict[str, Any] = field(default_factory=dict)
    differing: dict[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    codes: tuple[int | None, ...] = ()
    named: str = ""
    row_on: int = 0

    @property
    def has_begun(self) -> bool:
        """Does the run begin, before it is broken?"""
        return self.fault is not None or self.cable is not None


_KILLED = 137  # what a shell makes of SIGKILL
CASES: dict[str, Case] = {
    "torchrun, 2 machines": Case("torchrun", 2),
    "torchrun, 2 machines with 2 ranks each": Case("torchrun", 2, per_machine=2),
    "by hand, 2 machines": Case("hand", 2),
    "by hand, 4 machines": Case("hand", 4),
    "torchrun, 2 machines: rank 1 killed": Case(
        "torchrun", 2, fault="kill:rank=1,step=7", codes=(1, 1), named="rank 1 (died|was killed)"
    ),
    "torchrun, 2 machines: rank 0 killed": Case(
        "torchrun", 2, fault="kill:rank=0,step=7", codes=(1, 1), named="rank 0 (died|was killed)", row_on=1
    ),
    "by hand, 4 machines: rank 2 killed": Case(
        "hand", 4, fault="kill:rank=2,step=7", codes=(1, 1, _KILLED, 1), named="rank 2 died"
    ),
    "by hand, 4 machines: rank 0 killed": Case(
        "hand", 4, fault="kill:rank=0,step=7", codes=(_KILLED, 1, 1, 1), named="rank 0 died", row_on=1
    ),
    "by hand, 4 machines: the cable of machine 3 is pulled": Case(
        "hand", 4, cable=3, codes=(1, 1, 1, None), named="rank 3 died"
    ),
    "by hand, 2 machines: settings that differ": Case(
        "hand", 2, differing={"batch_size": 4}, codes=(2, 2), named="batch_size: rank 0 has 2, rank 1 has 4"
    ),
    "by hand, 3 machines, 2 of them rank 1": Case(
        "hand",
        3,
        ranks=(0, 1, 1),
        further={"timeout_s": 15},
        codes=(2, 2, 2),
        named="rank 2 did not come|there is a rank 1 already",
    ),
}


@dataclass
class Outcome:
    """What was seen of one case.

    ``named_s``: seconds from the fault until the last machine has said what it must. ``seconds``: until the last
    program has ended that was not killed. ``ppl`` and ``equal``: of a run that finished. ``status``, ``error``: of the
    row, which is on the machine ``row_on``."""

    case: str
    as_promised: bool
    codes: list[int | None]
    seconds: float | None
    ppl: float | None
    equal: bool | None
    status: str | None
    error: str | None
    row_on: str | None
    said: dict[str, str]
    named_s: float | None = None


class Lab:
    """The folder in which the runs take place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[int, tuple[Any, ...]] = {}

    def reference(self, ranks: int) -> tuple[Any, ...]:
        """What a run of so many ranks on one machine comes to."""
        if ranks not in self._references:
            folder = self._folder / f"one machine, {ranks} ranks"
            done = torchrun("fsdp_lab.train", ["--config", str(self._settings(folder, {}))], ranks, capture_output=True)
            result = _result(folder)
            if done.returncode or result is None:
                raise RuntimeError(f"the run on one machine ended with {done.returncode}:\n{done.stderr}")
            self._references[ranks] = result
        return self._references[ranks]

    def drill(self, name: str, case: Case) -> Outcome:
        """Run one case between emulated machines; returns what was seen beside what was promised."""
        reference = None if case.codes else self.reference(case.machines * case.per_machine)
        base = self._folder / name.replace(":", "")
        folders = [base / f"node{number}" for number in range(case.machines)]
        at: list[float] = []
        named: dict[int, float] = {}
        with Machines(case.machines) as machines:

            def on_line(machine: int, line: str) -> None:
                if line.startswith("injected fault"):
                    at.append(time.monotonic())
                elif case.cable is not None and not at and re.match(r"step +7/", line):
                    machines.pull_cable(case.cable)
                    at.append(time.monotonic())
                elif case.named and re.search(case.named, line):
                    named.setdefault(machine, time.monotonic())

            commands = [self._command(case, machines, number, folder) for number, folder in enumerate(folders)]
            environments = [_environment(case)] * case.machines
            programs = machines.run(commands, environments, on_line)
        outcome = _outcome(name, case, programs, folders, reference, at)
        if at and named:
            outcome.named_s = max(named.values()) - at[0]
        if not outcome.as_promised:
            for folder, done in zip(folders, programs, strict=True):
                print(f"---- {folder.name}", *done.output[-40:], sep="\n", file=sys.stderr)
        return outcome

    def _command(self, case: Case, machines: Machines, number: int, folder: Path) -> list[str]:
        own = case.differing if number == 1 else {}
        settings = self._settings(folder, {**case.further, **own})
        if case.by == "hand":
            rank = case.ranks[number] if case.ranks else number
            where = ["--rank", str(rank), "--world", str(case.machines), "--master", f"{machines.address(0)}:{PORT}"]
            return [sys.executable, "-m", "fsdp_lab.commands", "train", *where, "--config", str(settings)]
        command = [sys.executable, "-m", "fsdp_lab.launch", f"--nnodes={case.machines}"]
        command += [f"--nproc-per-node={case.per_machine}", "--rdzv-backend=c10d", "--rdzv-id=drill"]
        command += [f"--rdzv-endpoint={machines.address(0)}:{PORT}", f"--local-addr={machines.address(number)}"]
        return [*command, "-m", "--", "fsdp_lab.train", "--config", str(settings)]

    def _settings(self, folder: Path, further: dict[str, Any]) -> Path:
        """The settings file of the runs that write to ``folder``."""
        folder.mkdir(parents=True)
        places = {"output_dir": str(folder), "results_path": str(folder / "rows.jsonl")}
        path = folder / "settings.yaml"
        path.write_text(dump_yaml({**SETTINGS, **places, "cache_dir": str(self._folder / "tokens"), **further}))
        return path


def _environment(case: Case) -> dict[str, str]:
    """What torchrun's machines are told: gloo's interface, which ranks started by hand find by themselves."""
    told = {"GLOO_SOCKET_IFNAME": "eth0"} if case.by == "torchrun" else {}
    return {**rank_environment(case.machines), **told, **({VARIABLE: case.fault} if case.fault else {})}


def _result(folder: Path) -> tuple[Any, ...] | None:
    """All losses of a finished run, PPL, bytes, every bit of its weights; None when it has not finished."""
    rows = _rows(folder)
    if not rows or rows[-1]["status"] != "ok":
        return None
    row, run = rows[-1], folder / "runs" / str(SETTINGS["run_name"])
    lines = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    losses = tuple((line["step"], line.get("train_loss"), line.get("val_loss")) for line in lines)
    weights = hashlib.sha256((run / "final_model" / "model.safetensors").read_bytes()).hexdigest()
    return row["val_ppl"], row["train_loss"], row["bytes_compressed_total"], losses, weights


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    return results.load(path) if path.exists() else []


def _outcome(
    name: str,
    case: Case,
    programs: Sequence[Program],
    folders: Sequence[Path],
    reference: tuple[Any, ...] | None,
    at: Sequence[float],
) -> Outcome:
    codes = [done.code for done in programs]
    kept = [(folder.name, rows[-1]) for folder in folders if (rows := _rows(folder))]
    row_on, row = kept[0] if kept else (None, {"status": None, "error": None, "val_ppl": None})
    said = {folder.name: _complaint(done.output) for folder, done in zip(folders, programs, strict=True)}
    if reference is not None:
        equal = _result(folders[0]) == reference
        promised = equal and set(codes) == {0} and len(kept) == 1
        return Outcome(name, promised, codes, None, row["val_ppl"], equal, row["status"], None, row_on, said)
    living = [number for number, code in enumerate(case.codes) if code not in (_KILLED, None)]
    ends = [end for number in living if (end := programs[number].ended_at) is not None]
    seconds = max(ends) - at[0] if at and len(ends) == len(living) else None
    promised = all(code in (None, seen) for code, seen in zip(case.codes, codes, strict=True))
    promised &= all(re.search(case.named, said[folders[number].name]) is not None for number in living)
    promised &= (row_on == folders[case.row_on].name and row["status"] == "failed") if case.has_begun else not kept
    return Outcome(name, promised, codes, seconds, None, None, row["status"], row["error"], row_on, said)


def _complaint(output: Sequence[str]) -> str:
    """What the trainer or its launcher said last, with the lines that belong to it."""
    said: list[str] = []
    for line in output:
        if line.startswith(("fsdp_lab.train: ", "train: ")):
            said = [line.partition(": ")[2]]
        elif re.match(r"rank \d+ was killed|launch: ", line):
            said = [*said, line]
        elif said and line.startswith("  "):
            said.append(line.strip())
    return " / ".join(said)


def table(outcomes: Sequence[Outcome]) -> str:
    """Both tables, and what was said on each machine, in Markdown."""
    finished = [outcome for outcome in outcomes if outcome.equal is not None]
    lost = [outcome for outcome in outcomes if outcome.equal is None]
    lines = [
        f"# Several machines: gloo, {SETTINGS['model']}, {SETTINGS['method']}, {STEPS} steps",
        "",
        "Made by `fsdp-lab faults nodes`, with machines that are network, process and name spaces of one.",
        "",
        "| started | exit codes | PPL | losses, PPL, bytes, weights |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {o.case} | {_codes(o)} | {o.ppl} | {'those of one machine' if o.equal else 'NOT those of one machine'} |"
        for o in finished
    ]
    lines += ["", "| what happens | exit codes | named everywhere after | ended after | row |", "|---|---|---|---|---|"]
    for o in lost:
        times = ["" if seconds is None else f"{seconds:.1f} s" for seconds in (o.named_s, o.seconds)]
        row = f"{o.status}, on {o.row_on}" if o.status else "none"
        lines.append(f"| {' | '.join([o.case, _codes(o), *times, row])} |")
    lines += ["", "What was said:", ""]
    for o in lost:
        lines += [f"- **{o.case}**", *(f"  - {node}: {text or 'nothing'}" for node, text in o.said.items())]
    return "\n".join(lines) + "\n"


def known_of(out: Path) -> dict[str, Outcome]:
    """What earlier starts have seen, by case, without cases that do not exist any more."""
    path = out.with_suffix(".json")
    outcomes = [Outcome(**entry) for entry in json.loads(path.read_text())] if path.exists() else []
    return {outcome.case: outcome for outcome in outcomes if outcome.case in CASES}


def _codes(outcome: Outcome) -> str:
    codes = " ".join("none" if code is None else str(code) for code in outcome.codes)
    return codes if outcome.as_promised else f"{codes} (not as promised)"


def main(argv: list[str]) -> int:
    """Run the drills; 1 when something is not as promised."""
    parser = program("experiments.faults.nodes", __doc__)
    parser.add_argument("--out", type=new_file(), default=Path("nodes.md"), help="the tables; .json beside it has all")
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME", help=f"of: {'; '.join(CASES)}")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"--cases: no {unknown[0]!r}; there are {'; '.join(CASES)}")
    with user_errors("nodes"):
        with Machines(1):
            pass
        with tempfile.TemporaryDirectory(prefix="fsdp_lab_nodes_") as folder:
            lab, seen = Lab(Path(folder)), known_of(arguments.out)
            for name in arguments.cases:
                seen[name] = lab.drill(name, CASES[name])
                print(f"{name}: {_codes(seen[name])}", file=sys.stderr, flush=True)
    outcomes = [seen[name] for name in CASES if name in seen]
    arguments.out.write_text(table(outcomes))
    arguments.out.with_suffix(".json").write_text(
        json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n"
    )
    print(table(outcomes))
    return 0 if all(outcome.as_promised for outcome in outcomes) else 1


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
