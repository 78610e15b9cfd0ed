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
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.encoded import ByteCount
from comm_compress.drive import simulate
from experiments.fidelity.capture import GRADIENTS, PARAMETERS, Unit, load
from experiments.fidelity.method_settings import GRADIENT_METHODS, PARAMETER_METHODS, Settings
from fsdp_lab.settings.flag_values import a_folder, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

BETAS, EPSILON = (0.9, 0.95), 1e-8  # the trainer's
JUDGED = 4  # the last quarter


@dataclass(frozen=True)
class Line:
    """One method in the table.

    ``size`` is the length of the updates from its gradients, or its parameters' error measured in updates (see the
    module). ``gradient_error`` and ``gradient_cosine``: None of parameters; the cosine also where nothing arrived."""

    kind: str
    method: str
    config: Settings
    bits: float
    error: float
    size: float
    behind: float
    gradient_error: float | None = None
    gradient_cosine: float | None = None


class _Adam:
    """Adam's updates of one rank's shard. The averages keep their bias, which both updates compared have alike."""

    def __init__(self) -> None:
        self.first: Tensor | float = 0.0
        self.second: Tensor | float = 0.0

    def update(self, gradient: Tensor) -> Tensor:
        b1, b2 = BETAS
        self.first = b1 * self.first + (1 - b1) * gradient
        self.second = b2 * self.second + (1 - b2) * gradient.square()
        return self.first / (self.second.sqrt() + EPSILON)


@dataclass
class _Gradients:
    """What arrives, c, beside the exact mean, g: sums of squares and products."""

    arrived: float = 0.0
    exact: float = 0.0
    product: float = 0.0

    def add(self, arrived: Tensor, exact: Tensor) -> None:
        self.arrived += _dot(arrived, arrived)
        self.exact += _dot(exact, exact)
        self.product += _dot(arrived, exact)

    @property
    def error(self) -> float | None:
        """|c - g| / |g|; None where there was no g."""
        return math.sqrt(max(self.arrived - 2 * self.product + self.exact, 0) / self.exact) if self.exact else None

    @property
    def cosine(self) -> float | None:
        """The cosine of c and g; None where nothing arrived."""
        norms = math.sqrt(self.arrived * self.exact)
        return self.product / norms if norms else None


@dataclass
class _Sums:
    """Sums over judged steps, units and ranks, in float64."""

    sent: ByteCount = field(default_factory=ByteCount)
    elements: int = 0
    error: float = 0.0
    of: float = 0.0
    size: float = 0.0
    against: float = 0.0
    missing: float = 0.0
    along: float = 0.0
    gradients: _Gradients = field(default_factory=_Gradients)

    def add_sent(self, sent: Sequence[ByteCount], elements: int) -> None:
        self.sent = sum(sent, self.sent)
        self.elements += elements

    @property
    def bits(self) -> float:
        return 8 * self.sent.total / self.elements


def measure(kind: str, method: str, config: Settings, units: Sequence[Unit]) -> Line:
    """Measure one method on captured units of its kind."""
    judge = _judge_gradients if kind == GRADIENTS else _judge_parameters
    sums = _Sums()
    for unit in units:
        judge(_made(method, config), unit, sums)
    size = math.sqrt(sums.size / sums.of if kind == GRADIENTS else sums.error / sums.along)
    behind = sums.missing / sums.along
    arrived = sums.gradients
    return Line(kind, method, config, sums.bits, sums.error / sums.of, size, behind, arrived.error, arrived.cosine)


def _judge_gradients(compressor: cc.Compressor, unit: Unit, sums: _Sums) -> None:
    world = len(unit.steps[0])
    states = simulate.states(world, unit.name, segments=unit.segments)
    exact, arrived = [_Adam() for _ in range(world)], [_Adam() for _ in range(world)]
    for number, inputs in enumerate(unit.steps):
        if number:
            for state in states:
                state.begin(torch.tensor(True))
        rounds = [compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)]
        outcome = simulate.lockstep(rounds)
        is_judged = _is_judged(number, unit)
        if is_judged:
            sums.add_sent(outcome.sent, sum(x.numel() for x in inputs) * (world - 1) // world)
        for rank, result in enumerate(outcome.results):
            mean = torch.stack([x[rank].float() for x in inputs]).mean(0)
            wanted = exact[rank].update(mean)
            update = arrived[rank].update(result.total / world)
            if is_judged:
                sums.gradients.add(result.total / world, mean)
                sums.error += _dot(update - wanted, update - wanted)
                sums.of += _dot(wanted, wanted)
                sums.size += _dot(update, update)
                momentum = torch.as_tensor(exact[rank].first)
                own = torch.as_tensor(exact[rank].second).double().sqrt()
                share = torch.where(own > 0, momentum / own, 0)
                sums.missing += _dot(torch.where(own > 0, (momentum - arrived[rank].first) / own, 0), share)
                sums.along += _dot(share, share)


def _judge_parameters(compressor: cc.Compressor, unit: Unit, sums: _Sums) -> None:
    world = len(unit.steps[0])
    states = simulate.states(world, unit.name, segments=unit.segments)
    for number, rows in enumerate(unit.steps):
        if number:
            for state in states:
                state.begin(torch.tensor(True))
        outcome = simulate.lockstep([compressor.all_gather(x, s) for x, s in zip(rows, states, strict=True)])
        if number and _is_judged(number, unit):
            sums.add_sent(outcome.sent, sum(row.numel() for row in rows) * (world - 1))
            for row, before, seen in zip(rows, unit.steps[number - 1], outcome.results[0], strict=True):
                error, update = seen.float() - row, row - before
                sums.error += _dot(error, error)
                sums.of += _dot(row, row)
                sums.missing -= _dot(error, update)
                sums.along += _dot(update, update)


def _is_judged(number: int, unit: Unit) -> bool:
    return number >= len(unit.steps) - max(1, len(unit.steps) // JUDGED)


def _made(method: str, config: Settings) -> cc.Compressor:
    made = cc.make(method, config)
    assert made is not None
    return made


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.double().flatten() @ b.double().flatten())


def lines(folder: Path, methods: Sequence[str]) -> Iterator[Line]:
    """The whole table, methods of gradients first."""
    for kind, settings in ((GRADIENTS, GRADIENT_METHODS), (PARAMETERS, PARAMETER_METHODS)):
        units = load(folder, kind)
        for method in settings:
            if method in methods:
                yield from (measure(kind, method, config, units) for config in settings[method])


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
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
