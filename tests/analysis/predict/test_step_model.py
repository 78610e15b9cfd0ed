"""The model of a step, on calibrations simple enough to be worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from analysis.predict.step_model import Codec, Cost, Link, Method, Model, Unit, step_seconds, wire_bytes

FREE = {kind: Cost() for kind in ("exchange", "all_gather", "reduce_scatter", "all_reduce")}
PLAIN = Method(Codec(), Codec())


def model(prefetch: int = 0, **changes: object) -> Model:
    """1000 elements in the root, two blocks of 250: 4000 and 1000 bytes, half of which two ranks send."""
    blocks = [Unit(250, 1.0, 2.0), Unit(250, 3.0, 4.0)]
    return Model(Unit(1000, 5.0, 6.0), blocks, update_s=0.5, prefetch=prefetch, **changes)  # type: ignore[arg-type]


def test_without_limits_only_computation_takes_time() -> None:
    assert step_seconds(model(), PLAIN, Link(math.inf, FREE), 2) == pytest.approx(21.5)
    assert model().compute_s == 21.5


def test_one_rank_sends_nothing_and_encodes_nothing() -> None:
    slow = Codec(encode_call_s=9, decode_call_s=9, rounds=2)
    assert step_seconds(model(), Method(slow, slow), Link(1.0, FREE), 1) == pytest.approx(21.5)


def test_without_prefetching_every_byte_is_waited_for() -> None:
    # gathers: root once, blocks twice; reduce-scatters: each once
    sent = 2000 + 2 * (500 + 500) + 2000 + 500 + 500
    assert wire_bytes(model(), PLAIN, 2) == sent
    link = Link(100.0, FREE)
    norm = 8 / 100  # the optimizer's all-reduce
    assert step_seconds(model(), PLAIN, link, 2) == pytest.approx(21.5 + sent / 100 + norm)


def test_a_prefetched_gather_hides_behind_computation() -> None:
    # 500 bytes take 0.5 s. Forward: block 0 is posted after the root's gather and nothing computes before it: waited
    # for; block 1 hides behind block 0's second. Backward: block 1 hides behind the head's 6 s, block 0 behind block
    # 1's 4 s.
    link = Link(1000.0, FREE)
    reduced = 3000 / 1000
    assert step_seconds(model(1), PLAIN, link, 2) == pytest.approx(21.5 + 2.0 + 0.5 + reduced + 8 / 1000)


def test_without_a_core_to_spare_nothing_hides_behind_computation() -> None:
    link = Link(1000.0, FREE, busy=True)
    sent = wire_bytes(model(), PLAIN, 2)
    # block 0's second gather still hides: its bytes go while block 1's reduce-scatter, which follows them, is waited
    # for
    assert step_seconds(model(1), PLAIN, link, 2) == pytest.approx(21.5 + (sent + 8) / 1000)
    assert step_seconds(model(1), PLAIN, Link(1000.0, FREE), 2) < 21.5 + sent / 1000


def test_a_gather_that_is_too_slow_is_waited_for_in_part() -> None:
    # 500 bytes take 2.5 s: block 1's gather begins when block 0's ends, 1 s of it hides behind block 0
    link = Link(200.0, FREE)
    forward = 2000 / 200 + 2.5 + 1 + 1.5 + 3 + 5
    # backward: block 1 hides behind the head, block 0 behind block 1; then the reduce-scatters, one by one
    backward = 6 + 4 + 2 + 3000 / 200
    assert step_seconds(model(1), PLAIN, link, 2) == pytest.approx(forward + backward + 8 / 200 + 0.5)


def test_a_gather_goes_no_further_ahead_than_asked() -> None:
    # 5 s each: the second hides behind the first's 10 s of forward, the third in part behind the second's 1 s, in
    # backward none
    blocks = [Unit(250, seconds, 0.0) for seconds in (10.0, 1.0, 0.0)]
    here = Model(Unit(0, 0.0, 0.0), blocks, prefetch=1)
    forward, backward = 5 + 10 + 1 + (5 - 1), 3 * 5
    assert step_seconds(here, Method(Codec(bits=0.0), Codec()), Link(100.0, FREE), 2) == pytest.approx(
        forward + backward + 0.08
    )


def test_overlapped_reduce_scatters_are_waited_for_at_the_end() -> None:
    link = Link(1000.0, FREE)
    # block 1's hides behind block 0's backward (2 s); block 0's and the root's do not: 0.5 + 2 s
    expected = 21.5 + 2.0 + 0.5 + 2.5 + 8 / 1000
    assert step_seconds(model(1, overlap_reduce=True), PLAIN, link, 2) == pytest.approx(expected)


def test_latency_counts_once_a_collective_and_codecs_on_the_thread() -> None:
    costs = {kind: Cost(alpha_s=0.25) for kind in FREE}
    codec = Codec(encode_call_s=0.5, encode_s_per_byte=1e-3, decode_call_s=0.125, decode_s_per_byte=2e-3)
    calls, unit_bytes = 8, (4000 + 1000 + 1000) + (4000 + 4 * 1000)
    expected = 21.5 + 0.25 * (calls + 1) + calls * 0.625 + unit_bytes * 3e-3
    assert step_seconds(model(), Method(codec, codec), Link(math.inf, costs), 2) == pytest.approx(expected)


def test_ranks_wait_for_each_other_at_every_reduce_scatter() -> None:
    link = Link(math.inf, FREE)
    assert step_seconds(model(meeting_s=0.5), PLAIN, link, 2) == pytest.approx(21.5 + 3 * 0.5)
    assert step_seconds(model(meeting_s=0.5), PLAIN, link, 1) == pytest.approx(21.5)


def test_further_rounds_cost_a_latency_each() -> None:
    costs = {**FREE, "all_reduce": Cost(alpha_s=0.25)}
    two = Method(Codec(rounds=2), Codec())
    assert step_seconds(model(), two, Link(math.inf, costs), 2) == pytest.approx(21.5 + 0.25 * (3 * 2 + 1))


def test_a_full_bucket_lets_its_bytes_pass_at_once() -> None:
    link = Link(100.0, FREE, bucket=600)
    lonely = Model(Unit(1000, 0.0, 0.0), [], prefetch=0)
    # gather: 600 of 2000 bytes at once; the reduce-scatter follows without a pause, and so does the norm
    assert step_seconds(lonely, PLAIN, link, 2) == pytest.approx((2000 - 600 + 2000 + 8) / 100)


def test_efficiency_is_the_share_of_the_rate_that_payload_gets() -> None:
    half = {**FREE, "exchange": Cost(efficiency=[(1.0, 0.5)])}
    lonely = Model(Unit(1000, 0.0, 0.0), [], prefetch=0)
    assert step_seconds(lonely, PLAIN, Link(100.0, half), 2) == pytest.approx((2 * 2000 / 0.5 + 8) / 100)


def test_a_rank_keeps_its_own_part_and_further_rounds_carry_next_to_nothing() -> None:
    lonely = Model(Unit(1000, 0.0, 0.0), [], prefetch=0)
    assert wire_bytes(lonely, PLAIN, 4) == 2 * 4000 * 3 / 4
    twice = Codec(rounds=2)
    assert step_seconds(lonely, Method(twice, PLAIN.parameters), Link(100.0, FREE), 4) == pytest.approx(60 + 0.08)


def test_a_slower_machine_takes_longer_for_all_but_communication() -> None:
    slow = model(meeting_s=0.25).slowed(3)
    assert slow.compute_s == pytest.approx(3 * 21.5)
    assert step_seconds(slow, PLAIN, Link(math.inf, FREE), 2) == pytest.approx(3 * (21.5 + 3 * 0.25))


def test_a_bucket_fills_while_the_link_is_silent() -> None:
    # gather: 600 of 2000 bytes at once, the rest until 14 s; 2.5 s of silence refill 250 bytes: the reduce-scatter
    # takes 17.5 s, and the norm follows without a pause
    pausing = Model(Unit(1000, 1.0, 1.5), [], prefetch=0)
    link = Link(100.0, FREE, bucket=600)
    assert step_seconds(pausing, PLAIN, link, 2) == pytest.approx(14 + 2.5 + (2000 - 250 + 8) / 100)
    # after 20 s it holds 600 bytes and no more
    long = Model(Unit(1000, 8.0, 12.0), [], prefetch=0)
    assert step_seconds(long, PLAIN, link, 2) == pytest.approx(14 + 20 + (2000 - 600 + 8) / 100)


def test_decoding_of_overlapped_reduce_scatters_is_waited_for_in_turn() -> None:
    # 2.5 s on the link, then 3 s of decoding: block 1's from 0 to 5.5 s after its backward, block 0's arrives at 5 s,
    # is decoded from 5.5 s on, and the root's, of no bytes, after it
    units = [Unit(0, 0.0, 0.0), Unit(500, 0.0, 0.0), Unit(500, 0.0, 0.0)]
    here = Model(units[0], units[1:], prefetch=0, overlap_reduce=True)
    gradients = Codec(decode_call_s=3.0)
    parameters = Codec(bits=0.0)
    norm = 8 / 400
    expected = 2.5 + 3 + 3 + 3 + norm
    assert step_seconds(here, Method(gradients, parameters), Link(400.0, FREE), 2) == pytest.approx(expected)


def test_efficiency_is_interpolated_over_the_logarithm_of_the_size() -> None:
    cost = Cost(efficiency=[(100.0, 1.0), (10_000.0, 0.5)])
    assert [cost.share(size) for size in (1, 100, 1000, 10_000, 1e9)] == pytest.approx([1, 1, 0.75, 0.5, 0.5])


def test_own_work_and_the_link_overlap() -> None:
    costs = {**FREE, "exchange": Cost(alpha_s=1.0, cpu_s_per_byte=0.01)}
    lonely = Model(Unit(1000, 0.0, 0.0), [], prefetch=0)
    assert step_seconds(lonely, PLAIN, Link(1e9, costs), 2) == pytest.approx(2 * (1 + 20))
    assert step_seconds(lonely, PLAIN, Link(10.0, costs), 2) == pytest.approx((2000 + 2000 + 8) / 10)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("world", [2, 4, 64])
def test_a_slower_link_is_never_faster_and_fewer_bytes_are_never_slower(
    prefetch: int, overlap: bool, world: int
) -> None:
    costs = {kind: Cost(1e-2, 1e-5, [(100, 0.9), (1e5, 0.7)]) for kind in FREE}
    here = model(prefetch, overlap_reduce=overlap)

    def step(rate: float, bits: float) -> float:
        codec = Codec("exchange", bits, 1e-3, 1e-7, 1e-3, 1e-7)
        return step_seconds(here, Method(codec, codec), Link(rate, costs, bucket=100.0), world)

    rates = [10.0 * 2**i for i in range(20)]
    for bits in (0.1, 4, 32):
        times = [step(rate, bits) for rate in rates]
        assert all(slow >= fast for slow, fast in itertools.pairwise(times)), times
    for rate in rates:
        times = [step(rate, bits) for bits in (0.1, 1, 4, 8, 16, 32)]
        assert all(few <= many for few, many in itertools.pairwise(times)), (rate, times)
        assert min(times) >= here.compute_s
