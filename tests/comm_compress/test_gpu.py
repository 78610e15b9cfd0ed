"""The same bytes from a GPU as from the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comm_compress.state import State
from tests.comm_compress.table import IDS, TABLE, build
from tests.comm_compress.test_conformance import gradient

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
@pytest.mark.parametrize("n", [1, 1000, 70_001])
def test_cuda_encodes_the_bytes_that_the_cpu_encodes(name: str, config: dict[str, Any], n: int) -> None:
    rows = gradient(1, 3, n)[0]
    expected = build(name, config).encode(rows, State())
    compressor = build(name, config)
    got = compressor.encode(rows.cuda(), State())
    assert torch.equal(got.buffer.cpu(), expected.buffer)
    assert torch.equal(compressor.decode(got).cpu(), compressor.decode(expected))
    assert torch.equal(compressor.decode_sum(got).cpu(), compressor.decode_sum(expected))
