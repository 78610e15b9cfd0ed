"""Calibrations, rankings, break-even points and the comparison with measured cells, on planted data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from analysis.predict import scaling, speedup
from analysis.predict.__main__ import main
from analysis.predict.calibration import Calibration, straight_line
from analysis.predict.predictor import (
    BF16,
    NONE,
    Predictor,
    break_even,
    check,
    check_table,
    parse_rate,
    show_rate,
)
from analysis.predict.step_model import step_seconds, wire_bytes
from tests.analysis import planted


def cell(method: str, ms: float, rate: str = "200mbit", ranks: int = 2, **more: Any) -> dict[str, Any]:
    own = {"forward": 10.0, "backward": 20.0, "update": 4.0}
    line = {"model": "blocks", "ranks": ranks, "rate": rate, "method": f"{method} + {method}", "step_ms_p50": ms}
    return {**line, "prefetch": 1, "bucket_bytes": 0.0, "own_ms": own, "sent_bytes": {"all": 0.0}, **more}


def test_planted_parameters_are_found_again() -> None:
    calibration = Calibration(planted.document())
    link = calibration.link(2, 1e7)
    for kind, (alpha, per_byte, share) in planted.KINDS.items():
        assert link.costs[kind].alpha_s == pytest.approx(alpha)
        assert link.costs[kind].cpu_s_per_byte == pytest.approx(per_byte)
        assert link.costs[kind].share(2 << 20) == pytest.approx(share)
    codec = calibration.method("int8 + int8", 2).gradients
    assert (codec.kind, codec.bits, codec.rounds) == ("exchange", 8, 0)
    assert (codec.encode_call_s, codec.encode_s_per_byte) == pytest.approx((1e-3, 1e-9))
    assert (codec.decode_call_s, codec.decode_s_per_byte) == pytest.approx((2e-3, 0.5e-9))
    stock = calibration.method(NONE, 2)
    assert (stock.gradients.kind, stock.parameters.kind) == ("reduce_scatter", "all_gather")
    gathered, reduced = 4 * (1_000_000 + 2 * 750_000) / 2, 4 * 1_750_000 / 2
    assert wire_bytes(calibration.model("blocks", 2), stock, 2) == gathered + 2 * reduced  # gloo's all-reduce
    model = calibration.model("blocks", 2)
    assert [u.elements for u in (model.root, *model.blocks)] == [1_000_000, 500_000, 250_000]
    # 6 of 10 ms are spent outside the blocks' own forward: shared out by size
    forward = [6 * 4 / 7, 3 + 6 * 2 / 7, 1 + 6 / 7]
    assert [1e3 * u.forward_s for u in (model.root, *model.blocks)] == pytest.approx(forward)
    assert [1e3 * u.backward_s for u in (model.root, *model.blocks)] == pytest.approx([2 * f for f in forward])
    assert model.update_s == pytest.approx(4e-3)


def test_what_ranks_wait_for_each_other_is_what_nothing_else_explains() -> None:
    """Planted: waiting of 60 ms in all beside what the model accounts for, in three reduce-scatters."""
    assert Calibration(planted.document()).model("blocks", 2).meeting_s == 0
    document = planted.document()
    step = document["steps"][2]  # int8
    document["steps"] = [step]
    plain = Calibration(document)
    alone = step_seconds(plain.model("blocks", 2), plain.method("int8 + int8", 2), plain.link(2, None), 2)
    hooks = sum(c["encode_ms"] + c["decode_ms"] for op in step["ops"].values() for c in op.values())
    for call in step["ops"]["reduce_scatter"].values():
        call["wire_ms"] = (1e3 * alone + 60 - hooks - 34) / 3
    assert Calibration(document).model("blocks", 2).meeting_s == pytest.approx(0.02)


def test_more_ranks_than_cores_share_them() -> None:
    shared, own = (Calibration(planted.document(cores=2), shared) for shared in (True, False))
    assert shared.model("blocks", 8).compute_s == pytest.approx(4 * 30e-3 + 4e-3)
    assert own.model("blocks", 8).compute_s == pytest.approx(30e-3 + 1e-3)
    assert shared.model("blocks", 8).update_s == pytest.approx(
        4 * 4e-3 / 4
    )  # a quarter of the shard, four times as slow
    assert own.method("int8 + int8", 8).gradients.encode_call_s == pytest.approx(1e-3)
    assert shared.method("int8 + int8", 8).gradients.encode_call_s == pytest.approx(4e-3)
    assert own.link(8, None).costs["exchange"].alpha_s == pytest.approx(7 * 1e-3)  # seven peers


def test_straight_lines_have_no_negative_part() -> None:
    assert straight_line([(1.0, 3.0), (2.0, 5.0)]) == pytest.approx((1, 2))
    assert straight_line([(1.0, 5.0), (2.0, 3.0)]) == pytest.approx((4, 0))
    assert straight_line([(1.0, 0.0), (2.0, 3.0)]) == pytest.approx((0, 6 / 5))
    assert straight_line([(2.0, 3.0), (2.0, 5.0)]) == pytest.approx((0, 2))


def test_break_even_is_where_both_are_equal() -> None:
    predictor = Predictor(Calibration(planted.document()), "blocks", 2)
    below = {p.method: p for p in predictor.ranked(1e9)}
    rate = below["int8 + int8"].below_none
    assert rate is not None
    assert predictor.step_s("int8 + int8", rate) == pytest.approx(predictor.step_s(NONE, rate), rel=1e-9)
    assert predictor.step_s("int8 + int8", rate / 2) < predictor.step_s(NONE, rate / 2)
    assert predictor.step_s("int8 + int8", rate * 2) > predictor.step_s(NONE, rate * 2)
    assert below["identity + identity"].below_bf16 is None  # the same codec for twice the bytes
    assert below[NONE].below_none is None


def test_break_even_of_who_always_or_never_wins() -> None:
    assert break_even(lambda rate: 1.0, lambda rate: 2.0) == math.inf
    assert break_even(lambda rate: 2.0, lambda rate: 1.0) is None
    assert break_even(lambda rate: 1.0, lambda rate: 1e9 / rate) == pytest.approx(1e9)


def test_the_ranking_is_by_step_time() -> None:
    predictor = Predictor(Calibration(planted.document()), "blocks", 2)
    assert [p.method for p in predictor.ranked(1e8)] == ["int8 + int8", BF16, "identity + identity", NONE]
    assert predictor.ranked(1e12)[0].method == NONE  # no codec


def test_check_finds_planted_errors() -> None:
    calibration = Calibration(planted.document())
    predictor = Predictor(calibration, "blocks", 2)
    true = {m: 1e3 * predictor.step_s(f"{m} + {m}", 2e8) for m in ("none", "identity", "bf16", "int8")}
    factors = {"none": 1.0, "identity": 1.05, "bf16": 0.95, "int8": 1.5}
    cells = [cell(m, true[m] / factors[m]) for m in true]
    checked = check(calibration, [*cells, cell("unknown", 1.0)])
    assert [c.error for c in checked] == pytest.approx([factors[m] - 1 for m in true])
    text = check_table(checked)
    assert "4 cells: median error 5.0 %" in text
    assert "worst 50.0 %" in text
    assert "1 cells beyond" in text


def test_speedups_are_over_the_faster_baseline() -> None:
    cells = [
        cell("none", 600.0),
        cell("identity", 400.0),
        cell("bf16", 220.0),
        cell("int8", 120.0, sent_bytes={"all": 1.65e6}),  # 66 ms at 200 Mbit/s, and 34 ms of its own
        cell("int4", 130.0),
    ]
    (found,) = speedup.speedups(cells, "blocks")
    assert (found.method, found.baseline, found.rate) == ("int8 + int8", "identity + identity", "200mbit")
    assert (found.over_baseline, found.over_bf16) == (pytest.approx(400 / 120), pytest.approx(220 / 120))
    assert found.of_allowed == pytest.approx((34 + 66) / 120)
    assert found.communication == pytest.approx(1 - 34 / 400)
    with pytest.raises(ValueError, match="no rate has"):
        speedup.speedups(cells[:3], "blocks")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration, matrix, chart = tmp_path / "calibration.json", tmp_path / "matrix.jsonl", tmp_path / "chart.png"
    calibration.write_text(json.dumps(planted.document()))
    matrix.write_text("".join(json.dumps(cell(m, 300.0)) + "\n" for m in ("none", "identity", "bf16", "int8")))
    where = ["--calibration", str(calibration)]
    ranking = tmp_path / "ranking.json"
    flags = ["--rate", "100mbit", "--chart", str(chart), "--measured", str(matrix), "--json", str(ranking)]
    assert main([*where, *flags]) == 0
    rows = {row["method"]: row for row in json.loads(ranking.read_text(), parse_constant=pytest.fail)}
    assert rows[BF16]["below_bf16"] is None
    assert rows["int8 + int8"]["step_s"] < rows[NONE]["step_s"]
    assert capsys.readouterr().out.splitlines()[3].startswith("int8 + int8")
    assert chart.stat().st_size > 10_000
    assert main([*where, "--check", str(matrix)]) == 0
    assert "4 cells" in capsys.readouterr().out
    assert speedup.main([str(matrix)]) == 0
    assert "1.00x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--rate", "fast"], "rate: got 'fast'"),
        (["--world_size", "1"], "--world_size"),
        (["--model", "huge"], "model 'huge'"),
        (["--check", "no/such/file.jsonl"], "no/such/file.jsonl"),
        (["--calibration", "no/such/file.json"], "no/such/file.json"),
    ],
)
def test_mistakes_are_one_message(
    argv: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = tmp_path / "calibration.json"
    calibration.write_text(json.dumps(planted.document()))
    with pytest.raises(SystemExit) as stop:
        main(["--calibration", str(calibration), *argv])
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


def test_a_document_without_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match="no collectives, steps"):
        Calibration({"machine": {"cores": 2}})


def test_rates() -> None:
    assert [parse_rate(t) for t in ("200mbit", "1gbit", "none")] == [2e8, 1e9, None]
    assert [show_rate(r) for r in (1.34e9, 2e8, None, math.inf)] == ["1.34 Gbit/s", "200 Mbit/s", "-", "any"]


def test_scaling_on_paper() -> None:
    """At 1 Gbit/s the bytes decide: 3 x 16 bits a parameter, once the root is counted twice."""
    benchmark = json.loads((Path(__file__).parents[3] / "results/reference/benchmarks/codecs_cpu.json").read_text())
    entries = {(e.network, e.world, e.method): e.step_s for e in scaling.predict(benchmark)}
    parameters = scaling.BLOCKS * scaling.BLOCK_PARAMETERS + scaling.ROOT_PARAMETERS
    assert parameters == pytest.approx(8.03e9, rel=1e-3)
    moved = 2 * (3 * parameters - scaling.ROOT_PARAMETERS) * 1023 / 1024 / (1e9 / 8)
    assert entries["1 Gbit/s", 1024, "bf16 / bf16 (stock)"] == pytest.approx(moved, rel=0.01)
    assert entries["1 Gbit/s", 8, "int4 / int4"] < entries["1 Gbit/s", 8, "int8 / int8"]
