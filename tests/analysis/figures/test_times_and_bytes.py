"""What the figures of times and bytes show is what the rows say, and is all in the figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from analysis.figures import bandwidth, breakeven, comm_share, scaling, step_time, traffic
from analysis.figures.drawing import fonts
from analysis.figures.drawing.data import Datum, of_quantity
from analysis.figures.drawing.style import Style
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import Predictor
from analysis.rows.comparing import groups
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.reading import Row
from analysis.statistics import timing
from analysis.statistics.measures import bits_per_parameter
from tests.analysis import planted
from tests.analysis.planted_rows import SEEDS, STEPS, died, divided
from tests.analysis.planted_times import PARTS, timed, virtual

STYLE = Style("print", "double")


def rows(**changes: Any) -> list[Row]:
    return [timed(method, seed, **changes) for method in PARTS for seed in SEEDS]


def compared(some: list[Row]) -> Comparison:
    (found,) = comparisons(some)
    return found


def test_a_step_is_the_sum_of_its_parts() -> None:
    row = timed("int8", 2)
    parts = [of(row) for of in (timing.rest_ms, timing.encode_ms, timing.wire_ms, timing.decode_ms)]
    assert parts == pytest.approx([70, 3, 10, 2])
    assert timing.codec_share(row) == pytest.approx(5 / 85)
    assert timing.encode_ms(timed("none", 2)) == 0  # no hook: no codec
    assert timing.encode_ms(timed("int8", 2, compress_time_ms_total=None)) is None  # not known
    assert timing.rest_ms(timed("int8", 2, comm_time_ms_total=None)) is None


def test_break_even_is_bits_saved_over_codec_time() -> None:
    comparison = compared(rows())
    none, bf16, int8 = (comparison.arm(label) for label in ("none", "bf16 + bf16", "int8 + int8"))
    saved = 8 * (none.runs[1]["bytes_compressed_total"] - int8.runs[1]["bytes_compressed_total"]) / STEPS
    assert timing.break_even(int8, none) == pytest.approx(saved / 5e-3)
    assert timing.break_even(int8, bf16) == pytest.approx((saved - (32 - 16) * 1.5e6) / 3e-3)
    assert timing.break_even(none, int8) is None  # sends more
    free = compared(
        [*rows(), *(timed("int4", s, compress_time_ms_total=0.0, decompress_time_ms_total=0.0) for s in SEEDS)]
    )
    assert timing.break_even(free.arm("int4 + int4"), free.arm("none")) == math.inf
    late = compared([*rows(), *(timed("int4", s, extra_collectives_time_ms_total=500.0) for s in SEEDS)])
    assert timing.break_even(late.arm("int4 + int4"), late.arm("none")) == pytest.approx((32 - 4) * 1.5e6 / 10e-3)


def widths(axes: Any) -> list[float]:
    """Bar lengths, part by part."""
    return [patch.get_width() for container in axes.containers[:4] for patch in getattr(container, "patches", [])]


def test_step_bars_are_means_and_whiskers_intervals() -> None:
    found = step_time.data(compared(rows()))
    step = of_quantity(found, step_time.STEP)
    assert list(step) == ["none", "bf16 + bf16", "int8 + int8"]  # baselines first
    assert [one.value for one in step.values()] == pytest.approx([110, 92, 85])
    half = 4.302653 * 0.1 * 85 / math.sqrt(3)  # Student's t, two degrees of freedom
    assert (step["int8 + int8"].low, step["int8 + int8"].high) == pytest.approx((85 - half, 85 + half))
    figure = step_time.draw(found, STYLE)
    left, right = figure.axes
    rest, encode, wire, decode = zip(*PARTS.values(), strict=True)
    assert widths(left) == pytest.approx([*rest, *wire, *encode, *decode])
    assert [patch.get_x() for patch in left.containers[1].patches] == pytest.approx(rest)
    ends = [patch.get_x() + patch.get_width() for patch in left.containers[3].patches]
    assert ends == pytest.approx([one.value for one in step.values()])
    whiskers = [c for c in left.containers if not hasattr(c, "patches")]
    assert len(whiskers) == 3
    assert [t.get_text() for t in left.get_yticklabels()] == list(step)
    speeds = of_quantity(found, step_time.SPEED)
    assert [p.get_width() for p in right.containers[0].patches] == [one.value for one in speeds.values()]


def test_the_fastest_comes_first_after_the_baselines() -> None:
    quick = [timed("int4", s, step_time_ms_mean=50.0) for s in SEEDS]
    slow = [timed("int8", s, parameters="none", step_time_ms_mean=99.0) for s in SEEDS]
    found = step_time.data(compared([*slow, *quick, *rows()]))
    assert list(of_quantity(found, step_time.STEP)) == ["none", "bf16 + bf16", "int4 + int4", "int8 + int8", "int8"]


def test_one_seed_has_no_whiskers() -> None:
    figure = step_time.draw(step_time.data(compared([timed("none"), timed("int8")])), STYLE)
    assert all(hasattr(container, "patches") for axes in figure.axes for container in axes.containers)


def test_shares() -> None:
    found = comm_share.data(compared(rows()))
    assert [one.value for one in of_quantity(found, comm_share.SHARE).values()] == pytest.approx(
        [100 * 40 / 110, 100 * 22 / 92, 100 * 15 / 85]
    )
    figure = comm_share.draw(found, STYLE)
    assert sum(widths(figure.axes[0])) == pytest.approx(
        sum(one.value for one in of_quantity(found, comm_share.SHARE).values())
    )


def test_bits_by_direction_and_by_kind_have_the_same_sum() -> None:
    comparison = compared([*rows(), *(timed("int4", s, parameters="none") for s in SEEDS)])
    found = traffic.data(comparison)
    total = {name: one.value for name, one in of_quantity(found, traffic.BITS).items()}
    assert total == pytest.approx({"none": 96, "bf16 + bf16": 48, "int8 + int8": 24, "int4": 68})
    for parts in (
        (traffic.GRADIENTS, traffic.PARAMETERS),
        (traffic.UNCODED, traffic.VALUES, traffic.INDICES, traffic.METADATA),
    ):
        by_part = [of_quantity(found, part.quantity) for part in parts]
        assert {name: sum(p[name].value for p in by_part) for name in total} == pytest.approx(total)
    indices = of_quantity(found, traffic.INDICES.quantity)["int8 + int8"]
    assert indices.value == pytest.approx(600 / STEPS * 8 * 2 / 1e6)
    assert of_quantity(found, traffic.UNCODED.quantity)["none"].value == pytest.approx(96)
    figure = traffic.draw(found, STYLE)
    assert {t.get_text() for t in figure.axes[0].texts} == {"96", "48", "24", "68"}


def test_nothing_to_draw_says_what_is_missing() -> None:
    unknown = dict.fromkeys(("step_time_ms_mean", "comm_ratio", "comm_time_ms_total"))
    with pytest.raises(ValueError, match="step_time_ms_mean"):
        step_time.data(compared(rows(**unknown)))
    with pytest.raises(ValueError, match="comm_ratio"):
        comm_share.data(compared(rows(**unknown)))
    with pytest.raises(ValueError, match="two ranks or more"):
        traffic.data(compared([timed("none", world_size=1)]))
    with pytest.raises(ValueError, match="saves bytes"):
        breakeven.of_comparison(compared([timed("none")]))
    with pytest.raises(ValueError, match="two world sizes"):
        scaling.data([compared(rows())])
    with pytest.raises(ValueError, match="behind a link"):
        bandwidth.of_comparisons([compared(rows())])


def worlds() -> list[Comparison]:
    real = [timed(m, s, 0.02 * (m == "bf16"), world_size=w) for m in PARTS for s in SEEDS for w in (2, 4)]
    return comparisons([*real, *(virtual(m, s, 8, 0.01) for m in PARTS for s in SEEDS), timed("int4", world_size=2)])


def test_groups_differ_in_one_thing() -> None:
    (group,) = groups.worlds(worlds())
    assert [(c.setting.world_size, groups.is_virtual(c)) for c in group] == [(2, False), (4, False), (8, True)]
    assert groups.labels(group) == ["none", "bf16 + bf16", "int8 + int8"]  # int4 was run at one world size
    assert groups.worlds(comparisons(rows())) == []
    assert groups.worlds(comparisons([*rows(), *rows(world_size=4, max_steps=7)])) == []  # also in their steps
    some = comparisons([*rows(link_rate_asked=1e9), *rows(link_rate_asked=2e8), *rows()])
    (group,) = groups.links(some)
    assert [c.setting.link_rate for c in group] == [2e8, 1e9]


def test_scaling_keeps_virtual_ranks_and_lost_runs_apart() -> None:
    (group,) = groups.worlds(worlds())
    found = scaling.data(group)
    assert {(one.x, one.quantity) for one in found if one.arm == "none"} == {
        *((world, name) for world in (2, 4) for name in (scaling.SPEED, scaling.SHARE, scaling.PPL, scaling.CHANGE)),
        *((8, name + scaling.VIRTUAL) for name in (scaling.PPL, scaling.CHANGE)),
    }
    ppl = [one for one in found if one.quantity == scaling.PPL + scaling.VIRTUAL and one.arm == "none"]
    assert ppl[0].value > math.exp(5.0)
    assert ppl[0].n == 3
    hollow = [line for line in scaling.draw(found, STYLE).axes[2].lines if line.get_markerfacecolor() == "white"]
    assert sorted(round(line.get_xdata()[0]) for line in hollow) == [8, 8, 8]
    change = {one.arm: one.value for one in found if one.quantity == scaling.CHANGE and one.x == 4}
    assert change == pytest.approx({"none": 0, "bf16 + bf16": 100 * math.expm1(0.02), "int8 + int8": 0})

    lost = [replace_arm(c, died("int8", 3, world_size=8)) if c.setting.world_size == 8 else c for c in group]
    ppl, change = (x for x in scaling.data(lost) if x.arm == "int8 + int8" and x.x == 8)
    assert math.isinf(ppl.value)
    assert math.isinf(change.value)
    assert any(t.get_text() == "diverged" for t in scaling.draw(scaling.data(lost), STYLE).axes[2].texts)


def test_scaling_has_room_for_the_largest_change() -> None:
    more = [row for world in (2, 4) for seed in (1, 2, 3) for row in _pair(world, seed)]
    (group,) = groups.worlds(comparisons(more))
    axes = scaling.draw(scaling.data(group), STYLE).axes[-1]
    assert axes.get_yscale() == "symlog"
    to_scale = axes.yaxis.get_transform().transform
    low, high = to_scale(axes.get_ylim())
    largest = to_scale([100 * math.expm1(1.5)])[0]
    assert high - largest > 0.03 * (high - low)  # a mark's size


def _pair(world: int, seed: int) -> list[Row]:
    return [timed("none", seed, world_size=world), timed("int8", seed, 1.5, world_size=world)]


def replace_arm(comparison: Comparison, row: Row) -> Comparison:
    """The comparison with ``row`` in place of the arm's run of that seed."""
    label = f"{row['compress_method']} + {row['compress_method']}"
    changed = [
        replace(runs, runs=runs.runs | {row["seed"]: row}) if runs.arm.label == label else runs
        for runs in comparison.arms
    ]
    return replace(comparison, arms=changed)


