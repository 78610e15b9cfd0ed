"""How well steps behind links are predicted from rows: each run behind a link against the same run without one."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.predict.behind import step_seconds_behind, traffic
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import Checked, show_rate
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.groups import without_link
from analysis.rows.comparing.settings import Setting, setting_of
from analysis.rows.reading import Row, is_number


def checked(rows: Iterable[Row], calibration: Calibration) -> list[Checked]:
    """The median step of every row behind a link, and what is predicted for it from the row without a limit; the mean
    step where replicas synchronise now and then, as a median would leave that out.

    That row has the same setting, arm and seed; of several the last counts. ValueError where no row has one."""
    timed = [row for row in rows if is_number(row.get(_step(row))) and not row.get("link_delay_ms")]
    free = {_run(row): row for row in timed if row.get("link_rate_asked") is None}
    cells = [
        _checked(row, own, calibration)
        for row in timed
        if row.get("link_rate_asked") is not None and (own := free.get(_run(row))) is not None
    ]
    known = [cell for cell in cells if cell is not None]
    if not known:
        raise ValueError("no run behind a link has a row of the same setting, arm and seed without a limit")
    return known


def _run(row: Row) -> tuple[Setting, Arm, int]:
    return without_link(setting_of(row)), Arm.of(row), row["seed"]


def _checked(row: Row, own: Row, calibration: Calibration) -> Checked | None:
    exchanged, rate, world = traffic(own, steady=True), float(row["link_rate_asked"]), row["world_size"]
    if exchanged is None:
        return None
    link, free = calibration.link(world, rate / 8), calibration.link(world, None)
    predicted = step_seconds_behind(own[_step(own)] / 1e3, exchanged, link, free)
    model, arm = str(row["config"].get("model")), Arm.of(row, across_training=True)
    return Checked(model, world, show_rate(rate), arm.label, row[_step(row)], 1e3 * predicted)


def _step(row: Row) -> str:
    """The field with the row's typical step: steps are alike, or every so many of them exchange something."""
    config = row["config"]
    local_steps = config.get("outer", "none") != "none" or config.get("optimizer") == "zero_one_adam"
    return "step_time_ms_mean" if local_steps else "step_time_ms_p50"
