"""The same numbers from a GPU as from the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comm_compress import conformance
from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec
from comm_compress.drive import simulate
from comm_compress.kernels.coding import rans_stream
from tests.comm_compress.table import IDS, TABLE, build

# What these send depends on a sum, of squares or of products, that a GPU adds up in another order.
ROUNDED = ("dgc", "lowrank", "powersgd", "taco")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
@pytest.mark.parametrize("n", [1, 1000, 70_001])
def test_cuda_gives_what_the_cpu_gives(
    name: str, config: dict[str, Any], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rans_stream, "GROUPS", {})  # blocks of a CPU's length
    inputs, compressor = conformance.gradient(2, n), build(name, config)
    on_gpu = [x.cuda() for x in inputs]
    if isinstance(compressor, Codec):  # the same bytes
        cpu, gpu = (compressor.encode(x, conformance.states(2, n)[0]) for x in (inputs[0], on_gpu[0]))
        if name in ROUNDED:
            assert distance(compressor.decode(gpu).cpu(), compressor.decode(cpu)) < 0.01  # some codes differ by one
        else:
            assert gpu.lengths == cpu.lengths
            assert torch.equal(gpu.buffer.cpu(), cpu.buffer)
    if compressor.traits.for_gradients:
        expected = simulate.reduce_scatter(compressor, inputs, conformance.states(2, n))
        got = simulate.reduce_scatter(compressor, on_gpu, conformance.states(2, n))
        for a, b in zip(expected, got, strict=True):
            if name in ROUNDED:
                assert distance(b.total.cpu(), a.total) < 0.01
            else:  # sums over ranks may round differently
                torch.testing.assert_close(b.total.cpu(), a.total, rtol=1e-5, atol=1e-6 * float(a.total.abs().max()))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The 2-norm of the difference over that of ``b``; 0 for two zeros."""
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("identity", {}),
        ("int8", {}),
        ("int8", {"error_feedback": True}),
        ("int8", {"error_feedback": {"dtype": "int8"}}),
        ("int4", {"hadamard": True}),
        ("fp8", {}),
        ("qsgd", {}),
        ("terngrad", {}),
        ("topk", {}),
    ],
    ids=str,
)
def test_the_cpu_does_not_wait(name: str, config: dict[str, Any]) -> None:
    """Methods of fixed size: a collective is queued without reading anything back."""
    compressor, states = build(name, config), conformance.states(2, 70_001)
    inputs = [x.cuda() for x in conformance.gradient(2, 70_001)]
    for mode in ("default", "error"):  # the first time kernels are compiled
        torch.cuda.set_sync_debug_mode(mode)
        try:
            for state, rows in zip(states, inputs, strict=True):
                state.begin(nonfinite.mark(rows))
            simulate.reduce_scatter(compressor, inputs, states)
        finally:
            torch.cuda.set_sync_debug_mode("default")
