"""What every codec has from its base class: its traffic, and rows that are decoded from their bytes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comm_compress.core.compressor import Codec
from comm_compress.core.segments import segments_of
from comm_compress.drive import simulate
from comm_compress.wrappers.entropy import EntropyCoded
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.table import IDS, TABLE, build, codec


def test_traffic_is_a_row_to_each_other_rank_or_unknown() -> None:
    int8 = codec("int8", {"block_size": 8})
    assert int8.wire_bytes(16) == 16 + 2 * 4
    assert int8.traffic(16, 3) == 2 * 24
    assert build("int8", {"entropy": "rans"}).traffic(16, 3) is None


@pytest.mark.parametrize("config", [{}, {"entropy": "rans"}])
def test_a_row_is_decoded_from_its_bytes_alone(config: dict[str, str]) -> None:
    method = codec("int8", config)
    row = torch.linspace(-1, 1, 50)[None]
    sent = method.encode(row, simulate.states(1)[0])
    received = method.received(sent.row(0).clone(), 50)
    assert torch.equal(method.decode(received), method.decode(sent))


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_sender_takes_its_message_for_is_what_a_receiver_reads(
    name: str, config: dict[str, Any], dtype: torch.dtype
) -> None:
    made = build(name, config)
    method = made.inner if isinstance(made, ErrorFeedback) else made
    if not isinstance(method, Codec):
        pytest.skip("exchanges rounds of its own")
    segments = segments_of([("embedding", (40, 20)), ("bias", (7,)), ("weight", (20, 30))], 2)
    rows = torch.randn(2, segments[-1].stop, generator=torch.Generator().manual_seed(1)).to(dtype)
    encoding, asking = (simulate.states(2, segments=segments)[0] for _ in range(2))
    for _ in range(2):
        for state in (encoding, asking):
            state.begin()
        plain = method.encode(rows, encoding)
        encoded, known = method.encode_and_decode(rows, asking)
        assert torch.equal(known, method.decode(encoded))
        assert all(torch.equal(encoded.row(i), plain.row(i)) for i in range(2))


def test_entropy_coding_is_among_the_settings() -> None:
    assert EntropyCoded(codec("int8", {}), "zstd").settings["entropy"] == "zstd"
