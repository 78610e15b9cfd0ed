"""Bits and ratios of planted byte counts, and nothing where nothing is known."""

from __future__ import annotations

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.statistics.measures import (
    bits,
    bits_per_activation,
    bits_per_parameter,
    column,
    gradient_ratio,
    mean_over_seeds,
    over_seeds,
    ratio,
    ratio_vs_bf16,
    ratio_vs_fp32,
    sent_bytes,
)
from tests.analysis.planted_rows import PARAMETERS, STEPS, arm, died, divided, row


@pytest.mark.parametrize("world", [2, 4, 64])
def test_an_uncompressed_reduce_scatter_has_32_bits_at_any_world_size(world: int) -> None:
    sent = PARAMETERS * STEPS * 4 * (world - 1) // world
    found = row(
        world_size=world,
        bytes_compressed_by_op={"reduce_scatter": sent, "all_gather": sent // 2},
        bytes_compressed_total=sent + sent // 2,
    )
    assert bits_per_parameter(found, "reduce_scatter") == pytest.approx(32)
    assert bits_per_parameter(found, "all_gather") == pytest.approx(16)
    assert bits_per_parameter(found) == pytest.approx(48)


def test_ratios_name_their_denominator() -> None:
    int8 = row("int8", parameters="bf16")  # 8 bits once, 16 twice, of 3 x 32 in float32
    assert gradient_ratio(int8) == pytest.approx(4)
    assert ratio(int8, "bf16", "all_gather") == pytest.approx(1)
    assert ratio_vs_fp32(int8) == pytest.approx(96 / 40)
    assert ratio_vs_bf16(int8) == pytest.approx(48 / 40)
    assert sent_bytes(int8) == pytest.approx(40 / 8 * PARAMETERS / 2)


def test_a_divided_model_has_bits_a_value_of_its_activations() -> None:
    int8 = divided("int8", stock=1000)
    assert bits_per_activation(int8) == pytest.approx((600 * 8 + 200 * 16) / 800)
    assert bits(int8) == bits_per_activation(int8)
    assert ratio_vs_fp32(int8) == pytest.approx(32 * 1800 / (600 * 8 + 200 * 16 + 1000 * 32))
    assert bits_per_activation(row("int8")) is None
    assert bits(row("int8")) == bits_per_parameter(row("int8"))


def test_nothing_is_made_of_nothing() -> None:
    dead = died("int8", 1, bytes_compressed_by_op=None, bytes_compressed_total=None, elements_by_op=None)
    for found in (dead, row("int8", elements_by_op=None, num_parameters=None), row("zero", bytes_compressed_total=0)):
        assert ratio_vs_fp32(found) is None
    assert bits_per_parameter(dead) is None
    assert bits_per_parameter(row("int8", world_size=1)) is None
    assert column("tokens_per_s")(dead) is None


def test_over_the_runs_that_ended() -> None:
    rows = [row("int8", 1, tokens_per_s=90.0), row("int8", 2, tokens_per_s=110.0), died("int8", 3)]
    (runs,) = comparisons(rows)[0].arms
    found = over_seeds(runs, column("tokens_per_s"))
    assert found is not None
    assert (found.n, found.mean) == (2, 100.0)
    (lost,) = comparisons([died("int8", seed) for seed in (1, 2)])[0].arms
    assert mean_over_seeds(runs, column("tokens_per_s")) == found.mean
    assert over_seeds(lost, column("tokens_per_s")) is mean_over_seeds(lost, column("tokens_per_s")) is None
    assert over_seeds(comparisons(arm("int8"))[0].arms[0], bits_per_parameter) is not None
