"""Every law of `comm_compress.conformance` for every method of the table, and virtual ranks against real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from comm_compress import available, conformance
from comm_compress.drive import simulate
from tests.comm_compress.table import IDS, TABLE, build
from tests.distributed import run_ranks


def test_every_registered_method_is_in_the_table() -> None:
    assert {name for name, _ in TABLE} == set(available()) - {"none"}


CASES = [
    pytest.param(name, config, law, id=f"{row}-{law.__name__}")
    for row, (name, config) in zip(IDS, TABLE, strict=True)
    for law in conformance.laws_for(build(name, config))
]


@pytest.mark.parametrize(("name", "config", "law"), CASES)
def test_law(name: str, config: dict[str, Any], law: conformance.Law) -> None:
    law(lambda: build(name, config))


def _real(name: str, config: dict[str, Any], inputs: list[Tensor]) -> list[Any]:
    import torch.distributed as dist

    from comm_compress.core.ledger import Collective
    from comm_compress.drive import transport

    compressor, totals, rank = build(name, config), [], dist.get_rank()
    group, collective = dist.group.WORLD, Collective(torch.device("cpu"))
    assert group is not None
    state = conformance.states(len(inputs), inputs[0].shape[1])[rank]
    for step in range(2):
        state.begin()
        rounds = (
            compressor.reduce_scatter(inputs[rank] * (step + 1), state)
            if compressor.traits.for_gradients
            else compressor.all_gather(inputs[rank][0] * (step + 1), state)
        )
        result = transport.run(rounds, group, collective)
        result = result.total if compressor.traits.for_gradients else result.float()
        totals.append(result.clone().numpy())  # gathered rows may be replicas, which the next gather advances
    return [totals, collective.bytes.total]


def _real_all(inputs_by_size: list[list[Tensor]]) -> list[list[Any]]:
    return [[_real(name, config, inputs) for name, config in TABLE] for inputs in inputs_by_size]


@pytest.mark.parametrize(("world", "sizes"), [(2, [333]), (3, [333, 1])])
def test_virtual_ranks_give_the_numbers_and_bytes_of_real_ranks(world: int, sizes: list[int]) -> None:
    inputs_by_size = [conformance.gradient(world, n) for n in sizes]
    # started once for all sizes: each rank reads some hundred kernels from the disk, or waits for them to be compiled
    real = run_ranks(world, _real_all, inputs_by_size, timeout=280)
    for number, inputs in enumerate(inputs_by_size):
        _compare([of_rank[number] for of_rank in real], inputs)


def _compare(real: list[Any], inputs: list[Tensor]) -> None:
    """What ``real`` ranks computed and sent of ``inputs``, method by method, against virtual ones."""
    world, n = len(inputs), inputs[0].shape[1]
    for row, (name, config) in enumerate(TABLE):
        compressor, states = build(name, config), conformance.states(world, n)
        sent = [0] * world
        for step in range(2):
            for state in states:
                state.begin()
            rounds = [
                compressor.reduce_scatter(inputs[r] * (step + 1), states[r])
                if compressor.traits.for_gradients
                else compressor.all_gather(inputs[r][0] * (step + 1), states[r])
                for r in range(world)
            ]
            virtual = simulate.lockstep(rounds)
            for rank in range(world):
                result = virtual.results[rank]
                expected = result.total if compressor.traits.for_gradients else result.float()
                got = torch.from_numpy(real[rank][row][0][step])
                # a real all-reduce sums in another order than ours from three ranks on, and a projection
                # spreads the difference over a whole matrix
                rtol, atol = (0.0, 1e-7) if world == 2 else (1e-5, 1e-7 + 1e-5 * float(expected.abs().max()))
                torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, msg=f"{name} {config}")
                sent[rank] += virtual.sent[rank].total
        assert [real[rank][row][1] for rank in range(world)] == sent, (name, config)
