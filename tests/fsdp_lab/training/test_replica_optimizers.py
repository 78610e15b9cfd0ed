"""Optimizers that communicate, in the trainer: runs resume bit for bit, all replicas skip a void step alike, and many
replicas that one process plays are real ones."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_lab.checkpoint.files.safe_load import load_own
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked
from tests.distributed import preload
from tests.fsdp_lab.checkpoint.test_resume import same
from tests.fsdp_lab.parallel.test_local_steps import checkpoint, curve, row
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")
STEPS, SAVED, VOID = 6, 3, 4
DEMO = {"optimizer": "demo", "optimizer_compress": "dct k=4"}
ONE_BIT = {"optimizer": "onebit_adam", "optimizer_compress": "signsgd group_size=64", "adam_freeze_after": 2}
DION = {"optimizer": "dion", "dion_rank": 0.5}
EF21 = {"optimizer": "ef21_muon", "optimizer_compress": "topk ratio=0.1 values=nc", "optimizer_gather": "signsgd"}
# a step exactly, one in signs, one of each replica alone: step 3, after which is saved
ZERO_ONE = {
    **{"optimizer": "zero_one_adam", "optimizer_compress": "signsgd group_size=64", "adam_freeze_after": 1},
    **{"adam_local_scaler": 1, "adam_local_steps": 2},
}
RUNS: dict[str, dict[str, Any]] = {"demo": DEMO, "onebit": ONE_BIT, "dion": DION, "ef21": EF21, "zero-one": ZERO_ONE}
RESUMED_VIRTUAL = ("ef21", "zero-one")
IN_BF16 = {**EF21, "mixed_precision": "bf16", "gradient_accumulation_steps": 2, "max_grad_norm": 0.1}


def flags(lab: Lab, name: str, **settings: Any) -> list[str]:
    fixed = {"max_steps": STEPS, "log_interval": 1, "save_steps": SAVED, "keep_checkpoints": 9, "dp_replicas": 2}
    return lab.flags(run_name=name, save_model=False, **{**fixed, "eval_steps": 1, **settings})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("replicas"))
    trainings = []
    for name, settings in RUNS.items():
        saved = checkpoint(lab, name, SAVED)
        both = flags(lab, name, **settings), flags(lab, f"{name}-resumed", **settings, resume=saved)
        trainings += [Training(given, fault=f"nan:rank=1,step={VOID}") for given in both]
    trainings.append(Training(flags(lab, "bf16", **IN_BF16)))
    played: dict[str, Any] = {"dp_replicas": 1, "virtual_ranks": 2}
    trainings.append(Training(flags(lab, "bf16-virtual", **IN_BF16, **played), ranks=1))
    for name, settings in RUNS.items():
        given = flags(lab, f"{name}-virtual", **settings, **played)
        trainings.append(Training(given, ranks=1, fault=f"nan:rank=0,step={VOID}"))
    for name in RESUMED_VIRTUAL:
        saved = checkpoint(lab, f"{name}-virtual", SAVED)
        given = flags(lab, f"{name}-virtual-resumed", **RUNS[name], **played, resume=saved)
        trainings.append(Training(given, ranks=1, fault=f"nan:rank=0,step={VOID}"))
    sharded = flags(lab, "sharded", **ONE_BIT, batch_size=1)
    assert train_all(trainings, tiny=True) == [None] * len(trainings)
    assert train_all([Training(sharded, ranks=4, fault=f"nan:rank=3,step={VOID}")], tiny=True) == [None]
    return lab


@pytest.mark.parametrize("name", [*RUNS, "bf16"])
def test_virtual_replicas_are_real_ones_bit_for_bit(lab: Lab, name: str) -> None:
    real, virtual = row(lab, name), row(lab, f"{name}-virtual")
    assert problems(virtual) == []
    assert (virtual["world_size"], virtual["virtual_ranks"]) == (2, 2)
    for key in ("val_loss", "sent_bytes"):
        assert curve(lab, f"{name}-virtual", key) == curve(lab, name, key), key
    norms = [curve(lab, run, "grad_norm") for run in (f"{name}-virtual", name)]
    assert {**norms[0], VOID: 0} == {**norms[1], VOID: 0}
    counted = ("bytes_raw_by_op", "bytes_compressed_by_op", "value_bytes", "index_bytes", "metadata_bytes")
    for field in (*counted, "feedback_bytes", "tokens_seen", "clip_rate", "nonfinite_steps"):
        assert virtual[field] == real[field], field
    assert virtual["bytes_source"] == "counted"
    own = load_own(checkpoint(lab, f"{name}-virtual", STEPS) / "rank-0.pt")
    for rank in range(2):
        theirs = load_own(checkpoint(lab, name, STEPS) / f"rank-{rank}.pt")
        assert same(own["compressors"][rank], theirs["compressors"][0])


@pytest.mark.parametrize("name", RESUMED_VIRTUAL)
def test_a_resumed_run_of_virtual_replicas_ends_where_the_uninterrupted_one_does(lab: Lab, name: str) -> None:
    whole, resumed = (row(lab, run) for run in (f"{name}-virtual", f"{name}-virtual-resumed"))
    for field in ("val_loss", "train_loss", "bytes_compressed_total", "data_digest", "nonfinite_steps"):
        assert whole[field] == resumed[field], field
    states = [
        load_own(checkpoint(lab, run, STEPS) / "rank-0.pt")["compressors"]
        for run in (f"{name}-virtual", f"{name}-virtual-resumed")
    ]
    assert same(*states)


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(lab: Lab, name: str) -> None:
    rows = [row(lab, run) for run in (name, f"{name}-resumed")]
    assert [problems(one) for one in rows] == [[], []]
    for field in ("val_loss", "train_loss", "bytes_compressed_total", "data_digest", "nonfinite_steps"):
        assert rows[0][field] == rows[1][field], field
    whole, resumed = (checkpoint(lab, run, STEPS) for run in (name, f"{name}-resumed"))
    for rank in range(2):
        one, other = (load_own(path / f"rank-{rank}.pt") for path in (whole, resumed))
        for part in ("compressors", "data", "schedule", "rng"):
            assert same(one[part], other[part]), part
        assert any(key.startswith("optimizer/") for key in one["compressors"][0])


@pytest.mark.parametrize("name", RUNS)
def test_a_step_that_is_void_on_one_replica_is_skipped_by_all_and_only_the_optimizer_sends(lab: Lab, name: str) -> None:
    said = row(lab, name)
    assert said["nonfinite_steps"] == 1
    losses, sent = curve(lab, name, "val_loss"), curve(lab, name, "sent_bytes")
    assert losses[VOID] == losses[VOID - 1] != losses[VOID + 1]
    assert sent[VOID] == sent[VOID - 1] < sent[VOID + 1]
    assert list(said["bytes_compressed_by_op"]) == ["optimizer"]
    assert said["bytes_raw_by_op"]["optimizer"] >= 4 * said["trainable_parameters"] * (STEPS - 1), "of an all-reduce"
    assert said["bytes_source"] == "counted"
    assert said["optimizer_method"] == RUNS[name].get("optimizer_compress", "none")
    is_adam = name in ("onebit", "zero-one")
    assert is_adam or said["val_loss"] < losses[1], "Adam's variance after two steps is no variance yet"


def test_replicas_that_fsdp2_shards_train_as_those_that_are_whole_before_the_freeze(lab: Lab) -> None:
    ours, whole = curve(lab, "sharded", "val_loss"), curve(lab, "onebit", "val_loss")
    assert [ours[step] for step in (1, 2)] == [pytest.approx(whole[step], abs=3e-5) for step in (1, 2)]
    assert set(row(lab, "sharded")["bytes_compressed_by_op"]) == {"reduce_scatter", "all_gather", "optimizer"}
    assert row(lab, "sharded")["nonfinite_steps"] == 1


WRONG = {
    "--optimizer demo --optimizer_compress dct": "optimizer: demo is of several replicas; give dp_replicas 2 or more",
    "--optimizer demo --dp_replicas 2": "optimizer_compress: demo sends nothing without a method; give dct",
    "--optimizer onebit_adam --dp_replicas 2": "give signsgd, which is its paper's",
    "--optimizer demo --optimizer_compress powersgd --dp_replicas 2": "powersgd with these settings does not send one",
    "--optimizer demo --optimizer_compress dct --dp_replicas 2 --tp 2": "leave out tp and pp",
    "--optimizer demo --optimizer_compress dct --dp_replicas 2 --outer diloco": "outer: demo exchanges at every step",
    "--optimizer demo --optimizer_compress dct --virtual_ranks 4 --method int8": "param_compress: virtual replicas of",
    "--optimizer demo --optimizer_compress dct --virtual_ranks 4 --lora_rank 2": "lora_rank: replicas of demo train",
    "--optimizer ef21_muon --dp_replicas 2": 'give "topk ratio=0.1 values=nc", which is its paper\'s',
    "--optimizer_compress topk --optimizer ef21_muon --dp_replicas 2 --optimizer_gather dgc": "optimizer_gather: dgc",
    "--optimizer ef21_muon --dp_replicas 2 --optimizer_compress thresholdv": "optimizer_compress: thresholdv with",
    "--adam_local_steps 4 --adam_variance_scaler 2": "adam_variance_scaler, adam_local_steps: adamw has no such",
    "--optimizer onebit_adam --optimizer_compress signsgd --dp_replicas 2 --optimizer_until_freeze gradients": (
        "optimizer_until_freeze: onebit_adam has no choice of what it compresses before a freeze"
    ),
    "--optimizer_gather int8": "optimizer_gather: adamw sends no weights back; give optimizer ef21_muon",
    "--optimizer demo --optimizer_compress dct --dp_replicas 2 --mixed_precision fp16": "a loss scale of its own",
    "--optimizer dion --optimizer_compress int8 --dp_replicas 2": "dion sends factors as they are; leave it out",
    "--dion_rank 0.5 --dion_momentum 0.9": "dion_rank, dion_momentum: adamw has no such thing; give optimizer dion",
    "--demo_decay 0.9": "demo_decay: adamw has no such momentum; give optimizer demo",
    "--adam_freeze_after 9": "adam_freeze_after: adamw freezes nothing; give optimizer onebit_adam",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_before_ranks_start(words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(TrainConfig, words.split())
    assert sum(WRONG[words] in complaint for complaint in raised.value.complaints) == 1
