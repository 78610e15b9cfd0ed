"""Cheaters are found, and honest methods are not accused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import comm_compress as cc
from analysis.checks.__main__ import main
from analysis.checks.fairness import of_rows
from analysis.checks.row_checks import MARGIN_BITS, too_accurate
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.rounds import Exchange, Reduced
from comm_compress.drive import simulate
from comm_compress.methods.identity import Identity, IdentityConfig
from fsdp_lab.results import load
from tests.analysis.planted_rows import fair, row, write

ROOT = Path(__file__).resolve().parents[3]
SOUND = {"status": "ok", "run_name": "r", "steps": 20, "step_time_ms_p50": 9.0, "warmup_steps_excluded": 5}


class Telepath(Identity):
    """One byte a rank over the network; the gradients go by memory that all ranks share."""

    def __init__(self) -> None:
        super().__init__(IdentityConfig())
        self.shared: dict[int, torch.Tensor] = {}

    def reduce_scatter(self, rows: Any, state: Any) -> Any:
        self.shared[state.rank] = rows
        layout = Layout(Field("values", torch.uint8, 1, "values"))
        message = Encoded.empty(rows.shape[0], rows.shape[1], layout, rows.device)
        yield Exchange(message)
        return Reduced(sum(self.shared[r][state.rank] for r in sorted(self.shared)), message)


def row_of(compressor: Compressor, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """The row of a run in which ``compressor`` reduced ``inputs`` once."""
    world = len(inputs)
    states = simulate.states(world)
    outcome = simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)])
    exact = sum(x.double() for x in inputs)
    error = torch.stack([reduced.total for reduced in outcome.results]) - exact
    sent = sum(count.total for count in outcome.sent)
    raw = sum(x[1:].nbytes for x in inputs)
    return SOUND | {
        "world_size": world,
        "comm_dtype": "fp32",
        "grad_rel_error": float(error.norm() / exact.norm()),
        "bytes_raw_by_op": {"reduce_scatter": raw},
        "bytes_compressed_by_op": {"reduce_scatter": sent},
    }


def gradients(world: int, alike: bool, peaked: bool) -> list[torch.Tensor]:
    """``[W, 4096]`` a rank: one gradient for all or one each, Gaussian or a few large elements among tiny ones."""
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(world, 4096, generator=generator) for _ in range(world)]
    if peaked:
        found = [x * torch.rand(x.shape, generator=generator).pow(8) for x in found]
    return [found[0]] * world if alike else found


@pytest.mark.parametrize("world", [2, 4])
def test_an_exact_mean_for_a_byte_is_found_out(world: int) -> None:
    (finding,) = of_rows([row_of(Telepath(), gradients(world, alike=False, peaked=False))])
    assert (finding.severity, finding.check) == ("error", "too_accurate")


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("peaked", [False, True])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("identity", {}),
        ("bf16", {}),
        ("fp8", {}),
        ("int8", {}),
        ("int8", {"entropy": "rans"}),
        ("int4", {}),
        ("int4", {"entropy": "zstd"}),
        ("topk", {"ratio": 0.01}),
        ("topk", {"ratio": 0.001}),
        ("onebit", {}),
    ],
)
def test_honest_methods_are_not_accused(method: str, settings: dict[str, Any], alike: bool, peaked: bool) -> None:
    compressor = cc.make(method, settings)
    assert compressor is not None
    assert of_rows([row_of(compressor, gradients(2, alike, peaked))]) == []


def test_the_bound_is_where_the_text_puts_it() -> None:
    row = SOUND | {"world_size": 2, "comm_dtype": "bf16"}
    row |= {"bytes_raw_by_op": {"reduce_scatter": 1600}, "bytes_compressed_by_op": {"reduce_scatter": 400}}  # 4 bits
    least = 2 ** -(4 + MARGIN_BITS) / 2
    assert not list(too_accurate(row | {"grad_rel_error": 1.01 * least}))
    assert list(too_accurate(row | {"grad_rel_error": 0.99 * least}))
    assert not list(too_accurate(row | {"grad_rel_error": 0.0, "bytes_compressed_by_op": {"reduce_scatter": 800}}))
    assert not list(too_accurate(row | {"grad_rel_error": None}))
    assert not list(too_accurate(row))


def test_sixteen_bits_carry_the_gradients_of_sixteen_bit_arithmetic() -> None:
    """Exactly, though they are reduced in float32; eight do not, nor sixteen a sum of micro-batches."""
    row = SOUND | {"world_size": 2, "comm_dtype": "fp32", "param_dtype": "bf16", "gradient_accumulation_steps": 1}
    row |= {"grad_rel_error": 0.0, "bytes_raw_by_op": {"reduce_scatter": 3200}}
    sixteen = row | {"bytes_compressed_by_op": {"reduce_scatter": 1600}}
    assert not list(too_accurate(sixteen))
    assert list(too_accurate(sixteen | {"param_dtype": "fp32"}))
    assert list(too_accurate(sixteen | {"gradient_accumulation_steps": 2}))
    assert list(too_accurate(row | {"bytes_compressed_by_op": {"reduce_scatter": 700}}))


def test_untrusted_rows_and_missing_warm_up() -> None:
    rows = [
        SOUND | {"bytes_trusted": True},
        SOUND | {"bytes_trusted": None},
        SOUND | {"run_name": "short", "warmup_steps_excluded": 1},
        SOUND | {"run_name": "cold", "warmup_steps_excluded": 0},
        SOUND | {"run_name": "lie", "bytes_trusted": False, "interface_bytes_total": 80, "interface_steps": 2},
        SOUND | {"run_name": "died", "status": "failed", "bytes_trusted": False},
    ]
    found = sorted((f.subject, f.check, f.severity) for f in of_rows(rows))
    assert found == [
        ("cold", "warm_up_counted", "error"),
        ("lie", "untrusted_bytes", "error"),
        ("short", "warm_up_counted", "warning"),
    ]


def test_no_reference_row_is_found_out() -> None:
    assert of_rows(load(ROOT / "results/reference/fresh_weights/all_methods.jsonl")) == []


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", [row("int8", 1), row("int8", 2, bytes_trusted=False)])
    file.write_text(file.read_text().replace("\n", "\n{half a li\n\n", 1))
    assert main([str(file), "--json", str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr()
    assert "line 2" in said.err
    assert "2 rows, 1 line left out, 1 finding" in said.out
    assert json.loads((tmp_path / "found.json").read_text())[0]["check"] == "untrusted_bytes"
    assert main([str(write(file, fair()))]) == 0
    assert "15 rows, 0 findings" in capsys.readouterr().out
    assert main([str(file), "--select", "seed=1"]) == 1
    assert "one seed, so no interval: all 5 arms" in capsys.readouterr().out
    assert main([str(file), "--baseline", "lion"]) == 2
    assert main([str(file), "--select", "seed=9"]) == 2
    assert "they have 1, 2, 3" in capsys.readouterr().err
    assert main([str(tmp_path / "none.jsonl")]) == 2
    file.write_text("")
    assert main([str(file)]) == 2
