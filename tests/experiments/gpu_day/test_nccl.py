"""Two ranks over NCCL on one GPU: what is said of their rows, and what each is told (a rehearsal trains, over gloo)."""

from __future__ import annotations

from typing import Any

from experiments.gpu_day.nccl import SAME, STOCK, WORLD, _environment, complaints, page


def row(loss: float, sent: int = 2_000_000) -> dict[str, Any]:
    return {"train_loss": loss, "val_loss": loss, "bytes_compressed_total": sent, "steps": 2}


def test_the_last_bit_of_a_loss_counts() -> None:
    codes = {STOCK: 0, SAME: 0}
    assert complaints(codes, {STOCK: row(7.25), SAME: row(7.25)}) == []
    assert "to the last bit" in page(codes, {STOCK: row(7.25), SAME: row(7.25)}, [])
    assert "to the last bit" not in page({STOCK: 0}, {STOCK: row(7.25)}, []), "nothing was compared"
    said = complaints(codes, {STOCK: row(7.25), SAME: row(7.250000000000001)})
    assert said == [f"{SAME}: {name} 7.250000000000001, not 7.25 as {STOCK}" for name in ("train_loss", "val_loss")]


def test_a_training_that_failed_is_named_and_the_others_are_shown() -> None:
    codes, rows = {STOCK: 0, "int8": 124, "int4": 0}, {STOCK: row(7.25, 0), "int4": row(7.5), "int8": None}
    wrong = complaints(codes, rows)
    assert wrong == ["int8: exit code 124"]
    shown = page(codes, rows, wrong)
    assert f"| {STOCK} | well | - | 7.250000 |" in shown
    assert "| int8 | exit code 124 | - | - |" in shown
    assert "| int4 | well | 1.0 | 7.500000 |" in shown
    assert "to the last bit" not in shown


def test_each_rank_has_a_host_of_its_own() -> None:
    first, second = (_environment(rank, 1234, "cuda") for rank in range(WORLD))
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    for rank, told in enumerate((first, second)):
        assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_PORT"]) == (str(rank), "2", "1234")
        assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert _environment(0, 1234, "cpu")["CUDA_VISIBLE_DEVICES"] == ""
