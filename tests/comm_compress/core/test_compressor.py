"""What a method claims unless it says otherwise, and what wrappers claim in its place."""

from __future__ import annotations

import pytest
import torch

from comm_compress.core.compressor import Compressor, claim_as
from comm_compress.drive import simulate
from comm_compress.wrappers.entropy import EntropyCoded
from tests.comm_compress.table import build, codec

CLAIMS = ("unbiased", "lossless", "for_gradients", "for_parameters", "additive")


def test_a_method_claims_nothing_that_it_does_not_say() -> None:
    claimed = [name for name in dir(Compressor) if getattr(Compressor, name) is True]
    assert claimed == ["additive", "for_gradients"]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_wrapper_claims_what_all_inside_it_claim(claim: str) -> None:
    methods = [codec("int8", {}) for _ in range(3)]
    wrapper, first, second = methods
    for a in (False, True):
        for b in (False, True):
            setattr(first, claim, a)
            setattr(second, claim, b)
            claim_as(wrapper, first, second)
            assert getattr(wrapper, claim) is (a and b)


def test_a_wrapper_needs_what_any_inside_it_needs() -> None:
    wrapper, first, second = (codec("int8", {}) for _ in range(3))
    first.feedback_by_default, second.max_ranks, second.no_feedback = True, 5, "it is exact"
    second.sparse = second.needs_segments = True
    claim_as(wrapper, first, second)
    assert (wrapper.sparse, wrapper.needs_segments, wrapper.max_ranks) == (True, True, 5)
    assert (wrapper.feedback_by_default, wrapper.no_feedback) == (True, "it is exact")
    assert (wrapper.name, wrapper.settings) == (first.name, first.settings)
    first.max_ranks = 3
    claim_as(wrapper, first, second)
    assert wrapper.max_ranks == 3


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
