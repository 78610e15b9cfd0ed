"""Settings beside each other have names that tell them apart, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.comparing.groups import several
from analysis.rows.comparing.settings import setting_of
from analysis.rows.comparing.told_apart import MOST, told_apart
from tests.analysis.planted_rows import arm, row


def names(*changes: Mapping[str, Any]) -> list[str]:
    return told_apart([setting_of(row(**dict(change)), tuned=()) for change in changes])


def test_a_setting_is_named_by_what_most_have_not() -> None:
    assert names({}, {"max_steps": 400}, {}, {"learning_rate": 0.1, "max_length": 64}) == [
        MOST,
        "max_steps 400",
        MOST,
        "learning_rate 0.1, max_length 64",
    ]
    assert names({}, {}, {"world_size": 4}, {"world_size": 8, "virtual_ranks": 8}) == [MOST, MOST, "4 ranks", "8 ranks"]
    assert names({}, {}, {"link_rate_asked": 2e8, "link_delay_ms": 5.0}) == [MOST, MOST, "200 Mbit/s, 5 ms"]


def test_files_and_folders_are_named_without_their_place() -> None:
    unlike = [{}, {"data_path": "some/code.jsonl.gz"}, {"model": None, "model_dir": "starts/llama-7d"}]
    plain = {"data_path": None, "model_dir": None}
    rows = [{**row(), "config": {**row()["config"], **plain, **one}} for one in unlike]
    said = told_apart([setting_of(one, tuned=()) for one in rows])
    assert said == [MOST, "data code", "model llama-7d"]
    rows[0]["config"]["data_path"] = "some/code.jsonl.gz"
    assert told_apart([setting_of(one, tuned=()) for one in rows]) == [MOST, MOST, "data embedded, model llama-7d"]


def test_a_text_from_a_row_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in "".join(names({}, {}, {"model": "a\x1b[2J"}))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ([{}, {"max_steps": 400}], 1),
        ([{}], 0),
        ([{}, {"world_size": 4}], 0),  # along world sizes
        ([{}, {"link_rate_asked": 1e9}], 0),  # along links
    ],
)
def test_comparisons_of_several_settings_are_one_group(changes: list[dict[str, Any]], count: int) -> None:
    rows = [one for change in changes for method in ("none", "int8") for one in arm(method, **change)]
    assert [len(group) for group in several(comparisons(rows))] == [len(changes)] * count


def test_a_comparison_that_shares_no_arm_or_has_no_baseline_is_left_out() -> None:
    alike = [one for steps in (100, 400) for method in ("none", "int8") for one in arm(method, max_steps=steps)]
    other = [*arm("none", max_steps=7), *arm("int4", max_steps=7), *arm("int8", max_steps=9)]
    (group,) = several(comparisons([*alike, *other]))
    assert {dict(c.setting.config)["max_steps"] for c in group} == {"100", "400"}