def test_steps_against_bandwidth() -> None:
    predictor = Predictor(Calibration(planted.document()), "blocks", 2)
    cell = {"model": "blocks", "ranks": 2, "rate": "200mbit", "method": "int8 + int8", "step_ms_p50": 123.0}
    found = bandwidth.of_calibration(predictor, "blocks", [cell, cell | {"ranks": 4}])
    assert found[0].label == "none + none"  # the slowest first
    (int8,) = (one for one in found if one.label == "int8 + int8")
    assert list(int8.measured) == [(2e8, 123.0)]
    (rate, ms), *_ = found[0].predicted
    assert ms == pytest.approx(1e3 * predictor.step_s("none + none", rate, 1 << 16))
    lines = bandwidth.draw(found, STYLE).axes[0].lines
    drawn = [line for line in lines if len(line.get_xdata()) > 1]
    assert [list(zip(*line.get_data(), strict=True)) for line in drawn] == [list(one.predicted) for one in found]

    measured = bandwidth.of_comparisons(
        groups.links(comparisons([*rows(link_rate_asked=1e9), *rows(link_rate_asked=2e8)]))[0]
    )
    assert [one.measured for one in measured] == [
        [(2e8, pytest.approx(s)), (1e9, pytest.approx(s))] for s in (110, 92, 85)
    ]


