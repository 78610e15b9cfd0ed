"""Real gradients and parameters: what the hooks of a training run are given, on every rank.

    python -m experiments.fidelity.capture --out FOLDER [--steps 40:48] [--ranks 2] [-- training flags]

Trains as ever (uncompressed exchange both ways, so that no method shapes what it is judged by) and saves, for each
captured step, unit and rank, the rows ``[W, n]`` that FSDP2 reduces and the float32 row ``[n]`` that it gathers, with
the places of the unit's parameters. The training ends with the last captured step, and so does its learning rate: give
``--max_steps`` to capture the middle of a longer one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.runs.training import train
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

if TYPE_CHECKING:
    from torch import Tensor

GRADIENTS, PARAMETERS = "gradients", "parameters"


def capture(out: Path, steps: range, ranks: int, flags: list[str]) -> None:
    """Run the training and fill ``out``. Ends the program when the training fails. ValueError without the folder."""
    for kind in (GRADIENTS, PARAMETERS):
        make_folder(out / kind, "out")
    program = ["experiments.fidelity.capture", "--as-rank", str(out), str(steps.start), str(steps.stop)]
    own = ["--comm_compress", "captured", "--param_compress", "captured", "--max_steps", str(steps.stop)]
    if code := train([*own, *flags], ranks, program=program):
        sys.exit(code)


def _rank_main(out: Path, first: int, last: int) -> None:
    """Run one rank: the trainer itself, with a method that saves what passes through it."""
    import torch  # a rank's imports, which whoever starts them need not wait for

    from comm_compress.core.rounds import AllGatherRounds, ReduceScatterRounds
    from comm_compress.core.state import State
    from comm_compress.methods.identity import Identity, IdentityConfig
    from comm_compress.registry import register
    from fsdp_lab import train as trainer
    from fsdp_lab.run.entry import run_as_program

    gathered: dict[str, tuple[int, Tensor]] = {}  # of each unit: which step's parameters came last

    def save(kind: str, state: State, step: int, rows: Tensor) -> None:
        if first <= step < last:
            saved = {"unit": state.unit, "step": step, "rank": state.rank, "rows": rows.clone()}
            saved["segments"] = [list(s) for s in state.segments]
            torch.save(saved, out / kind / f"{state.unit}-{step:06d}-{state.rank}.pt")

    @register("captured", IdentityConfig)
    class Captured(Identity):
        """The method `identity`, which also keeps copies of its inputs."""

        def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
            """Save the rows, then do as identity does."""
            save(GRADIENTS, state, state.tick - 1, rows)
            return (yield from super().reduce_scatter(rows, state))

        def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
            """Save what has changed since the last gather: a step's second gather brings the same."""
            source = row.float() if state.master is None else state.master()
            step, last_row = gathered.get(state.unit, (-1, source.new_empty(0)))
            if not torch.equal(last_row, source):
                gathered[state.unit] = (step + 1, source.clone())
                save(PARAMETERS, state, step + 1, source)
            return (yield from super().all_gather(row, state))

    run_as_program(trainer.train)


def steps_of(text: str) -> range:
    """A range from a text such as "40:48"."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ValueError("wants FIRST:LAST with FIRST < LAST")
    return range(int(first), int(last))


def main() -> None:
    """Capture what the flags ask for."""
    if sys.argv[1:2] == ["--as-rank"]:
        out, first, last = sys.argv[2:5]
        sys.argv[1:5] = []
        _rank_main(Path(out), int(first), int(last))
    parser = program("experiments.fidelity.capture", __doc__)
    parser.add_argument("--out", type=new_folder, required=True)
    parser.add_argument("--steps", type=steps_of, default=range(40, 48), help="captured optimizer steps, FIRST:LAST")
    parser.add_argument("--ranks", type=whole(1), default=2)
    parser.add_argument("flags", nargs="*", help="flags of fsdp_lab.train, after --")
    options = parser.parse_args()
    with user_errors("experiments.fidelity.capture"):
        capture(options.out.resolve(), options.steps, options.ranks, options.flags)


if __name__ == "__main__":
    with unix_endings():
        main()
