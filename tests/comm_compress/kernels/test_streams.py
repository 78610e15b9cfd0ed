"""rANS streams in one call: the bytes of the stream that is put together step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import Table
from comm_compress.kernels.common.rans_stream import BLOCK, MANY
from comm_compress.kernels.common.scratch import fresh
from comm_compress.kernels.cpu import entropy as entropy_cpu, streams as streams_cpu
from comm_compress.kernels.reference import streams as streams_reference
from comm_compress.kernels.reference.streams import decode_with, encode_with

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
