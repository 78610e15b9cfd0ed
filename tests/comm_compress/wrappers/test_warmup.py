"""Which collectives go uncompressed: the first ones, and those of small units."""

from __future__ import annotations

import torch

from comm_compress import make
from comm_compress.drive import simulate
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.wrappers.warmup import Sparing
from tests.comm_compress.table import build

WORLD = 2


def exact(compressor: object, n: int, steps: int) -> list[bool]:
    """Step after step: does the total come through uncompressed?"""
    states, found = simulate.states(WORLD, "unit"), []
    for step in range(steps):
        if step:
            for state in states:
                state.begin()
        rows = [torch.linspace(-1, 1, n * WORLD).view(WORLD, n) * (1 + rank) for rank in range(WORLD)]
        result = simulate.reduce_scatter(compressor, rows, states)[0]  # type: ignore[arg-type]
        found.append(torch.equal(result.total, rows[0][0] + rows[1][0]))
    return found


def test_the_first_steps_go_uncompressed_and_no_more() -> None:
    assert exact(build("int8", {"warmup_steps": 2}), 300, 4) == [True, True, False, False]


def test_a_unit_of_just_the_limit_is_compressed() -> None:
    method = build("int8", {"min_numel": 2 * 300})  # all ranks' rows together
    assert exact(method, 300, 1) == [False]
    assert exact(method, 299, 1) == [True]


def test_what_it_claims_to_send() -> None:
    int8, identity = build("int8", {}), UNCOMPRESSED
    small = build("int8", {"min_numel": 600})
    assert small.traffic(299, WORLD) == identity.traffic(299, WORLD)
    assert small.traffic(300, WORLD) == int8.traffic(300, WORLD) != identity.traffic(300, WORLD)
    assert build("int8", {"warmup_steps": 1}).traffic(300, WORLD) is None, "both, one after the other"


def test_gathers_are_spared_alike() -> None:
    inner = make("int8")
    assert inner is not None
    sparing = Sparing(inner, UNCOMPRESSED, 0, 600)
    assert (sparing.name, sparing.traits.for_parameters, sparing.traits.lossless) == ("int8", True, False), (
        "what both claim"
    )
    for n, lossless in ((299, True), (300, False)):
        rows = [torch.linspace(-1, 1, n) * (1 + rank) for rank in range(WORLD)]
        gathered = simulate.all_gather(sparing, rows, simulate.states(WORLD, "unit"))[1]
        assert torch.equal(gathered, torch.stack(rows)) == lossless


def test_settings_say_what_was_asked_for() -> None:
    settings = build("int8", {"warmup_steps": 3, "min_numel": 7}).settings
    assert (settings["warmup_steps"], settings["min_numel"]) == (3, 7)
