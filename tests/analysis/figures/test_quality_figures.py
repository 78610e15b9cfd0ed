"""The figures of quality show what was planted: every arm, at the place that the statistics give."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import fidelity, loss_curves, pareto, system, time_to_quality as times_figure
from analysis.figures.drawing import fonts
from analysis.figures.drawing.style import Style
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.curves.of_arms import training_curves
from analysis.statistics import time_to_quality as times
from analysis.statistics.pareto import Point, Traffic, front, points
from tests.analysis import planted_curves, planted_rows
from tests.analysis.planted_rows import SEEDS, arm, diverged, divided, row


def lines(figure: Figure, label: str) -> list[Line2D]:
    """Of all axes, those of an arm."""
    return [line for axes in figure.axes for line in axes.lines if line.get_label() == "_" + label]


def spot(figure: Figure, label: str) -> tuple[float, float]:
    """Where an arm's mark is."""
    (line,) = lines(figure, label)
    return float(line.get_xdata()[0]), float(line.get_ydata()[0])  # type: ignore[index]


def words(figure: Figure) -> str:
    """All text in the figure."""
    texts = [text.get_text() for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels())]
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += [] if legend is None else [text.get_text() for text in legend.get_texts()]
    return "\n".join([*texts, figure.get_supxlabel()])


def planted(worse: dict[str, float], noise: float = 0.001) -> Comparison:
    """Arms whose losses are so much above the baseline's, a little more for later seeds; bytes as in planted_rows."""
    rows = arm("none")
    for method, nats in worse.items():
        rows += [row(method, seed, nats + noise * (seed - 2)) for seed in (1, 2, 3)]
    return comparisons(rows)[0]


def test_marks_and_intervals_are_the_statistics() -> None:
    found = points(planted({"int8": 0.004, "int4": 0.05}))
    figure = pareto.draw(found, Style())
    assert spot(figure, "none")[0] == pytest.approx(1.0)
    x, y = spot(figure, "int8 + int8")
    assert x == pytest.approx(4.0)
    assert y == pytest.approx(100 * math.expm1(0.004))
    # std of the three differences is 0.001 nats; Student's t for 2 degrees of freedom at 97.5 % is 4.3027
    half = 4.302653 * 0.001 / math.sqrt(3)
    spans = {
        line.get_xdata()[0]: list(line.get_ydata()) for line in figure.axes[0].lines if line.get_gid() == "interval"
    }  # type: ignore[index,arg-type]
    expected = [100 * math.expm1(0.004 - half), 100 * math.expm1(0.004 + half)]
    assert spans[x] == pytest.approx(expected)


def test_hollow_marks_are_undecided_ones() -> None:
    found = points(planted({"int8": 0.004, "int4": 0.0099}))
    assert [point.verdict for point in found[1:]] == ["within", "undecided"]
    figure = pareto.draw(found, Style())
    assert [lines(figure, label)[0].get_markerfacecolor() for label in ("int8 + int8", "int4 + int4")] == [
        "#0072B2",
        "white",
    ]


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    found = [
        Point(name, "int8", ratio, change, None, None, "within", 3, 0)
        for name, ratio, change in (
            ("base", 1.0, 0.0),
            ("beaten", 2.0, 0.03),
            ("good", 3.0, 0.01),
            ("tie", 3.0, 0.02),
            ("strong", 9.0, 0.5),
            ("lost", 20.0, math.inf),
        )
    ]
    assert [point.label for point in front(found)] == ["base", "good", "strong"]
    figure = pareto.draw(found, Style())
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == "front"]
    assert list(line.get_xdata()) == [1.0, 3.0, 9.0]  # type: ignore[arg-type]


