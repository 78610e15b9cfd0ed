"""Every implementation of a primitive gives the reference's bytes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from comm_compress import conformance, kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.kernels import Residual, dispatch
from comm_compress.kernels.coding.entropy import entropy
from comm_compress.kernels.coding.streams import streams
from comm_compress.kernels.elements.random import reference as random_reference
from comm_compress.kernels.packing.bits import reference as bits_reference
from comm_compress.kernels.tools.vectors import nontemporal as stream_cpu
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.table import IDS, TABLE, build

KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
CPU = torch.device("cpu")


@given(key=KEYS, n=st.sampled_from([0, 1, 1000, 300_000]))
@settings(max_examples=10, deadline=None)
def test_random_numbers_are_the_references(key: tuple[int, int], n: int) -> None:
    assert torch.equal(kernels.random.on(CPU).random_bits(key, n, CPU), random_reference.random_bits(key, n, CPU))
    assert torch.equal(kernels.random.on(CPU).uniform(key, n, CPU), random_reference.uniform(key, n, CPU))


def test_random_numbers_look_random() -> None:
    """Every bit's mean, the uniform's moments, neighbours and neighbouring keys: within five standard deviations."""
    n = 1 << 20
    words, u = (
        kernels.random.on(CPU).random_bits((3, 4), n, CPU),
        kernels.random.on(CPU).uniform((3, 4), n, CPU).double(),
    )
    for place in range(32):
        assert abs(float(((words >> place) & 1).double().mean()) - 0.5) < 5 * 0.5 / n**0.5
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(float(((u - 0.5) ** 2).mean()) - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    others = [kernels.random.on(CPU).uniform(key, n, CPU).double() for key in ((3, 5), (4, 4), (4, 3))]
    for other in [u.roll(1), u.roll(2), u.roll(64), *others]:
        assert abs(float(((u - 0.5) * (other - 0.5)).mean())) < 5 / 12 / n**0.5
    assert torch.equal((u * 16).floor().unique(), torch.arange(16).double())


@given(bits=st.integers(1, 31), n=st.sampled_from([0, 1, 7, 63, 64, 65, 1000]), rows=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_bit_streams_come_back_and_are_the_references(bits: int, n: int, rows: int) -> None:
    codes = random_reference.random_bits((bits, n), rows * n, CPU).view(rows, n) & ((1 << bits) - 1)
    mine, theirs = (torch.full((rows, -(-n * bits // 8)), 255, dtype=torch.uint8) for _ in range(2))
    kernels.bits(codes).pack(codes, bits, mine)
    bits_reference.pack(codes, bits, theirs)
    assert torch.equal(mine, theirs)
    assert torch.equal(kernels.bits(mine).unpack(mine, bits, n), codes)
    assert torch.equal(bits_reference.unpack(mine, bits, n), codes)


@pytest.mark.parametrize("n", [0, 1, 63, 1000, stream_cpu.FAR + 5])
@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("waiting", [None, torch.float32, torch.bfloat16])
def test_what_feedback_encodes_is_the_references(n: int, decay: float, waiting: torch.dtype | None) -> None:
    """From rows of any dtype; the element after the last one stays as it was."""
    rows = torch.randn(2, n).bfloat16().float()
    old = None if waiting is None else torch.randn(2, n).to(waiting)
    new, expected = torch.full((2 * n + 1,), 7.0), torch.empty(2, n)
    Residual(old, decay, expected).target(rows)
    residual = Residual(old, decay, new[:-1].view(2, n))
    for narrower in (rows, rows.bfloat16()):
        assert torch.equal(kernels.residual(narrower).write_target(narrower, residual), expected)
    assert new[-1] == 7


def test_bit_streams_are_numpys_packbits() -> None:
    codes = random_reference.random_bits((1, 1), 1001, CPU).view(1, -1) & 1
    packed = torch.empty(1, 126, dtype=torch.uint8)
    kernels.bits(codes).pack(codes, 1, packed)
    assert (packed[0].numpy() == np.packbits(codes[0].numpy().astype(np.uint8), bitorder="little")).all()


POSITIONS = ("topk", "randomk", "thresholdv", "dgc")  # what sends them: 16 bits are not enough for 70,001
ROWS_AND_SIZES = [
    pytest.param(name, config, n, id=f"{n}-{row}")
    for row, (name, config) in zip(IDS, TABLE, strict=True)
    for n in (1, 70_001 if name in POSITIONS else 20_001)
]


@pytest.mark.parametrize(("name", "config", "n"), ROWS_AND_SIZES)
def test_the_reference_kernels_give_the_same_bytes(
    name: str, config: dict[str, Any], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What any other device runs, through whole codecs: the second of two steps, when methods remember one."""
    built = build(name, config)
    codec = built.inner if isinstance(built, ErrorFeedback) else built
    if not isinstance(codec, Codec):
        pytest.skip("takes rounds of its own")
    rows = conformance.gradient(2, n)[0]

    def second() -> Encoded:
        state = conformance.states(2, n)[0]
        codec.encode(rows, state)
        state.begin()
        return codec.encode(rows * 1.5, state)

    expected = second()
    decoded, total = codec.decode(expected), codec.decode_sum(expected)
    chosen = dispatch.implementation

    def reference(folder: str, device_type: str) -> Any:
        if folder in (entropy.folder, streams.folder):  # other devices have the CPU do this
            return chosen(folder, device_type)
        return importlib.import_module(f"{folder}.reference")

    monkeypatch.setattr(dispatch, "implementation", reference)
    got = second()
    assert got.lengths == expected.lengths
    assert torch.equal(got.buffer, expected.buffer)
    assert torch.equal(codec.decode(expected), decoded)
    torch.testing.assert_close(codec.decode_sum(expected), total, rtol=1e-6, atol=1e-6 * float(total.abs().max()))


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
@pytest.mark.parametrize("n", [1, 5_001])
def test_feedback_in_one_pass_is_feedback_in_three(name: str, config: dict[str, Any], n: int) -> None:
    """`encode_with_feedback` sends the bytes of the target, and leaves exactly the target less what they decode to."""
    built = build(name, config)
    codec = built.inner if isinstance(built, ErrorFeedback) else built
    if not isinstance(codec, Codec) or codec.traits.no_feedback or codec.traits.lossless:
        pytest.skip("takes rounds of its own, or no feedback")
    # what waits is narrow, too, where the method has its defaults: see test_blocks
    narrow = torch.float32 if config else torch.bfloat16
    for dtype, waits, decay in (
        (torch.float32, torch.float32, 1.0),
        (torch.float32, None, 1.0),
        (torch.bfloat16, narrow, 0.9),
    ):
        rows = conformance.gradient(2, n, 0, dtype)[0]
        old = None if waits is None else (rows.flip(1) / 7).to(waits)
        residual = Residual(old, decay, torch.full(rows.shape, 7.0))
        encoded = codec.encode_with_feedback(rows, residual, conformance.states(2, n)[0])
        target = residual._replace(new=torch.empty(rows.shape)).target(rows)
        expected = codec.encode(target, conformance.states(2, n)[0])
        assert torch.equal(encoded.buffer, expected.buffer)
        left = target - codec.decode(expected).float()
        if name == "lowrank":  # some processors subtract a matrix product without rounding it before
            torch.testing.assert_close(residual.new, left, rtol=0, atol=1e-6 * float(target.abs().max()))
        else:
            assert torch.equal(residual.new, left)


@given(rows=st.integers(1, 9), n=st.sampled_from([0, 1, 31, 32, 33, 1000]), apart=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_rows_are_summed_in_their_order_in_float32(rows: int, n: int, apart: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = (torch.randn(rows, n + apart, generator=torch.Generator().manual_seed(n)) ** 5).to(dtype)[:, :n]
        expected = np.zeros(n, np.float32)
        for row in values.float().numpy():
            expected += row
        total = torch.full((n,), 7.0)
        kernels.casts(values).sum_rows(values, total)
        assert (total.numpy() == expected).all()
