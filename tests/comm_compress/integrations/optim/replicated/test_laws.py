"""Laws of every optimizer that replicas exchange something for."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.comm_compress.integrations.optim.replicated.training import (
    FRAGMENTS,
    LOCAL_STEPS,
    OPTIMIZERS,
    STEPS,
    Virtual,
    digest,
    model,
)

WORLD = 3
EVERY = {**OPTIMIZERS, **LOCAL_STEPS}


def seen(ours: Virtual) -> list[dict[str, Any]]:
    """What all replicas hold; what they have sent depends on how often they tried."""
    return [ours.seen(rank) | {"sent": 0} for rank in range(WORLD)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_nan_of_one_replica_makes_the_step_void_on_all(name: str) -> None:
    spoiled, straight = (Virtual(WORLD, OPTIMIZERS[name], FRAGMENTS) for _ in range(2))
    for number in range(STEPS):
        spoiled.step(number, spoiled=number % WORLD)
        assert not spoiled.optimizer.finite  # type: ignore[attr-defined]
        if number == 0:
            assert digest(spoiled.model.state_dict()) == digest(model().state_dict())
        for ours in (spoiled, straight):
            ours.step(number)
            assert ours.optimizer.finite  # type: ignore[attr-defined]
    assert seen(spoiled) == seen(straight), "no void step left a trace"
    assert spoiled.replicas.ledger.totals().nonfinite_inputs == 2, "its own, in steps 0 and 3"


@pytest.mark.parametrize("stop", range(1, STEPS))
@pytest.mark.parametrize("name", EVERY)
def test_it_goes_on_bit_for_bit_from_what_was_saved(name: str, stop: int) -> None:
    straight, resumed = (Virtual(WORLD, EVERY[name], FRAGMENTS) for _ in range(2))
    for number in range(stop):
        straight.step(number)
        resumed.step(number + 100)  # what it remembers of others must go
    parts = (straight.model.state_dict(), straight.optimizer.state_dict(), straight.replicas.state_dicts())
    of_model, of_optimizer, of_replicas = copy.deepcopy(parts)
    resumed.model.load_state_dict(of_model)
    resumed.optimizer.load_state_dict(of_optimizer)
    resumed.replicas.load_state_dicts(of_replicas)
    assert seen(resumed) == seen(straight)
    for number in range(stop, STEPS):
        straight.step(number)
        resumed.step(number)
    assert seen(resumed) == seen(straight)


def test_states_are_loaded_into_an_optimizer() -> None:
    ours = Virtual(WORLD, OPTIMIZERS["demo"])
    bare = type(ours.replicas)(model(), WORLD)
    with pytest.raises(ValueError, match="make it, then load them"):
        bare.load_state_dicts(ours.replicas.state_dicts())