def test_an_arm_that_sends_next_to_nothing_stands_at_the_edge_with_its_ratio() -> None:
    names = {"none": 1.0, "int8": 4.0, "int4": 8.0, "zero": 2e6}
    found = [Point(name, name, ratio, 0.1, None, None, "worse", 3, 0) for name, ratio in names.items()]
    figure = pareto.draw(found, Style())
    assert [spot(figure, name)[0] for name in ("int4", "zero")] == [8.0, 24.0]
    assert "zero (2,000,000x)" in words(figure)


def test_one_diverged_seed_puts_the_arm_into_the_band_with_its_name() -> None:
    rows = [*arm("none"), *arm("bf16", 0.001), *arm("int4", 0.01, seeds=(1, 2)), diverged("int4", 3)]
    found = points(comparisons(rows)[0])
    figure = pareto.draw(found, Style())
    axes = figure.axes[0]
    heights = {tick.get_text(): height for tick, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    assert spot(figure, "int4 + int4")[1] == heights["diverged\nor missing"]
    assert heights["diverged\nor missing"] > spot(figure, "bf16 + bf16")[1]
    assert "int4 + int4 (1/3)" in words(figure)
    assert axes.get_ylim()[1] > heights["diverged\nor missing"]


def test_an_arm_that_never_counted_a_byte_is_named_below() -> None:
    rows = [*arm("none"), *arm("bf16", 0.001), *(planted_rows.died("int4", seed) for seed in (1, 2, 3))]
    figure = pareto.draw(points(comparisons(rows)[0]), Style())
    assert "failed before any byte was counted: int4 + int4 (3/3)" in figure.get_supxlabel()


def test_gradients_alone_leave_out_arms_with_compressed_parameters() -> None:
    rows = [*arm("none"), *arm("int8", parameters="none"), *arm("int8"), *arm("identity")]
    found = points(comparisons(rows)[0], "gradients")
    assert {point.label: point.ratio for point in found} == {"none": 1.0, "int8": 4.0, "identity + identity": 1.0}


def test_activations_are_placed_among_all_traffic_and_in_no_direction_of_fsdp() -> None:
    (comparison,) = comparisons([divided(method, seed) for method in ("none", "bf16", "int8") for seed in SEEDS])
    assert [p.ratio for p in points(comparison)] == [1.0, 2.0, pytest.approx(3.2)]
    for traffic in ("gradients", "parameters"):
        with pytest.raises(ValueError, match="alone"):
            points(comparison, traffic)  # type: ignore[arg-type]


def test_each_direction_has_the_arms_that_compress_it_alone_and_all_traffic_those_that_compress_both() -> None:
    rows = [*arm("none"), *arm("int8", parameters="none"), *arm("identity", parameters="int4"), *arm("bf16")]
    there = comparisons(rows)[0]
    labels = {traffic: [point.label for point in points(there, traffic)] for traffic in get_args(Traffic)}
    assert labels == {
        "all": ["none", "bf16 + bf16"],
        "gradients": ["none", "int8"],
        "parameters": ["none", "identity + int4"],
    }
    (_, four_bits) = points(there, "parameters")
    assert four_bits.ratio == 8.0
    one_sided = comparisons(rows[:-3])[0]
    assert [point.label for point in points(one_sided)] == ["none", "int8", "identity + int4"]
    with pytest.raises(ValueError, match=r"no arm of .* compresses parameters alone"):
        points(comparisons([*arm("none"), *arm("int8")])[0], "parameters")


def test_a_line_joins_the_strengths_of_one_method_and_one_of_them_bears_its_name() -> None:
    strong, usual, weak, other = {"ratio": 0.001}, {}, {"ratio": 0.2}, {"values": "int8"}
    rows = arm("none")
    for settings, worse, sent in ((strong, 0.9, 1e5), (usual, 0.3, 1e6), (weak, 0.1, 2e7), (other, 0.31, 5e5)):
        rows += arm("topk", worse, comm_config_json=settings, bytes_compressed_total=sent)
    figure = pareto.draw(points(comparisons(rows)[0]), Style())
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == "series"]
    assert list(line.get_ydata()) == pytest.approx([100 * math.expm1(nats) for nats in (0.1, 0.3, 0.9)])  # type: ignore[arg-type]
    names = [text.get_text() for text in figure.axes[0].texts]
    assert {"topk + topk", "ratio=0.2", "ratio=0.001", "topk values=int8 + topk"} <= set(names)


