"""A cost that was planted to grow with a number is found to; what cannot be told is not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.costs.growth import SIZE, along, growth_table, main
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from tests.analysis.planted_rows import SEEDS, arm, died, row, write

SIZES = (1_000_000, 10_000_000, 100_000_000)
A_TENFOLD = 0.01  # nats that ten times as many parameters add, planted


def rows(noise: float = 0.0) -> list[Row]:
    made = []
    for place, size in enumerate(SIZES):
        named = {"num_parameters": size, "model": f"gpt2-{size}"}
        for seed in SEEDS:
            wobble = noise * (1, -2, 1)[seed - 1]
            made += [row("none", seed, **named), row("int8", seed, A_TENFOLD * place + wobble, **named)]
    return made


def test_a_planted_growth_is_found_and_goes_on() -> None:
    table = growth_table(along(comparisons(rows(), tuned=()), SIZE), [3_000_000, 1e9])
    assert table.heads[1:4] == ["at 1,000,000", "at 10,000,000", "at 100,000,000"]
    assert table.heads[-2:] == ["line at 3,000,000", "line at 1,000,000,000, extrapolated"]
    ((label, first, *_, adds, _, beyond),) = table.rows
    assert (label, first) == ("int8 + int8", "+0.00 % [+0.00, +0.00]")
    assert adds == f"{100 * math.expm1(A_TENFOLD):+.2f} % [+1.01, +1.01]"
    assert beyond.startswith(f"{100 * math.expm1(3 * A_TENFOLD):+.2f} %")


def test_noise_makes_intervals_wide() -> None:
    ((*_, adds),) = growth_table(along(comparisons(rows(0.02), tuned=()), SIZE)).rows
    low, high = (float(text) for text in adds.partition("[")[2].rstrip("]").split(","))
    assert low < 0 < 100 * math.expm1(A_TENFOLD) < high


@pytest.mark.parametrize("what", [{"virtual_ranks": 2}, {"operators": {"others": "naive"}}])
def test_what_computes_keeps_nothing_apart(what: dict[str, Any]) -> None:
    largest = f"gpt2-{SIZES[-1]}"
    mixed = [Row({**r, "config": r["config"] | (what if r["model"] == largest else {})}) for r in rows()]
    assert along(comparisons(mixed, tuned=()), SIZE).values == list(SIZES)


def test_an_arm_that_lost_a_run_has_no_line() -> None:
    lost = [*rows(), *arm("int4", num_parameters=SIZES[0], model=f"gpt2-{SIZES[0]}")]
    lost += [died("int4", seed, num_parameters=SIZES[1], model=f"gpt2-{SIZES[1]}") for seed in SEEDS]
    table = growth_table(along(comparisons(lost, tuned=()), SIZE))
    line = next(line for line in table.rows if line[0] == "int4 + int4")
    assert line[1:] == ["+0.00 % [+0.00, +0.00]", "lost: seed 1 to 3", "-", "-"]


def test_comparisons_that_differ_in_more_are_not_put_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [*rows(), *arm("none", max_steps=7, num_parameters=5), *arm("int8", 0.5, max_steps=7, num_parameters=5)]
    assert list(along(comparisons(more, tuned=()), SIZE).values) == list(SIZES)
    file = str(write(tmp_path / "rows.jsonl", more))
    for name in ("seed", "model", "learning_rate"):
        with pytest.raises(SystemExit) as refused:
            main([file, "--along", name])
        assert refused.value.code == 2
        assert f"--along {name}: there are no two comparisons" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        main([file, "--along", "num_parameter"])
    assert refused.value.code == 2
    assert SIZE in capsys.readouterr().err  # what was probably meant
    assert main([file, "--along", SIZE, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("**Change of PPL against num_parameters**")


def test_of_two_models_of_one_size_the_second_is_said_to_be_left_out() -> None:
    twin = [one for name in ("none", "int8") for one in arm(name, num_parameters=SIZES[0], model="a twin")]
    table = growth_table(along(comparisons([*rows(), *twin], tuned=()), SIZE))
    assert "Left out" in table.note
    assert "1 comparison " in table.note
