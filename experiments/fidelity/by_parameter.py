"""Where a model is hard to send: outliers of gradients and parameters, and what arrives, parameter by parameter.

    python -m experiments.fidelity.capture --out FOLDER --steps 20:24 -- --model gpt2-mini --max_steps 400
    python -m experiments.fidelity.by_parameter FOLDER [--gradients "int4 hadamard" ...] [--parameters delta ...]

Parameters of one name are taken together over all layers. Captured steps go, one after another, by each method between
virtual ranks, as in a training (feedback and warm starts included); the last of them is measured.

**share**: its part of the squared size of all gradients, or parameters. **largest**: the largest element over the root
mean square. **row**, **column**: the longest row (output) and column (input) over the median one; all three of the
median layer. Then, by method: of gradients the size of the error over the size of the exact mean; of
parameters the size of the error over the size of the last update, since it is updates that a replica must not lose.
Names are without what all of them begin with.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from fsdp_lab.settings.flag_values import a_folder, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

if TYPE_CHECKING:
    from experiments.fidelity.outliers_and_errors import Line

METHODS = {
    GRADIENTS: ["int8", "int4", "int4 hadamard", "ecsq step=0.25", "lowrank rank=20"],
    PARAMETERS: ["int8", "int4", "delta", "delta mode=grid step=0.1 moves=8"],
}


def markdown(kind: str, lines: Sequence[Line]) -> str:
    """One kind's table in Markdown."""
    methods = list(lines[0].errors)
    head = [kind, "tensors", "elements", "share, %", "largest", "row", "column", *methods]
    rows = [_cells(head), "|---|" + "---:|" * (len(head) - 1)]
    for name, line in zip(_shortened([line.parameter for line in lines]), lines, strict=True):
        shape = [_shown(value) for value in (100 * line.share, line.largest, line.rows, line.columns)]
        errors = [_shown(line.errors[method]) for method in methods]
        rows.append(_cells([name, line.tensors, f"{line.elements:,}", *shape, *errors]))
    return "\n".join(rows) + "\n"


def _shortened(names: Sequence[str]) -> list[str]:
    """The names without the modules that all of them begin with; each keeps its last two parts."""
    parts = [name.split(".") for name in names]
    alike = itertools.takewhile(lambda at: len(set(at)) == 1, zip(*(p[:-2] for p in parts), strict=False))
    first = len(list(alike))
    return [".".join(p[first:]) for p in parts]


def _cells(values: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, values)) + " |"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main(argv: Sequence[str]) -> int:
    """Measure, print, and write the files."""
    parser = program("experiments.fidelity.by_parameter", __doc__)
    parser.add_argument("folder", type=a_folder, help="what experiments.fidelity.capture saved")
    parser.add_argument("--gradients", nargs="*", default=METHODS[GRADIENTS], metavar="METHOD")
    parser.add_argument("--parameters", nargs="*", default=METHODS[PARAMETERS], metavar="METHOD")
    parser.add_argument("--json", type=new_file())
    parser.add_argument("--markdown", type=new_file())
    options = parser.parse_args(argv)
    if not options.gradients and not options.parameters:
        parser.error("nothing to measure: name a method after --gradients or --parameters")
    from experiments.fidelity.outliers_and_errors import measure  # torch and kernels: not for --help

    with user_errors("by_parameter"):
        done: list[Line] = []
        tables = []
        for kind, methods in ((GRADIENTS, options.gradients), (PARAMETERS, options.parameters)):
            if methods:
                done += (lines := measure(options.folder, kind, methods))
                tables.append(markdown(kind, lines))
                print(tables[-1], flush=True)
        if options.json is not None:
            options.json.write_text("".join(json.dumps(asdict(line)) + "\n" for line in done))
        if options.markdown is not None:
            options.markdown.write_text("\n".join(tables))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
