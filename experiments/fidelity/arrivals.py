"""Captured steps of a unit, sent one after another by virtual ranks, as a training would send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.drive.simulate import Outcome
from experiments.fidelity.captured import Unit


class Arrival(NamedTuple):
    """What one step's collective brings: ``arrived`` in place of ``exact``, both float32 ``[W, n]``, and its outcome.

    Row d is rank d's: of gradients the mean that it reduces to, of parameters the row that it gives all others.
    """

    exact: Tensor
    arrived: Tensor
    outcome: Outcome


def of_gradients(compressor: cc.Compressor, unit: Unit) -> Iterator[Arrival]:
    """Reduce and scatter each captured step's gradients, with the state (feedback, warm starts) of those before."""
    for inputs, states in _steps(unit):
        rounds = [compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)]
        outcome = simulate.lockstep(rounds)
        exact = torch.stack([x.float() for x in inputs]).mean(0)
        arrived = torch.stack([result.total.float() for result in outcome.results]) / len(inputs)
        yield Arrival(exact, arrived, outcome)


def of_parameters(compressor: cc.Compressor, unit: Unit) -> Iterator[Arrival]:
    """Gather each captured step's parameters, with the state of those before: what a rank holds of all of them."""
    for rows, states in _steps(unit):
        outcome = simulate.lockstep([compressor.all_gather(x, s) for x, s in zip(rows, states, strict=True)])
        yield Arrival(torch.stack(rows), torch.stack(list(outcome.results[0])).float(), outcome)


def _steps(unit: Unit) -> Iterator[tuple[list[Tensor], list[State]]]:
    states = simulate.states(len(unit.steps[0]), unit.name, segments=unit.segments)
    for number, inputs in enumerate(unit.steps):
        if number:
            for state in states:
                state.begin(torch.tensor(True))
        yield inputs, states