@pytest.mark.parametrize("traffic", ["all", "gradients"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_where_no_bytes_are_known_there_is_no_compression_to_draw(traffic: Traffic, world_size: int) -> None:
    nothing = {"world_size": world_size, "elements_by_op": None}
    rows = [*arm("none", **nothing), *arm("int8", parameters="none", **nothing)]
    with pytest.raises(ValueError, match=r"quality against compression: no arm of gpt2-nano, . ranks?, .* has both"):
        points(comparisons(rows)[0], traffic)


def test_where_the_baseline_failed_no_change_is_known() -> None:
    rows = [*(planted_rows.died("none", seed) for seed in (1, 2, 3)), *arm("int8")]
    with pytest.raises(ValueError, match=r"no arm of .* has both"):
        points(comparisons(rows)[0])


def test_no_baseline_is_an_error_that_names_the_arms() -> None:
    with pytest.raises(ValueError, match=r"needs a baseline; .* has int8 \+ int8"):
        points(comparisons(arm("int8"))[0])


def crowd() -> list[Point]:
    """Twenty-four arms, many of them close together, some diverged."""
    methods = ["int8", "int4", "qsgd", "topk", "powersgd", "onebit", "bf16", "dgc"]
    found = [Point("none", "none", 1.0, 0.0, None, None, "within", 3, 0, True)]
    for i in range(24):
        change = math.inf if i % 11 == 5 else 0.002 * (i % 7) * 1.9 ** (i // 7)
        name = f"{methods[i % 8]} setting={i} + delta"
        ends = (None, None) if math.isinf(change) else (change - 0.003, change + 0.003)
        found.append(Point(name, methods[i % 8], 1.5 * 1.12**i, change, *ends, "undecided", 3, 0))
    return found


@pytest.mark.parametrize("style", [Style(), Style("print", "single"), Style("slides")], ids=str)
def test_every_arm_of_a_crowd_is_named_and_no_name_covers_another(style: Style) -> None:
    figure = pareto.draw(crowd(), style)
    assert all(point.label in words(figure) for point in crowd())
    figure.draw_without_rendering()
    named = [text for text in figure.axes[0].texts if text.get_text()]
    assert not overlaps(figure.axes[0], named)


def overlaps(axes: Axes, texts: list[Any]) -> list[str]:
    """Pairs of texts that share ink's room, and texts over marks."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    found = [f"{a} / {b}" for i, (a, one) in enumerate(boxes) for b, other in boxes[:i] if one.overlaps(other)]
    marks = [line for line in axes.lines if str(line.get_label()).startswith("_") and line.get_marker() != "None"]
    for line in marks:
        x, y = axes.transData.transform(line.get_xydata()[0])  # type: ignore[index]
        found += [f"{name} on {line.get_label()}" for name, box in boxes if box.contains(x, y)]
    return found


@pytest.fixture
def trained(tmp_path: Path) -> Comparison:
    """Three arms with curves: int4's second seed failed half way."""
    rows = planted_curves.arm(tmp_path, "none")
    rows += planted_curves.arm(tmp_path, "int8", worse=0.01, error=0.02)
    rows += planted_curves.arm(tmp_path, "int4", worse=0.2, error=0.2, seeds=(1,))
    rows.append(planted_curves.run(tmp_path, planted_rows.died("int4", 2), 0.2, 0.2, last_step=50))
    return comparisons(rows)[0]


@pytest.mark.parametrize("columns", ["single", "double"])
def test_loss_curves_and_how_far_they_are_above_the_baseline(trained: Comparison, columns: Any) -> None:
    found = training_curves(trained, "train_loss").curves
    figure = loss_curves.draw(found, Style(columns=columns))
    losses, above = lines(figure, "int8 + int8")
    assert list(losses.get_ydata()) == pytest.approx(found[1].mean)  # type: ignore[arg-type]
    assert list(above.get_ydata())[-1] == pytest.approx(0.01)  # type: ignore[arg-type]
    assert all(label in words(figure) for label in ("none", "int8 + int8", "int4 + int4"))
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [float(line.get_xdata()[0]) for line in crosses] == [50.0]  # type: ignore[index]
    assert "mean and range of 2-3 seeds; cross: a run failed or diverged" in figure.get_supxlabel().replace("\n", " ")


def test_smoothing_is_stated(trained: Comparison) -> None:
    found = training_curves(trained, "train_loss", smooth=3).curves
    assert "moving mean of 3 points" in loss_curves.draw(found, Style(), smooth=3).get_supxlabel()


def test_names_at_the_ends_of_lines_are_apart_and_in_the_figure(trained: Comparison) -> None:
    figure = loss_curves.draw(training_curves(trained, "train_loss").curves, Style())
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[-1].texts if text.get_text()]
    assert len(boxes) == 3
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_the_gradients_error_over_steps(trained: Comparison) -> None:
    found = {name: training_curves(trained, name).curves for name in fidelity.QUANTITIES}
    figure = fidelity.draw(found, Style())
    error, cosine, residual = lines(figure, "int8 + int8")
    assert list(error.get_xdata()) == [25, 50, 75, 100]  # type: ignore[arg-type]
    for line, value in ((error, 0.02), (cosine, 0.99), (residual, 0.04)):
        assert list(line.get_ydata()) == pytest.approx([value] * 4)  # type: ignore[arg-type]
    assert not lines(figure, "none")


def test_no_gradient_error_at_all_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match="train with --grad_error_every 20"):
        fidelity.draw({}, Style())


def test_times_to_quality_are_drawn_and_misses_stand_above(trained: Comparison) -> None:
    runs = [run for runs in trained.arms for run in runs.runs.values()]
    ms = {"none": 900.0, "int8": 300.0}
    behind = [row(method, link_rate_asked=1e8, step_time_ms_p50=ms[method]) for method in ms]
    found = times.times(trained, [*runs, *behind], [1e8, None], target_ppl=math.exp(5.05))
    figure = times_figure.draw(found, Style())
    for label, seconds in (("none", 90.0), ("int8 + int8", 30.0)):
        line = lines(figure, label)[0]
        assert list(line.get_xdata()) == [0, 1]  # type: ignore[arg-type]
        assert line.get_ydata()[0] == pytest.approx(seconds)  # type: ignore[index]
    missed = [line for line in figure.axes[0].lines if line.get_gid() == "miss"]
    assert [line.get_color() for line in missed] == ["#56B4E9"]  # int4, without a limit; behind the link nothing ran
    assert missed[0].get_ydata()[0] > 90  # type: ignore[index,operator]


def test_every_figure_has_its_labels_in_chinese(trained: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese", lambda: "DejaVu Sans")  # the machine may have no other; boxes for letters
    style = Style(language="zh")
    evaluated = training_curves(trained, "val_loss", "tokens").curves
    runs = [run for runs in trained.arms for run in runs.runs.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        drawn = [
            system.draw(style),
            system.draw(Style("print", "single", "zh")),
            pareto.draw(points(trained), style, foot="3"),
            loss_curves.draw(evaluated, style, quantity="val_loss", along="tokens"),
            fidelity.draw({"grad_cos_sim": training_curves(trained, "grad_cos_sim").curves}, style, smooth=3),
            times_figure.draw(times.times(trained, runs, [None]), style),
        ]
    assert "验证集困惑度变化" in drawn[2].axes[0].get_ylabel()
