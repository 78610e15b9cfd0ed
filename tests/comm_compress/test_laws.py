"""The laws find what they are there for: for each, a method that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from comm_compress import conformance
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded, Layout
from comm_compress.core.state import State
from comm_compress.methods.identity import Identity, IdentityConfig
from comm_compress.wrappers.error_feedback import ErrorFeedback, FeedbackConfig


class Broken(Identity):
    """Identity, with one thing wrong in each class below."""

    def __init__(self) -> None:
        super().__init__(IdentityConfig())
        self.name, self.settings = "broken", {}


class Overflows(Broken):
    def decode(self, encoded: Encoded) -> Tensor:
        return super().decode(encoded).float() * 1e38


class Underdeclares(Broken):
    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int:
        return (world - 1) * n


class MiscountsRows(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        encoded = super().encode(rows, state)
        assert encoded.layout is not None
        layout = Layout(*encoded.layout.fields.values())  # its own is made once for all messages of a size
        layout.padding += 1
        return replace(encoded, layout=layout)


class AddsAConstant(Broken):
    def decode(self, encoded: Encoded) -> Tensor:
        return super().decode(encoded).float() + 1e-6


class HidesNaN(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode(torch.nan_to_num(rows), state)


class HidesNaNFromTheOthers(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode(torch.cat([rows[:1], torch.nan_to_num(rows[1:])]), state)


class DrawsFromTheGlobalGenerator(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode(rows + 1e-3 * torch.randn_like(rows) * (rows != 0), state)


class WritesToItsInput(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode(rows.mul_(2), state)


class RemembersOutsideItsState(Broken):
    calls = 0

    def encode(self, rows: Tensor, state: State) -> Encoded:
        self.calls += 1
        return super().encode(rows * self.calls, state)


class RemembersInPlace(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        last = state.get("last")
        if last is None:
            state.put("last", rows.clone())
        else:
            last.copy_(rows)  # not by `State.changing`: what it held is lost
        return super().encode(rows, state)


class Embezzles(Broken):
    def contribution(self, sent: Encoded) -> Tensor:
        return super().contribution(sent).float() * 0.99


class Truncates(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode((rows.float().view(torch.int32) & ~0xFFFF).view(torch.float32).to(rows.dtype), state)


class RanksDiffer(Broken):
    def all_gather(self, row: Tensor, state: State) -> Any:
        return (yield from super().all_gather(row, state)) * (1 + 1e-3 * state.rank)


class GathersDiffer(Broken):
    def encode(self, rows: Tensor, state: State) -> Encoded:
        return super().encode(rows * (1 + 2**-7 * state.tick), state)


class LosesTheResidual(ErrorFeedback):
    def residual(self, state: State) -> Tensor | None:
        residual = super().residual(state)
        return None if residual is None else residual * 0


def losing() -> Compressor:
    return LosesTheResidual(Truncates(), FeedbackConfig())


@pytest.mark.parametrize(
    ("law", "method"),
    [
        (conformance.finite_in_finite_out, Overflows),
        (conformance.bytes_are_as_declared, Underdeclares),
        (conformance.bytes_are_as_declared, MiscountsRows),
        (conformance.zeros_stay_zero, AddsAConstant),
        (conformance.what_is_not_finite_never_becomes_plausible, HidesNaN),
        (conformance.what_is_not_finite_reaches_every_rank, HidesNaNFromTheOthers),
        (conformance.nothing_but_the_input_decides, DrawsFromTheGlobalGenerator),
        (conformance.nothing_but_the_input_decides, WritesToItsInput),
        (conformance.state_survives_a_round_trip, RemembersOutsideItsState),
        (conformance.a_void_step_leaves_no_trace, RemembersInPlace),
        (conformance.totals_are_sums_of_contributions, Embezzles),
        (conformance.unbiased_as_claimed, Truncates),
        (conformance.parameters_arrive_alike, RanksDiffer),
        (conformance.parameters_arrive_alike, GathersDiffer),
        (conformance.feedback_loses_nothing, losing),
        (conformance.replicas_stay_replicas, DrawsFromTheGlobalGenerator),
    ],
    ids=lambda thing: thing.__name__,
)
def test_a_broken_method_is_caught_by_the_law_that_it_breaks(law: conformance.Law, method: Any) -> None:
    assert law in conformance.laws_for(method()), "the law would not have been tried"
    with pytest.raises(AssertionError):
        law(method)


def test_every_law_has_a_method_that_breaks_it() -> None:
    (marks,) = test_a_broken_method_is_caught_by_the_law_that_it_breaks.pytestmark  # type: ignore[attr-defined]
    assert {law for law, _ in marks.args[1]} == set(conformance.LAWS)


@pytest.mark.parametrize("law", conformance.laws_for(Broken()), ids=lambda law: law.__name__)
def test_what_they_derive_from_breaks_none(law: conformance.Law) -> None:
    law(Broken)