def test_break_even_at_any_bandwidth_has_its_own_place() -> None:
    found = [Datum("a", "int8", breakeven.THAN_NONE, 3e8), Datum("b", "int4", breakeven.THAN_BF16, math.inf)]
    axes = breakeven.draw(found, STYLE).axes[0]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if len(line.get_xdata())]
    assert points == [(3e8, 0), (breakeven.ANY, 1)]
    axes.figure.draw_without_rendering()
    assert axes.get_xticklabels()[-2].get_text() == "at any" or "at any" in [
        t.get_text() for t in axes.get_xticklabels()
    ]
    predictor = Predictor(Calibration(planted.document()), "blocks", 2)
    by_method = {(one.arm, one.quantity): one.value for one in breakeven.of_calibration(predictor)}
    expected = next(p.below_none for p in predictor.ranked(None) if p.method == "int8 + int8")
    assert by_method["int8 + int8", breakeven.THAN_NONE] == expected


@pytest.mark.filterwarnings("ignore:Glyph")
def test_every_label_has_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese", lambda: "DejaVu Sans")  # the words, not their look
    style = Style("slides", "single", "zh")
    comparison = compared(rows())
    calibrated = Predictor(Calibration(planted.document()), "blocks", 2)
    figures = [module.draw(module.data(comparison), style) for module in (step_time, comm_share, traffic)]
    figures.append(breakeven.draw(breakeven.of_comparison(comparison), style))
    figures.append(scaling.draw(scaling.data(groups.worlds(worlds())[0]), style))
    figures.append(bandwidth.draw(bandwidth.of_calibration(calibrated, "blocks"), style))
    for figure in figures:
        labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
        assert labels
        assert all(any("\u4e00" <= letter <= "\u9fff" for letter in label) for label in labels), labels


def test_bits_are_of_all_traffic() -> None:
    assert bits_per_parameter(timed("bf16")) == pytest.approx(48)


def test_activations_have_bars_whose_sum_is_all_traffic() -> None:
    some = compared([divided(method, seed, stock=100) for method in ("none", "bf16", "int8") for seed in SEEDS])
    found = traffic.data(some)
    parts = {part.quantity: of_quantity(found, part.quantity) for part in traffic.OPERATIONS.values()}
    for label, total in of_quantity(found, traffic.BITS).items():
        values = [by_arm[label].value for by_arm in parts.values() if label in by_arm]
        assert len(values) == 3, "activations, their gradients, and the all-reduce beside them"
        assert sum(values) == pytest.approx(total.value)
    traffic.draw(found, STYLE)
