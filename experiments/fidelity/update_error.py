"""What a method does to Adam's updates and to the parameters that ranks see: a screen for minutes, not a training.

    python -m experiments.fidelity.capture --out FOLDER --steps 100:132 -- --model gpt2-mini --max_steps 400
    python -m experiments.fidelity.update_error FOLDER [--methods ecsq int4] [--json FILE] [--markdown FILE]

Every method, as it is by default (error feedback included), is given the captured steps one after another by virtual
ranks, and judged in their last quarter, when feedback and Adam's averages have settled.

Gradients: Adam's update from what arrives, u', against the one from the exact mean, u. **error** |u' - u|^2 / |u|^2;
**length** |u'| / |u|: noise makes the second moment larger, and so steps shorter; **behind**: the share of the
momentum that has not arrived (along it, each element in units of its own size), below 0 if too much has; **gradient**
and **cosine**: |c - g| / |g| and the angle's cosine of the mean that arrives, c, and the exact one, g, as a results row
has them (`grad_rel_error`, `grad_cos_sim`).

Parameters: what ranks hold, w', against the parameters w. **error** |w' - w|^2 / |w|^2; **updates** |w' - w| over the
size of the last update; **behind**: the share of that update that is missing in w' (along it). Rounding errors do not
know which way parameters move; what is behind makes gradients those of earlier parameters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.method_settings import GRADIENT_METHODS, PARAMETER_METHODS
from fsdp_lab.settings.flag_values import a_folder, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

if TYPE_CHECKING:
    from experiments.fidelity.adam_updates import Line

HEADS = {
    GRADIENTS: "| gradients by | settings | bits | error | length | behind | gradient | cosine |",
    PARAMETERS: "| parameters by | settings | bits | error | updates | behind |",
}


def rule(kind: str) -> str:
    """The line under a table's head."""
    return "|---|---|" + "---:|" * (HEADS[kind].count("|") - 3)


def markdown(table: Sequence[Line]) -> str:
    """The tables of gradients and of parameters, in Markdown."""
    tables = []
    for kind, head in HEADS.items():
        rows = [row(line) for line in table if line.kind == kind]
        tables += ["\n".join([head, rule(kind), *rows])] if rows else []
    return "\n\n".join(tables) + "\n"


def row(line: Line) -> str:
    """One line of a table in Markdown."""
    config = f"`{json.dumps(line.config)}`" if line.config else "default"
    figures = f"{line.bits:.2f} | {line.error:.2g} | {line.size:.3g} | {line.behind + 0.0:.3f}"
    if line.kind == GRADIENTS:
        figures += f" | {_shown(line.gradient_error, '.2g')} | {_shown(line.gradient_cosine, '.3f')}"
    return f"| {line.method} | {config} | {figures} |"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(argv: Sequence[str]) -> int:
    """Measure, print, and write the file."""
    known = list(dict.fromkeys([*GRADIENT_METHODS, *PARAMETER_METHODS]))
    parser = program("experiments.fidelity.update_error", __doc__)
    parser.add_argument("folder", type=a_folder, help="what experiments.fidelity.capture saved")
    parser.add_argument("--methods", nargs="*", choices=known, default=known)
    parser.add_argument("--json", type=new_file())
    parser.add_argument("--markdown", type=new_file())
    options = parser.parse_args(argv)
    from experiments.fidelity.adam_updates import lines  # torch and kernels: not for --help

    with user_errors("update_error"):
        done: list[Line] = []
        for line in lines(options.folder, options.methods):
            if not done or done[-1].kind != line.kind:
                print(*([""] if done else []), HEADS[line.kind], rule(line.kind), sep="\n")
            print(row(line), flush=True)
            done.append(line)
        if options.json is not None:
            values: list[dict[str, Any]] = [asdict(line) for line in done]
            options.json.write_text("".join(json.dumps(value) + "\n" for value in values))
        if options.markdown is not None:
            options.markdown.write_text(markdown(done))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
