"""Real gradients: what the reduce-scatter hook of a training run is given, on every rank.

    python -m experiments.capture_gradients --out FOLDER [--steps 40:48] [--ranks 2] [-- training flags]

Trains as ever (uncompressed exchange, so that no method shapes the gradients it is judged by) and saves, for each
captured step, unit and rank, the rows ``[W, n]`` that FSDP2 hands over, with the places of its parameters.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.segments import Segment
from experiments.training import train
from fsdp_lab.user_errors import unix_pipes


class Unit(NamedTuple):
    """One FSDP unit's gradients over the captured steps: ``steps[t][r]`` is rank r's ``[W, n]``."""

    name: str
    segments: tuple[Segment, ...]
    steps: list[list[Tensor]]


def capture(out: Path, steps: range, ranks: int, flags: list[str]) -> None:
    """Run the training and fill ``out``. Ends the program when the training fails."""
    program = ["experiments.capture_gradients", "--as-rank", str(out), str(steps.start), str(steps.stop)]
    own = ["--comm_compress", "captured_identity", "--param_compress", "none", "--max_steps", str(steps.stop)]
    if code := train([*own, *flags], ranks, program=program):
        sys.exit(code)


def load(folder: Path) -> list[Unit]:
    """What `capture` saved. Raises ValueError when there is nothing."""
    files = sorted(folder.glob("*.pt"))
    if not files:
        raise ValueError(f"{folder}: no captured gradients; run python -m experiments.capture_gradients --out {folder}")
    found: dict[str, dict[tuple[int, int], Tensor]] = {}
    segments: dict[str, tuple[Segment, ...]] = {}
    for file in files:
        saved = torch.load(file, weights_only=True)
        found.setdefault(saved["unit"], {})[saved["tick"], saved["rank"]] = saved["rows"]
        segments[saved["unit"]] = tuple(Segment(n, tuple(shape), a, b) for n, shape, a, b in saved["segments"])
    units = []
    for name, rows in found.items():
        ticks, ranks = sorted({t for t, _ in rows}), sorted({r for _, r in rows})
        units.append(Unit(name, segments[name], [[rows[t, r] for r in ranks] for t in ticks]))
    return units


def _rank_main(out: Path, first: int, last: int) -> None:
    """One rank: the trainer itself, with a method that saves what passes through it."""
    from comm_compress.methods.identity import Identity, IdentityConfig
    from comm_compress.registry import register
    from comm_compress.rounds import ReduceScatterRounds
    from comm_compress.state import State
    from fsdp_lab import train as trainer
    from fsdp_lab.entry import run_as_program

    @register("captured_identity", IdentityConfig)
    class CapturedIdentity(Identity):
        """Identity that keeps copies of its inputs."""

        def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
            """Save, then do as identity does."""
            if first <= state.tick - 1 < last:
                saved = {"unit": state.unit, "tick": state.tick, "rank": state.rank, "rows": rows.clone()}
                saved["segments"] = [list(s) for s in state.segments]
                torch.save(saved, out / f"{state.unit}-{state.tick:06d}-{state.rank}.pt")
            return (yield from super().reduce_scatter(rows, state))

    run_as_program(trainer.train)


def steps_of(text: str) -> range:
    """ "40:48" as a range."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be FIRST:LAST with FIRST < LAST")
    return range(int(first), int(last))


def main() -> None:
    """Capture."""
    if sys.argv[1:2] == ["--as-rank"]:
        out, first, last = sys.argv[2:5]
        sys.argv[1:5] = []
        _rank_main(Path(out), int(first), int(last))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=steps_of, default=range(40, 48), help="captured optimizer steps, FIRST:LAST")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="flags of fsdp_lab.train, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    capture(options.out.resolve(), options.steps, options.ranks, options.flags)


if __name__ == "__main__":
    with unix_pipes():
        main()
