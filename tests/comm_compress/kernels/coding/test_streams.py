"""rANS streams in one call: the bytes of the stream that is put together step by step, in blocks of any length."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

from comm_compress.kernels.coding.entropy import cpu as entropy_cpu, reference as entropy_reference
from comm_compress.kernels.coding.entropy.interface import EntropyKernels
from comm_compress.kernels.coding.frequencies import PRECISION, TOTAL, Table
from comm_compress.kernels.coding.rans_stream import (
    BLOCK,
    LANES,
    MANY,
    MOST_HALVINGS,
    SIZE_BITS,
    block_from,
    block_on,
    halvings_of,
)
from comm_compress.kernels.coding.reciprocals import reciprocals_of
from comm_compress.kernels.coding.streams import cpu as streams_cpu, reference as streams_reference
from comm_compress.kernels.coding.streams.reference import decode_with, encode_with
from comm_compress.kernels.tools.scratch import fresh

SIZES = [1, 2, 64, 1000, MANY - 1, MANY, BLOCK + 1, 2 * BLOCK + 33, 3 * BLOCK]


def kinds(n: int) -> dict[str, Tensor]:
    """Symbols of many distributions: with and without literals, of few and of many different bytes."""
    random = np.random.default_rng(n)
    scattered = random.choice([3, 100, 200, 201, 202, 255, 0], n)
    numbers = {
        "every byte": random.integers(0, 256, n),
        "one byte": np.zeros(n),
        "signed": random.geometric(0.5, n) * random.choice([-1, 1], n),
        "rare ones everywhere": np.where(random.random(n) < 0.97, 0, random.integers(0, 256, n)),
        "rare ones apart": np.where(random.random(n) < 0.9, 7, scattered),
        "a few, far apart": random.integers(0, 20, n) * 13,
        "wide": random.normal(0, 20, n).round(),
    }
    return {name: torch.from_numpy(x.astype(np.int64).astype(np.uint8)) for name, x in numbers.items()}


@pytest.mark.parametrize("n", SIZES)
def test_one_call_writes_and_reads_the_stream(n: int) -> None:
    for kind, symbols in kinds(n).items():
        wanted = torch.cat(encode_with(entropy_cpu, symbols))
        out = torch.full((n + 1,), 77, dtype=torch.uint8)
        size = streams_cpu.encode(symbols, out[:n], fresh)
        assert size == (wanted.numel() if wanted.numel() < n else 0), kind
        assert torch.equal(out[:size], wanted[:size]), kind
        assert out[n] == 77, kind
        back = torch.empty_like(symbols)
        streams_cpu.decode(torch.cat([wanted[:3], wanted])[3:], back, fresh)  # from any address
        assert torch.equal(back, symbols), kind
        assert torch.equal(decode_with(entropy_cpu, wanted, torch.empty_like(symbols)), symbols), kind


def test_the_reference_is_the_same_interface() -> None:
    symbols = kinds(1000)["signed"]
    ours, theirs = torch.empty(2, 1000, dtype=torch.uint8)
    size = streams_cpu.encode(symbols, ours, fresh)
    assert size == streams_reference.encode(symbols, theirs, fresh) > 0
    assert torch.equal(ours[:size], theirs[:size])
    back = torch.empty_like(symbols)
    streams_reference.decode(ours[:size], back, fresh)
    assert torch.equal(back, symbols)
    noise = kinds(1000)["every byte"]
    assert streams_cpu.encode(noise, ours, fresh) == streams_reference.encode(noise, theirs, fresh) == 0


def test_a_block_with_more_words_than_symbols_is_refused() -> None:
    symbols = kinds(MANY)["signed"]
    stream = torch.cat(encode_with(entropy_cpu, symbols))
    place = Table.read(stream.numpy())[1]
    too_many = torch.cat([stream, torch.zeros(3 * MANY, dtype=torch.uint8)])
    too_many[place : place + 4] = torch.tensor([MANY + 1], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(ValueError, match=f"{MANY} symbols does not end"):
        streams_cpu.decode(too_many, torch.empty_like(symbols), fresh)


@pytest.mark.parametrize("kind", ["signed", "rare ones everywhere"])
@pytest.mark.parametrize("n", [1000, MANY])
def test_a_stream_that_is_cut_short_is_refused(kind: str, n: int) -> None:
    symbols = kinds(n)[kind]
    whole = torch.cat(encode_with(entropy_cpu, symbols))
    for size in (0, 1, 5, whole.numel() // 2, whole.numel() - 1):
        with pytest.raises(ValueError, match=f"{n} symbols does not end within {size} bytes"):
            streams_cpu.decode(whole[:size], torch.empty_like(symbols), fresh)


BYTES_OF_A_CPU = "99da2b3ddd63946a117b079a47eb6245f507f0a3aedad09f0402f968c71ca8da"
IMPLEMENTATIONS: dict[str, EntropyKernels] = {"cpu": entropy_cpu, "reference": entropy_reference}


def patterned(n: int, shift: int) -> Tensor:
    """uint8 ``[n]`` without random numbers of a library: products of two bytes, the more alike the larger the shift."""
    i = torch.arange(n)
    mixed = (i * 2654435761 + (i * i * 40503 >> 7)) & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 2246822519 & 0xFFFFFFFF
    return (((mixed >> 8 & 255) * (mixed >> 20 & 255) >> shift) - 20 & 255).to(torch.uint8)


def test_a_cpu_writes_the_bytes_that_it_wrote_before() -> None:
    """Published numbers of bytes rest on them: a digest from before blocks had other lengths anywhere."""
    seen = hashlib.sha256()
    for n in (1, 1000, MANY - 1, MANY, BLOCK + 11, 2 * BLOCK + 33):
        for shift in (8, 10, 13):
            symbols, contexts = patterned(n, shift), patterned(n, 9) % 3
            for parts in (encode_with(entropy_cpu, symbols), encode_with(entropy_cpu, symbols, contexts, 3)):
                seen.update(torch.cat(parts).numpy().tobytes())
    assert seen.hexdigest() == BYTES_OF_A_CPU


@pytest.mark.parametrize("num_contexts", [1, 3])
@pytest.mark.parametrize("n", [1, 1000, MANY + 77])
def test_blocks_of_any_length_are_written_alike_and_read_by_all(n: int, num_contexts: int) -> None:
    contexts = None if num_contexts == 1 else patterned(n, 9) % num_contexts
    symbols = patterned(n, 10)
    lengths = {}
    for block in (BLOCK >> MOST_HALVINGS, 1 << 11, 1 << 14, BLOCK):
        both = [
            torch.cat(encode_with(k, symbols, contexts, num_contexts, block=block)) for k in IMPLEMENTATIONS.values()
        ]
        assert torch.equal(*both)
        lengths[block] = both[0].numel()
        for kernels in IMPLEMENTATIONS.values():
            back = decode_with(kernels, both[0], torch.empty_like(symbols), contexts, num_contexts)
            assert torch.equal(back, symbols), block
        if contexts is None:
            back = torch.empty_like(symbols)
            streams_cpu.decode(both[0], back, fresh)
            assert torch.equal(back, symbols), block
    if n > MANY:
        assert lengths[BLOCK] < lengths[1 << 14] < lengths[BLOCK] + 3 * 4 * (1 + LANES)


def test_a_device_says_how_long_its_blocks_are() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert {block_on(cpu, n) for n in (1, MANY, 1 << 30)} == {BLOCK}
    assert [block_on(cuda, n) for n in (1, MANY - 1, MANY, 1 << 30)] == [1 << 11, 1 << 11, 1 << 14, 1 << 14]
    for halvings in range(MOST_HALVINGS + 1):
        assert halvings_of(block_from(halvings)) == halvings


@pytest.mark.parametrize("halvings", [MOST_HALVINGS + 1, 255])
def test_blocks_of_less_than_a_symbol_for_each_state_are_refused(halvings: int) -> None:
    symbols = kinds(MANY)["signed"]
    stream = torch.cat(encode_with(entropy_cpu, symbols))
    stream[Table.read(stream.numpy())[1] + SIZE_BITS // 8] = halvings
    back = torch.empty_like(symbols)
    with pytest.raises(ValueError, match=f"halved {halvings} times, and {MOST_HALVINGS} times are the most"):
        streams_cpu.decode(stream, back, fresh)
    for kernels in IMPLEMENTATIONS.values():
        with pytest.raises(ValueError, match=f"halved {halvings} times"):
            decode_with(kernels, stream, back)


def test_a_stream_whose_blocks_do_not_fit_is_refused() -> None:
    symbols = kinds(MANY)["signed"]
    stream = torch.cat(encode_with(entropy_cpu, symbols))
    place = Table.read(stream.numpy())[1]
    for byte, value, words in (
        (SIZE_BITS // 8, MOST_HALVINGS, "does not end|more words"),
        (2, 1, "more words|not end"),
    ):
        damaged = stream.clone()
        damaged[place + byte] = value
        for kernels in IMPLEMENTATIONS.values():
            with pytest.raises(ValueError, match=words):
                decode_with(kernels, damaged, torch.empty_like(symbols))


def test_a_product_is_the_quotient_by_any_frequency() -> None:
    """Just below and at multiples: the largest state that a frequency absorbs, where errors are largest, and others."""
    f = np.arange(1, TOTAL + 1)
    factor, shift, addend = reciprocals_of(f)
    assert factor.max() < 1 << 32
    most = 1 << 32 - PRECISION
    for multiple in [1, 2, most - 1, most, *np.random.default_rng(0).integers(3, most, 100)]:
        for x in (multiple * f - 1, np.minimum(multiple, most - 1) * f):
            assert (x + addend).max() < 1 << 32
            product = (x + addend).astype(np.uint64) * factor.astype(np.uint64) >> np.uint64(32)
            assert (product >> shift.astype(np.uint64) == x // f).all()


@pytest.mark.parametrize("kernels", [entropy_cpu, entropy_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("tables", [1, 2])
def test_literals_that_do_not_fit_are_refused(kernels: EntropyKernels, tables: int) -> None:
    """Fewer than symbols that stand for one, none, or more: nothing is written where there is no room."""
    n = 6000
    symbols = kinds(n)["rare ones everywhere"]
    contexts = None if tables == 1 else (torch.arange(n) % tables).to(torch.uint8)
    *parts, literals = encode_with(entropy_cpu, symbols, contexts, tables)
    assert literals.numel() > 100
    for damaged in (literals[:-1], literals[:1], literals[:0], torch.cat([literals, literals[:3]])):
        with pytest.raises(ValueError, match=f"has {damaged.numel()} literals for {literals.numel()} symbols"):
            decode_with(kernels, torch.cat([*parts, damaged]), torch.empty_like(symbols), contexts, tables)


@pytest.mark.parametrize(("spread", "bits", "percent"), [(1.0, 2.11, 2.0), (3.9, 4.02, 1.05), (60.0, 7.76, 0.55)])
def test_what_a_gpus_short_blocks_cost(spread: float, bits: float, percent: float) -> None:
    """Of as many symbols as a layer of 62 million parameters has in half of its shard: docs/findings/gpu.md."""
    numbers = torch.randn(2_500_000, generator=torch.Generator().manual_seed(0)).mul_(spread).round_()
    symbols = numbers.clamp_(-127, 127).to(torch.int8).view(torch.uint8)
    short = block_on(torch.device("cuda"), symbols.numel())
    long, more = (sum(part.numel() for part in encode_with(entropy_cpu, symbols, block=k)) for k in (BLOCK, short))
    assert 8 * long / symbols.numel() == pytest.approx(bits, abs=0.01)
    assert 100 * (more / long - 1) == pytest.approx(percent, abs=0.05)
