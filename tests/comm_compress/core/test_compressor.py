"""What every codec has from its base class: its traffic, and rows that are decoded from their bytes alone."""

from __future__ import annotations

import pytest
import torch

from comm_compress.drive import simulate
from comm_compress.wrappers.entropy import EntropyCoded
from tests.comm_compress.table import build, codec


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


def test_entropy_coding_is_among_the_settings() -> None:
    assert EntropyCoded(codec("int8", {}), "zstd").settings["entropy"] == "zstd"
