"""Entropy coding: lossless, honest about its bytes, and as short as the entropy of what it codes."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import comm_compress as cc
from comm_compress import kernels
from comm_compress.core.encoded import Encoded, RaggedRow
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels.coding import rans, rans_stream
from comm_compress.kernels.coding.entropy import cpu as entropy_cpu, reference as entropy_reference
from comm_compress.kernels.coding.entropy.interface import EntropyKernels
from comm_compress.kernels.coding.frequencies import MOST_BYTES, RARE, TOTAL, Table, table_bytes
from comm_compress.kernels.coding.ulp import reference as ulp_reference
from comm_compress.registry import COMMON
from comm_compress.wrappers.entropy import DTYPES, EntropyCoded
from tests.comm_compress.table import TABLE, build

BLOCK_BYTES = 4 + 4 * rans_stream.LANES
MANY = rans_stream.MANY  # symbols that 32 states share


def skewed(n: int, zeros: float, spread: float, seed: int = 0) -> Tensor:
    """uint8 ``[n]``: a share of zeros among two-sided geometric bytes."""
    random = np.random.default_rng(seed)
    values = random.geometric(1 / spread, n) * random.choice([-1, 1], n)
    return torch.from_numpy(np.where(random.random(n) < zeros, 0, values).astype(np.int64).astype(np.uint8))


def entropy_bytes(symbols: Tensor) -> float:
    """n H / 8 of the empirical order-0 distribution."""
    _, counts = np.unique(symbols.numpy(), return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8)


def stream_of(implementation: EntropyKernels, symbols: Tensor, *options: Any) -> Tensor:
    return torch.cat(rans.encode_with(implementation, symbols, *options))


def symbols_of(implementation: EntropyKernels, stream: Tensor, n: int, *options: Any) -> Tensor:
    return rans.decode_with(implementation, stream, torch.empty(n, dtype=torch.uint8), *options)


# ---- rANS ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    n=st.sampled_from([0, 1, 3, 4, 5, 300, 1500, MANY - 1, MANY, MANY + 33]),
    zeros=st.sampled_from([0, 0.5, 0.98, 1]),
    spread=st.sampled_from([1.0, 3.0, 30.0, 1000.0]),
    num_contexts=st.sampled_from([0, 1, 5]),
    seed=st.integers(0, 1000),
)
def test_rans_gives_the_references_bytes_and_the_symbols_again(
    n: int, zeros: float, spread: float, num_contexts: int, seed: int
) -> None:
    symbols, contexts = skewed(n, zeros, spread, seed), None
    if num_contexts:
        contexts = torch.randint(num_contexts, (n,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    options = (contexts, max(num_contexts, 1))
    stream = stream_of(entropy_cpu, symbols, *options)
    assert torch.equal(stream, stream_of(entropy_reference, symbols, *options))
    for implementation in (entropy_cpu, entropy_reference):
        assert torch.equal(symbols_of(implementation, stream, len(symbols), *options), symbols)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_do_not_depend_on_threads(threads: int) -> None:
    n = 2 * rans_stream.BLOCK + 5
    symbols = skewed(n, 0.3, 9.0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stream = torch.cat(rans.encode(symbols))
        assert torch.equal(rans.decode(stream, torch.empty_like(symbols)), symbols)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(stream, torch.cat(rans.encode(symbols)))


def test_a_second_block_is_the_references() -> None:
    n = rans_stream.BLOCK + 11
    symbols = torch.zeros(n, dtype=torch.uint8)
    symbols[-2000:] = skewed(2000, 0.1, 20.0)
    stream = stream_of(entropy_cpu, symbols)
    assert torch.equal(stream, stream_of(entropy_reference, symbols))
    assert torch.equal(symbols_of(entropy_reference, stream, len(symbols)), symbols)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("num_contexts", [1, 2])
def test_literals_are_found_wherever_rare_symbols_lie(together: bool, num_contexts: int) -> None:
    """Neighbours, as the tails of signed numbers are, or on both sides of a frequent one: other loops."""
    n = (1 << 17) + 7
    symbols, rare = torch.zeros(n, dtype=torch.uint8), torch.arange(50, 150)
    if not together:
        symbols[::2], rare = 100, rare[rare != 100]
    symbols[torch.arange(len(rare)) * 1013 + 5] = rare.to(torch.uint8)
    symbols[-1] = int(rare[0])  # beyond the last vector
    contexts = None if num_contexts == 1 else (torch.arange(n) % 2).to(torch.uint8)
    stream = stream_of(entropy_cpu, symbols, contexts, num_contexts)
    assert torch.equal(stream, stream_of(entropy_reference, symbols, contexts, num_contexts))
    assert torch.equal(symbols_of(entropy_cpu, stream, len(symbols), contexts, num_contexts), symbols)
    table = Table.of(np.bincount(symbols.numpy(), minlength=256))
    assert table.escape is not None
    marked = table.frequencies == 0
    marked[table.escape] = True
    assert (entropy_cpu._interval(marked) is not None) == together


def test_a_processor_without_vectors_of_its_own_gives_the_same_stream(tmp_path: Path) -> None:
    """Kernels name AVX-512's instructions where there are any; compiled for a generic processor they do without.

    What is compiled so stays beside the others, under the name of that processor: numba asks for it as well.
    """
    script = """if True:
        import sys, torch
        from comm_compress.kernels.coding import rans
        from comm_compress.kernels.coding.ulp import cpu as ulp
        symbols, contexts, old, new = torch.load(sys.argv[1])
        stream = torch.cat(rans.encode(symbols, contexts, 2))
        assert torch.equal(rans.decode(stream, torch.empty_like(symbols), contexts, 2), symbols)
        moved = ulp.difference(old, new)
        assert torch.equal(ulp.apply(old.clone(), *moved), new)
        torch.save([stream, *moved], sys.argv[1])
    """
    symbols = skewed(MANY + 77, 0.3, 9.0)
    contexts = (torch.arange(len(symbols)) % 3 == 0).to(torch.uint8)
    old = torch.randn(len(symbols), generator=torch.Generator().manual_seed(0)).bfloat16()
    new = (old.float() * 1.01 + 0.001).bfloat16()  # some by a few units in the last place, some by many
    torch.save((symbols, contexts, old, new), tmp_path / "tensors.pt")
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-c", script, str(tmp_path / "tensors.pt")]
    done = subprocess.run(command, env={**os.environ, **generic}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stream, *moved = torch.load(tmp_path / "tensors.pt")
    assert torch.equal(stream, torch.cat(rans.encode(symbols, contexts, 2)))
    assert all(torch.equal(a, b) for a, b in zip(moved, ulp_reference.difference(old, new), strict=True))


@pytest.mark.parametrize("zeros", [0, 0.5, 0.9, 0.98, 0.999])
@pytest.mark.parametrize("spread", [1.0, 2.0, 12.0, 10_000.0])
def test_rans_takes_the_entropy(zeros: float, spread: float) -> None:
    """Within 1 % and its tables; never less than the entropy, which no static order-0 code undercuts."""
    n = 1 << 20
    symbols = skewed(n, zeros, spread)
    ideal, seen = entropy_bytes(symbols), torch.cat(rans.encode(symbols)).numel()
    overhead = MOST_BYTES + n / rans_stream.BLOCK * BLOCK_BYTES
    assert ideal <= seen <= 1.01 * ideal + overhead
    if ideal > 30 * overhead:
        assert seen <= 1.05 * ideal


def test_what_is_too_rare_for_a_frequency_goes_as_a_literal() -> None:
    """Every byte value once among a million zeros: without escapes each would cost the zeros 1 / 2^12."""
    symbols = torch.zeros(1 << 20, dtype=torch.uint8)
    symbols[:: 1 << 12] = torch.arange(256, dtype=torch.uint8)
    stream = torch.cat(rans.encode(symbols))
    assert torch.equal(rans.decode(stream, torch.empty_like(symbols)), symbols)
    least_frequencies = (1 << 20) * 255 / TOTAL * 1.44 / 8
    blocks = (1 << 20) / rans_stream.BLOCK
    assert stream.numel() < 1.5 * entropy_bytes(symbols) + blocks * BLOCK_BYTES < least_frequencies


@pytest.mark.parametrize("used", [1, 2, 31, 32, 33, 128, 255, 256])
@pytest.mark.parametrize("rare", [0, 5])
def test_a_table_is_as_long_as_it_says_and_is_read_again(used: int, rare: int) -> None:
    """Around the number of symbols from which on they are marked in a bitmap."""
    counts = np.zeros(256, np.int64)
    counts[256 - used :] = 1 << 20
    counts[256 - used : 256 - used + min(rare, used - 1)] = 1
    table = Table.of(counts)
    assert (table.escape is not None) == (rare > 0 and used > 2)
    written = table.write()
    assert len(written) == table_bytes(table.frequencies, table.escape is not None) <= MOST_BYTES
    read, size = Table.read(np.frombuffer(written + b"more", np.uint8))
    assert (read.escape, size) == (table.escape, len(written))
    assert (read.frequencies == table.frequencies).all()


@settings(max_examples=60, deadline=None)
@given(
    used=st.integers(1, 256),
    spread=st.sampled_from([0.0, 1.0, 4.0, 12.0]),
    mean=st.sampled_from([1, 20, 1 << 12, 1 << 30]),
    seed=st.integers(0, 1000),
)
def test_a_table_is_the_shortest_of_those_with_the_nearest_frequencies(
    used: int, spread: float, mean: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    counts = np.zeros(256, np.int64)
    sizes = np.minimum(mean * np.exp(spread * random.standard_normal(used)), 2.0**40)
    counts[random.permutation(256)[:used]] = 1 + sizes
    best = min((with_rare(counts, times * counts.sum() / TOTAL) for times in RARE), key=lambda found: found[0])
    table = Table.of(counts)
    assert (table.frequencies == best[1].frequencies).all()
    assert table.escape == best[1].escape


def with_rare(counts: npt.NDArray[np.int64], most: float) -> tuple[float, Table]:
    """Bits in all, and the table that merges what occurs at most so often, if that is more than one symbol."""
    rare, escape, coded = np.flatnonzero((counts > 0) & (counts <= most)), None, counts.copy()
    if len(rare) > 1:
        escape, coded[rare] = int(rare[0]), 0
        coded[escape] = counts[rare].sum()
    table = Table(nearest_frequencies(coded), escape)
    literals = 0 if escape is None else coded[escape]
    ideal = -(coded[coded > 0] * np.log2(table.frequencies[coded > 0] / TOTAL)).sum()
    return float(ideal + 8 * (literals + len(table.write()))), table


def nearest_frequencies(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """By largest remainders, in exact arithmetic; what is more than 2^12 then, the largest give, in turns."""
    shares = [Fraction(int(count) * TOTAL, int(counts.sum())) for count in counts]
    found = [max(int(share), int(share > 0)) for share in shares]
    by_remainder = sorted(range(256), key=lambda s: (int(shares[s]) - shares[s], s))
    for symbol in by_remainder[: max(TOTAL - sum(found), 0)]:
        found[symbol] += 1
    while excess := sum(found) - TOTAL:
        for symbol in sorted((s for s in range(256) if found[s] > 1), key=lambda s: (-found[s], s))[:excess]:
            found[symbol] -= 1
    return np.array(found)


@pytest.mark.parametrize("bits", [4, 2])
def test_packed_codes_of_a_gaussian_carry_their_entropy(bits: int) -> None:
    """int4 with groups of 128: 3.38 bits an element. zstd's Huffman codes come within 3 % of that."""
    n, levels = 1 << 20, 2 ** (bits - 1) - 1
    blocks = torch.randn(n // 128, 128, generator=torch.Generator().manual_seed(0))
    codes = (blocks / blocks.abs().amax(1, keepdim=True) * levels).round().int().view(1, -1)
    packed = torch.empty(1, n * bits // 8, dtype=torch.uint8)
    kernels.bits(codes).pack(codes, bits, packed)
    _, counts = np.unique(codes, return_counts=True)
    ideal = float(-(counts / n * np.log2(counts / n)).sum())
    seen = torch.cat(rans.encode(packed[0])).numel() * 8 / n
    assert ideal <= seen <= 1.005 * ideal
    if bits == 4:
        assert ideal == pytest.approx(3.38, abs=0.01)
        import zstandard

        assert len(zstandard.ZstdCompressor(level=1).compress(packed.numpy().tobytes())) * 8 / n < 1.03 * ideal


# ---- around codecs ---------------------------------------------------------------------------------------------


def codable() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every codec of the table that can be entropy coded, its wrappers taken off."""
    found = {}
    for name, config in TABLE:
        own = {k: v for k, v in config.items() if k not in COMMON}
        if not EntropyCoded.refusal(build(name, {**own, "error_feedback": False})):
            found[f"{name}-{own}"] = (name, own)
    return found


@pytest.mark.parametrize("coder", ["rans", "zstd"])
@pytest.mark.parametrize(("name", "config"), codable().values(), ids=codable().keys())
def test_the_codecs_rows_come_back_bit_for_bit(name: str, config: dict[str, Any], coder: str) -> None:
    for n, dtype in [(0, torch.float32), (1, torch.float32), (900, torch.float32), (5000, torch.bfloat16)]:
        rows = (torch.randn(2, n, generator=torch.Generator().manual_seed(n)) ** 3).to(dtype)
        rows[0, n // 2 :] = 0
        coded = build(name, {**config, "entropy": coder, "error_feedback": False})
        assert isinstance(coded, EntropyCoded)
        plain = coded.inner.encode(rows, State())
        sent = coded.encode(rows, State())
        received = Encoded.ragged([RaggedRow([sent.row(r)]) for r in range(2)], n)
        expanded = coded.expand(received)
        assert torch.equal(expanded.buffer, plain.buffer)
        assert coded.decode(received).dtype == coded.inner.decode(plain).dtype
        assert plain.layout is not None
        streams = sum(f.dtype.itemsize for f in plain.layout.fields.values() if f.size)
        for row in range(2):
            assert sent.row(row).numel() <= plain.layout.row_bytes + 1 + 5 * streams, "never longer than raw and a head"
        assert all(sent.byte_count(r).values <= plain.layout.byte_count.values for r in range(2))


@pytest.mark.parametrize("coder", ["rans", "zstd"])
def test_the_bytes_are_those_of_the_codes_entropy(coder: str) -> None:
    n = 1 << 20
    rows = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    coded = build("int8", {"entropy": coder})
    assert isinstance(coded, EntropyCoded)
    codes = coded.inner.encode(rows, State())["codes"][0].view(torch.uint8)
    count = coded.encode(rows, State()).byte_count(0)
    assert entropy_bytes(codes) <= count.values <= 1.01 * entropy_bytes(codes) + MOST_BYTES
    assert count.indices == 0
    assert 0.5 * n / 256 * 4 < count.metadata < n / 256 * 4, "scales shrink by their exponents only"


def test_bf16_numbers_without_history_cost_10_6_bits() -> None:
    """Their entropy is 10.55: 2.55 for the exponent, 8 for sign and mantissa."""
    rows = torch.randn(1, 1 << 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    coded = build("identity", {"entropy": "rans"})
    assert isinstance(coded, EntropyCoded)
    assert coded.traits.lossless
    assert coded.encode(rows, State()).row(0).numel() * 8 / (1 << 20) == pytest.approx(10.6, abs=0.06)


@pytest.mark.parametrize("name", ["int8", "topk"])
def test_training_does_not_notice(name: str) -> None:
    """With error feedback, step after step: the same totals, the same residuals."""
    plain, coded = (build(name, {"error_feedback": True, **extra}) for extra in ({}, {"entropy": "rans"}))
    ours, theirs = simulate.states(2), simulate.states(2)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        inputs = [torch.randn(2, 700, generator=generator) for _ in range(2)]
        results = []
        for method, states in ((plain, ours), (coded, theirs)):
            for state in states:
                state.begin()
            results.append(simulate.reduce_scatter(method, inputs, states))
        assert all(torch.equal(a.total, b.total) for a, b in zip(*results, strict=True))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.state_dict()["residual"], b.state_dict()["residual"])


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("int8", {"scale": "global", "entropy": "rans"}, ["entropy = 'rans'", "summed on the wire"]),
        ("delta", {"entropy": "zstd"}, ["entropy = 'zstd'", "rounds"]),
        ("int8", {"entropy": "lz4"}, ["entropy = 'lz4'", "'zstd'", "'rans'", "null"]),
        ("identity", {"entropy": "rans", "error_feedback": True}, ["error_feedback", "loses nothing"]),
    ],
)
def test_what_cannot_be_coded_is_refused(name: str, config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match="^" + name) as refusal:
        cc.make(name, config)
    assert all(word in str(refusal.value) for word in words)


def test_a_codec_of_its_own_rounds_or_lengths_is_refused() -> None:
    class Varying(build("identity", {}).__class__):  # type: ignore[misc]
        fixed_size = False

    class TwoRounds(build("identity", {}).__class__):  # type: ignore[misc]
        def all_gather(self, row: Tensor, state: State) -> Any:
            return super().all_gather(row, state)

    assert "vary" in EntropyCoded.refusal(Varying(None))
    assert "rounds of its own" in EntropyCoded.refusal(TwoRounds(None))


def test_the_dtypes_of_rows_are_all_known() -> None:
    from comm_compress import conformance

    assert set(DTYPES) == set(conformance.DTYPES)
