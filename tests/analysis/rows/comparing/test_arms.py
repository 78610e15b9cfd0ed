"""Runs that differ in nothing but their communication and their seed are compared, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.checks.sixteen_bits import is_plain
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import comparisons, titles
from analysis.rows.comparing.setting_roles import LATER, arm_settings, side_settings
from analysis.rows.comparing.settings import setting_of
from analysis.rows.reading import Row
from analysis.statistics.names import called, full, named
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import resolve
from tests.analysis.planted_rows import arm, died, diverged, fair, row


def said_by(config: TrainConfig | EagleConfig, **settings: Any) -> Row:
    """A row as the trainer of these settings writes it; ``settings`` are of its config alone."""
    written = config.row()
    return Row({**row(), "schema_version": 4, **written, "config": {**written["config"], **settings}})


@pytest.mark.parametrize("config", [TrainConfig.of(lora_rank=2), EagleConfig()], ids=lambda config: config.program)
def test_a_row_says_which_of_its_settings_are_the_arms_and_which_do_not_affect_training(
    config: TrainConfig | EagleConfig,
) -> None:
    kind, written = type(config), said_by(config)
    unimportant = {name for name, spec in kind.specs().items() if not spec.affects_training}
    communication = set(kind.groups()["comm"].__dataclass_fields__)  # type: ignore[attr-defined]
    assert side_settings(written) == unimportant
    assert set(arm_settings(written)) == communication
    compared = {name for name, _ in setting_of(written, tuned=()).config}
    assert compared == kind.specs().keys() - unimportant - communication - {"seed", *LATER}
    assert Arm.of(written).further == ()


def test_rows_of_version_3_and_of_the_version_after_it_are_compared_with_each_other() -> None:
    new = said_by(TrainConfig.of(model="gpt2-nano", virtual_ranks=2))
    later = ("trackers", "system", "fsdp_keep_frozen", "activation", "activation_grad", "replica_compress", *LATER)
    written = {name: value for name, value in new["config"].items() if name not in later}
    config = {name: value for name, value in written.items() if not name.startswith(("outer", "optimizer_"))}
    old = Row({**new, "schema_version": 3, "arm_settings": None, "side_settings": None, "config": config})
    assert (Arm.of(new), setting_of(new)) == (Arm.of(old), setting_of(old))
    other = said_by(TrainConfig.of(model="gpt2-nano", virtual_ranks=2, operators={"others": "naive"}))
    assert setting_of(other) != setting_of(old)


def test_runs_with_other_adapters_are_not_compared_and_those_without_are_as_before_there_were_any() -> None:
    def with_adapters(**settings: Any) -> Row:
        return said_by(resolve(TrainConfig.of(model="gpt2-nano", **settings), has_gpu=False))

    whole, rank_8 = with_adapters(), with_adapters(lora_rank=8)
    others = [{"lora_rank": 4}, {"lora_alpha": 1}, {"lora_targets": "c_fc"}, {"lora_dropout": 0.5}]
    settings = {
        setting_of(row) for row in (whole, rank_8, *(with_adapters(lora_rank=8, **other) for other in others[1:]))
    }
    assert len(settings | {setting_of(with_adapters(**others[0]))}) == 6
    assert setting_of(with_adapters(lora_rank=8, lora_alpha=16, lora_targets="attn.c_attn")) == setting_of(rank_8)
    assert "LoRA rank 8" in setting_of(rank_8).label
    assert "LoRA" not in setting_of(whole).label
    before = {name: value for name, value in whole["config"].items() if not name.startswith("lora_")}
    assert setting_of(Row({**whole, "config": before})) == setting_of(whole)
    kept = with_adapters(lora_rank=8, fsdp_keep_frozen=True)
    assert setting_of(kept) == setting_of(rank_8), "how ranks communicate, so an arm"
    assert Arm.of(kept).label == "none, fsdp_keep_frozen=true"


def test_a_setting_that_analysis_has_never_heard_of_is_what_its_row_says_it_is() -> None:
    before = said_by(TrainConfig())
    aside = Row({**before, "config": before["config"] | {"log_colour": "red"}})
    aside = Row({**aside, "side_settings": [*before["side_settings"], "log_colour"]})
    assert (Arm.of(aside), setting_of(aside)) == (Arm.of(before), setting_of(before))

    def communicating(lanes: int) -> Row:
        known = before["arm_settings"] | {"fsdp_lanes": 1}
        return Row({**before, "config": before["config"] | {"fsdp_lanes": lanes}, "arm_settings": known})

    assert Arm.of(communicating(1)) == Arm.of(before), "an earlier row did what the default says"
    assert Arm.of(communicating(2)) != Arm.of(before)
    assert Arm.of(communicating(2)).label == f"{Arm.of(before).label}, fsdp_lanes=2"
    assert setting_of(communicating(2)) == setting_of(before)

    trained = Row({**before, "config": before["config"] | {"dropout_shape": "round"}})
    assert setting_of(trained) != setting_of(before)


@pytest.mark.parametrize(
    ("changes", "label", "family"),
    [
        ({"method": "none"}, "none", "none"),
        ({"method": "int8", "parameters": "none"}, "int8", "int8"),
        ({"method": "none", "parameters": "int8"}, "none + int8", "int8"),
        ({"method": "identity", "parameters": "identity"}, "identity + identity", "identity"),
        (
            {"method": "int4", "parameters": "delta", "comm_config_json": {"hadamard": True}},
            "int4 hadamard + delta",
            "int4",
        ),
        (
            {"method": "topk", "parameters": "none", "comm_config_json": {"ratio": 0.01, "error_feedback": False}},
            "topk no feedback ratio=0.01",
            "topk",
        ),
        (
            {"method": "topk", "parameters": "none", "comm_config_json": {"values": {"method": "qsgd", "bits": 4}}},
            "topk values(qsgd bits=4)",
            "topk",
        ),
        ({"method": "none", "comm_dtype": "bf16"}, "none, reduced in bf16", "none"),
        ({"method": "none", "fsdp_prefetch": 0, "fsdp_reshard": False}, "none, prefetch 0, no reshard", "none"),
    ],
)
def test_labels(changes: dict[str, Any], label: str, family: str) -> None:
    found = Arm.of(row(**changes))
    assert (found.label, found.family) == (label, family)


def test_arms_of_local_steps_are_neither_stock_nor_plain() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"outer": "local_sgd", "outer_every": 9},
        {"outer": "diloco", "outer_compress": "topk ratio=0.01 error_feedback(decay=0.95)", "outer_gather": "int8"},
    ]
    rows = [said_by(TrainConfig.of(model="gpt2-nano", dp_replicas=2, **chosen)) for chosen in settings]
    (compared,) = comparisons(rows)
    stock, local, diloco = (runs.arm for runs in compared.arms)
    assert [stock.label, local.label] == ["none", "none, every 9 local_sgd"]
    assert diloco.label == "none, every 30 diloco topk ratio=0.01 feedback(decay=0.95) + int8"
    assert compared.arm("none,every 30 diloco topk ratio=1e-2 error_feedback(decay=0.95)+int8").arm == diloco
    assert [one.is_stock for one in (stock, local, diloco)] == [True, False, False]
    assert [is_plain(one) for one in (stock, local, diloco)] == [True, False, False]
    assert [one.family for one in (stock, local, diloco)] == ["none", "none", "topk"]
    short = [runs.arm.label for runs in named([compared])[0].arms]
    assert short[2].startswith("none, every 30 diloco")
    assert len(short[2]) <= 40


def test_what_an_optimizer_gathers_is_of_the_arm_and_which_optimizer_it_is_of_the_setting() -> None:
    rows = [
        said_by(TrainConfig.of(model="gpt2-nano", optimizer=optimizer, **how))
        for optimizer, how in (("adamw", {}), ("muon", {}), ("muon", {"optimizer_compress": "int4 hadamard"}))
    ]
    muon, adamw = comparisons(rows)
    assert [len(compared.arms) for compared in (muon, adamw)] == [2, 1]
    stock, packed = (runs.arm for runs in muon.arms)
    assert (stock.label, packed.label) == ("none", "none, optimizer int4 hadamard")
    assert muon.arm("none,optimizer int4  hadamard").arm == packed
    assert [(one.is_stock, one.sends_less, one.family) for one in (stock, packed)] == [
        (True, False, "none"),
        (False, True, "int4"),
    ]


def test_an_arm_is_the_same_whatever_the_order_of_its_settings() -> None:
    one = row("topk", comm_config_json={"ratio": 0.1, "indices": "rice"})
    other = row("topk", 2, comm_config_json={"indices": "rice", "ratio": 0.1})
    assert len({Arm.of(one), Arm.of(other)}) == 1


def test_a_comparison_has_all_arms_and_seeds() -> None:
    (found,) = comparisons(fair())
    labels = ["none", "identity + identity", "bf16 + bf16", "int8 + int8", "int4 + int4"]
    assert [runs.arm.label for runs in found.arms] == labels
    assert all(list(runs.runs) == [1, 2, 3] for runs in found.arms)
    assert found.baseline is found.arms[0]
    assert found.setting.label == "gpt2-nano, 2 ranks, 100 steps"
    assert found.arm("int4 + int4") is found.arms[4]
    with pytest.raises(ValueError, match=r"no arm 'int3'.*'none', 'identity \+ identity'"):
        found.arm("int3")


@pytest.mark.parametrize(
    "changes",
    [{"world_size": 4}, {"link_rate_asked": 1e9}, {"max_steps": 50}, {"max_length": 64}, {"link_delay_ms": 5.0}],
)
def test_other_settings_are_other_comparisons(changes: dict[str, Any]) -> None:
    found = comparisons([*arm("none"), *arm("int8"), *arm("int4", **changes)])
    assert [len(c.arms) for c in found] == [2, 1]
    assert found[1].baseline is None
    assert len(found[0].setting.differences(found[1].setting)) == 1


def test_titles_tell_comparisons_apart() -> None:
    found = comparisons(
        [*arm("none"), *arm("none", max_length=64, seeds=(1, 2)), *arm("none", world_size=4, seeds=(1,))]
    )
    label = "gpt2-nano, 2 ranks, 100 steps"
    said = [label, f"{label} (max_length 64, not 128)", "gpt2-nano, 4 ranks, 100 steps"]
    assert titles(found) == said


def test_virtual_ranks_are_called_that() -> None:
    found = row("none", world_size=64)
    played = Row({**found, "config": {**found["config"], "virtual_ranks": 64}})
    assert setting_of(played).label == "gpt2-nano, 64 virtual ranks, 100 steps"


def test_what_does_not_matter_splits_nothing() -> None:
    rows = [row("none"), row("int8", results_path="elsewhere"), row("int4", learning_rate=0.1, link_delay_ms=0.0)]
    assert len({setting_of(r) for r in rows}) == 1


def test_runs_that_died_stay_in_their_comparison() -> None:
    (found,) = comparisons([*arm("none"), row("int8"), died("int8", 2), diverged("int8", 3)])
    int8 = found.arm("int8 + int8")
    assert list(int8.losses.values()) == [pytest.approx(4.98), None, None]
    assert [r["seed"] for r in int8.failures] == [2, 3]
    assert [r["seed"] for r in int8.ended_well] == [1]


def test_a_retry_stands_for_the_run_that_failed_and_is_remembered() -> None:
    def kept(rows: list[Row]) -> tuple[Any, list[Any]]:
        (runs,) = comparisons(rows)[0].arms
        return runs.runs[1]["run_name"], [r["run_name"] for r in runs.repeated]

    bad, good = died("int8", 1, run_name="bad"), row("int8", 1, run_name="good")
    assert kept([bad, good]) == ("good", ["bad"])
    assert kept([good, bad]) == ("good", ["bad"])
    assert kept([row("int8", 1, run_name="first"), good]) == ("good", ["first"])
    assert kept([bad, died("int8", 1, run_name="again")]) == ("again", ["bad"])


def test_the_tuned_value_is_the_best_of_those_with_most_seeds() -> None:
    rows = [*arm("int8", 0.3, learning_rate=0.001), *arm("int8", 0.1, learning_rate=0.002)]
    rows += [*arm("int8", -0.5, seeds=(1,), learning_rate=0.003), *arm("int8", -1.0, seeds=(1, 2), learning_rate=0.004)]
    rows += [died("int8", 3, learning_rate=0.004)]  # an infinite mean
    (runs,) = comparisons(rows)[0].arms
    assert runs.tuned == {"learning_rate": 0.002}
    assert runs.candidates == 4
    assert len(comparisons(rows, tuned=())) == 4


def test_a_baseline_by_label_or_by_method() -> None:
    rows = [*arm("none", comm_dtype="bf16"), *arm("none"), *arm("identity"), *arm("int8")]

    def baseline(rows: list[Row], name: str) -> str | None:
        found = comparisons(rows, baseline=name)[0].baseline
        return found and found.arm.label

    assert baseline(rows, "none") == "none"
    assert baseline(rows, "none, reduced in bf16") == "none, reduced in bf16"
    assert baseline(rows, "identity") == "identity + identity"
    assert baseline(arm("none", fsdp_prefetch=0), "none") == "none, prefetch 0"
    assert baseline([*arm("none", fsdp_prefetch=0), *arm("none", fsdp_prefetch=2)], "none") is None
    assert baseline(arm("int8"), "none") is None


@pytest.mark.parametrize(
    "text",
    [
        "topk no feedback ratio=0.01 + int8",
        "topk ratio=0.01 no feedback+int8",
        '{"method": "topk", "ratio": 0.01, "error_feedback": false} + int8, prefetch 1',
        "topk error_feedback=false  ratio = 1e-2 + int8, reduced in fp32",
    ],
)
def test_an_arm_is_found_however_it_is_spelled(text: str) -> None:
    config = {"ratio": 0.01, "error_feedback": False}
    rows = [*arm("none"), *arm("topk", comm_config_json=config, parameters="int8"), *arm("int8")]
    (found,) = comparisons(rows, baseline=text)
    assert found.baseline is found.arm(text)
    assert found.baseline.arm.label == "topk no feedback ratio=0.01 + int8"
    assert called(text, [found]) == found.baseline.arm.label
    with pytest.raises(ValueError, match="no arm 'topk ratio"):
        found.arm("topk ratio=0.02 + int8")


def test_the_name_that_a_figure_gives_an_arm_is_understood() -> None:
    config = {"block_size": 96, "scales": "bf16", "levels": 3, "rounding": "stochastic"}
    rows = [*arm("none"), *arm("uniform", comm_config_json=config), *arm("uniform", comm_config_json={"levels": 7})]
    compared = comparisons(rows)
    names = {runs.arm.label: full(runs.arm) for c in named(compared) for runs in c.arms}
    assert any(name != whole for name, whole in names.items()), "one of them is too long for a legend"
    for name, whole in names.items():
        assert called(name, compared) == whole
    assert called("what nobody says", compared) == "what nobody says"
