"""Local steps in the trainer: the library's simulation bit for bit, resumed bit for bit, nothing sent in between."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor

import comm_compress as cc
from fsdp_lab.checkpoint.files.folder import CheckpointError, Manifest
from fsdp_lab.checkpoint.files.safe_load import load_own, read_index
from fsdp_lab.checkpoint.same_training import check_training, training_settings
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.training.local_steps import LocalSteps
from tests.distributed import answers, preload
from tests.fsdp_lab.checkpoint.test_resume import same
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, make_nano_tiny, train_all

preload("fsdp_lab.train")
STEPS, EVERY, SAVED = 10, 4, 5  # saved between two synchronisations; the last one comes after the last step
DILOCO = {"outer": "diloco", "outer_every": EVERY, "outer_compress": "int8 rounding=stochastic"}
# saved with one of two parts under way, and two steps' gradients added up, which go by a method of their own; all else
# in a message to everyone, with feedback
STREAMING: dict[str, Any] = {
    **{"outer": "diloco", "outer_every": EVERY, "outer_compress": "topk ratio=0.1 error_feedback"},
    **{"outer_fragments": 2, "outer_overlap": 2, "outer_mixing": 0.5},
    **{"outer_by_gradient": "embeddings", "outer_gradient_every": 3, "outer_gradient_compress": "powersgd rank=2"},
}
MULOCO = {**DILOCO, "outer_compress": "binned", "optimizer": "muon"}
BY_NAME: dict[str, dict[str, Any]] = {"diloco": DILOCO, "muloco": MULOCO}  # those that are simulated, too
PLAIN = {"outer": "local_sgd", "outer_every": 3, "outer_by_gradient": "embeddings"}
# no step alone: gradients of three steps, with feedback there and back
ALL: dict[str, Any] = {
    **{"outer": "local_sgd", "outer_compress": "topk ratio=0.1", "outer_gather": "binned feedback"},
    **{"outer_by_gradient": "all", "outer_gradient_every": 3, "optimizer": "muon"},
}


def flags(lab: Lab, name: str, **settings: Any) -> list[str]:
    fixed = {"max_steps": STEPS, "log_interval": 1, "save_steps": SAVED, "keep_checkpoints": 9, "dp_replicas": 2}
    saves = name.removesuffix("-virtual") in (*BY_NAME, "streaming", "all")
    return lab.flags(run_name=name, save_model=saves, **{**fixed, **settings})


def played(lab: Lab, name: str, **settings: Any) -> Training:
    """A training by two virtual replicas in one process."""
    return Training(flags(lab, name, **settings, dp_replicas=1, virtual_ranks=2), ranks=1)


def checkpoint(lab: Lab, run: str, step: int) -> Path:
    return lab.folder / "out" / "runs" / run / "checkpoints" / f"step-{step:08d}"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, dict[str, str | None]]:
    """The trainings' folder, and what each ended with."""
    lab = Lab(tmp_path_factory.mktemp("local"))
    saved = {"resume": checkpoint(lab, "diloco", SAVED)}
    trainings = {
        "diloco": Training(flags(lab, "diloco", **DILOCO)),
        "diloco-resumed": Training(flags(lab, "diloco-resumed", **DILOCO, **saved)),
        "muloco": Training(flags(lab, "muloco", **MULOCO)),
        "streaming": Training(flags(lab, "streaming", **STREAMING)),
        "streaming-resumed": Training(
            flags(lab, "streaming-resumed", **STREAMING, resume=checkpoint(lab, "streaming", SAVED))
        ),
        "all": Training(flags(lab, "all", **ALL)),
        "all-resumed": Training(flags(lab, "all-resumed", **ALL, resume=checkpoint(lab, "all", SAVED))),
        "plain": Training(flags(lab, "plain", **PLAIN, eval_steps=1), fault="nan:rank=1,step=3"),
    }
    by_name = dict(zip(trainings, train_all(list(trainings.values()), tiny=True), strict=True))
    trainings = {
        "diloco-virtual": played(lab, "diloco-virtual", **DILOCO),
        "muloco-virtual": played(lab, "muloco-virtual", **MULOCO),
        "streaming-virtual": played(lab, "streaming-virtual", **STREAMING),
        "all-virtual": played(lab, "all-virtual", **ALL),
        "plain-virtual": played(lab, "plain-virtual", **PLAIN, eval_steps=1),
        "streaming-virtual-resumed": played(
            lab, "streaming-virtual-resumed", **STREAMING, resume=checkpoint(lab, "streaming-virtual", SAVED)
        ),
    }
    by_name |= zip(trainings, train_all(list(trainings.values()), tiny=True), strict=True)
    shards: dict[str, Any] = {"batch_size": 1, "eval_steps": 1, **PLAIN, "outer_compress": "identity"}
    sharded = {
        "sharded": flags(lab, "sharded", **shards),
        "sharded-resumed": flags(lab, "sharded-resumed", **shards, resume=checkpoint(lab, "sharded", SAVED)),
    }
    trainings = {name: Training(given, ranks=4, fault="nan:rank=3,step=3") for name, given in sharded.items()}
    by_name |= zip(trainings, train_all(list(trainings.values()), tiny=True), strict=True)
    return lab, by_name


@pytest.fixture(scope="module")
def lab(ended: tuple[Lab, dict[str, str | None]]) -> Lab:
    return ended[0]


def row(lab: Lab, run: str) -> dict[str, Any]:
    return [row for row in lab.rows() if row["run_name"] == run][-1]


def curve(lab: Lab, run: str, key: str) -> dict[int, float]:
    lines = map(json.loads, (lab.folder / "out" / "runs" / run / "curve.jsonl").read_text().splitlines())
    return {line["step"]: line[key] for line in lines if key in line}


def replicas(path: Path) -> list[dict[str, Tensor]]:
    """The weights of each replica in a checkpoint."""
    entries = read_index(path / "weights" / ".metadata").state_dict_metadata
    tensors = {name: torch.empty(entry.size) for name, entry in entries.items() if ".model." in name}
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(path / "weights"), no_dist=True)
    return [
        {name.removeprefix(f"replica{r}."): t for name, t in tensors.items() if name.startswith(f"replica{r}.")}
        for r in range(2)
    ]


def outer_parameters(lab: Lab, run: str, step: int, rank: int) -> dict[str, Tensor]:
    own = load_own(checkpoint(lab, run, step) / f"rank-{rank}.pt")
    found: dict[str, Tensor] = own["compressors"][0]["outer:outer"]["parameters"]
    return found


def _simulated(_: int, trainings: dict[str, list[str]], folder: Path, pipe: Connection) -> None:
    """The same trainings by `cc.outer.VirtualReplicas`, in a plain loop over what virtual ranks read."""
    from fsdp_lab.data.opening import open_corpus
    from fsdp_lab.models.architectures.choice import objective
    from fsdp_lab.models.build import plan_model
    from fsdp_lab.models.operators import install
    from fsdp_lab.ranks.distributed import join
    from fsdp_lab.settings.models.presets import resolve
    from fsdp_lab.training.optim import take_step

    make_nano_tiny()
    sent = {}
    for name, given in trainings.items():
        config = resolve(parse(given), has_gpu=False)
        with join(config) as ranks:
            data = open_corpus(config, ranks, "simulated", lambda: None)
            plan = plan_model(config, ranks, data.tokenizer.vocab_size, data.tokenizer.eot_id, data.tokenizer.pad_id)
            module = objective(plan.sketch.model)
            install(module, plan.operators)
            plan.realise(module, ranks.device)
            outer = {"every": EVERY, "outer_optimizer": cc.outer.nesterov(0.7, 0.9), "seed": config.run.seed}
            method = BY_NAME[name]["outer_compress"]
            both = cc.outer.VirtualReplicas(module, 2, torch.optim.SGD, method, exchange="auto", **outer)
            inner = [_inner(m, name, config, plan.operators["adamw"]) for m in both.models]
            for _ in range(STEPS):
                for replica, batch, (optimizer, schedule) in zip(
                    both.models, data.next_batch().rows.chunk(2), inner, strict=True
                ):
                    (replica(batch) / replica.num_targets(batch)).backward()
                    take_step(replica, optimizer, schedule, config.optim.max_grad_norm, _norm)
                both.step()
            both.synchronise()
            torch.save(both.models[0].hf.state_dict(), folder / f"{name}-simulated.pt")
        sent[name] = both.ledger.totals("outer").sent_bytes
    pipe.send((True, sent))
    pipe.close()
    os._exit(0)


def _inner(model: torch.nn.Module, name: str, config: TrainConfig, adamw: str) -> Any:
    from fsdp_lab.models.matrices import matrices_of_blocks
    from fsdp_lab.training.optim import build_optimizer

    gathers = cc.optim.attach(matrices_of_blocks(model)) if name == "muloco" else None
    return build_optimizer(model, config.optim, STEPS, adamw, gathers)


def _norm(gradients: list[Tensor]) -> Tensor:
    norm: Tensor = torch.stack(torch._foreach_norm(gradients)).double().square().sum().sqrt().float()
    return norm


def test_all_end_as_they_should(ended: tuple[Lab, dict[str, str | None]]) -> None:
    lab, how = ended
    assert dict.fromkeys(how) == how
    assert [problems(row) for row in lab.rows() if row["status"] == "ok"] == [[]] * 16


@pytest.fixture(scope="module")
def simulated(lab: Lab) -> dict[str, int]:
    """The bytes that each of two virtual replicas sent; their weights are in the trainings' folder."""
    optimizers = {name: settings.get("optimizer", "adamw") for name, settings in BY_NAME.items()}
    given = {
        name: lab.flags(max_steps=STEPS, run_name="simulated", virtual_ranks=2, optimizer=optimizer)
        for name, optimizer in optimizers.items()
    }
    (sent,) = answers(1, _simulated, given, lab.folder, timeout=120)
    return dict(sent)


@pytest.mark.parametrize("name", BY_NAME)
def test_it_is_the_simulation_of_the_library_bit_for_bit(lab: Lab, simulated: dict[str, int], name: str) -> None:
    ours = torch.load(lab.folder / f"{name}-simulated.pt")
    trained = load_file(lab.folder / "out" / "runs" / name / "final_model" / "model.safetensors")
    assert len(trained) > 20
    for key, tensor in trained.items():
        assert torch.equal(tensor, ours[key]), key
    inside = {"optimizer": 0} if name == "muloco" else {}  # whole matrices on every rank: nothing to gather
    assert row(lab, name)["bytes_compressed_by_op"] == {"outer": simulated[name], **inside}


@pytest.mark.parametrize("name", ["diloco", "muloco", "streaming", "all"])
def test_virtual_replicas_train_as_real_ones_bit_for_bit(lab: Lab, name: str) -> None:
    real, virtual = (
        load_file(lab.folder / "out" / "runs" / run / "final_model" / "model.safetensors")
        for run in (name, f"{name}-virtual")
    )
    assert same(real, virtual)
    rows = [row(lab, run) for run in (name, f"{name}-virtual")]
    quality = ("val_loss", "val_accuracy", "clip_rate", "data_digest")
    counted = ("bytes_raw_by_op", "bytes_compressed_by_op", "bytes_source", "elements_by_op", "outer_bits")
    for field in (*quality, *counted, "outer_bytes", "feedback_bytes"):
        assert rows[0][field] == rows[1][field], field
    assert rows[1]["step_time_ms_p50"] is None, "a step of virtual replicas takes no rank's time"


def test_torchs_own_all_reduce_is_counted_of_virtual_replicas_too(lab: Lab) -> None:
    real, virtual = row(lab, "plain"), row(lab, "plain-virtual")
    assert real["bytes_source"] == virtual["bytes_source"]
    void = 4 * _embedded(lab)  # gradients of the step that the real ones skipped, half of the elements, there and back
    assert real["bytes_compressed_by_op"]["outer"] == virtual["bytes_compressed_by_op"]["outer"] - void
    losses = curve(lab, "plain-virtual", "val_loss")
    assert losses[3] == losses[4] == losses[5] != losses[6], "what replicas agreed on is evaluated"


def test_virtual_replicas_go_on_between_two_synchronisations(lab: Lab) -> None:
    names = ("streaming-virtual", "streaming-virtual-resumed")
    whole, resumed = (load_own(checkpoint(lab, run, STEPS) / "rank-0.pt") for run in names)
    assert same(whole["compressors"], resumed["compressors"])
    assert row(lab, names[0])["val_loss"] == row(lab, names[1])["val_loss"]
    assert row(lab, names[1])["resumed_at_steps"] == [SAVED]


def test_sharded_replicas_are_those_that_are_not(lab: Lab) -> None:
    sharded, whole = row(lab, "sharded"), row(lab, "plain")
    assert sharded["val_loss"] == pytest.approx(whole["val_loss"], abs=1e-5)
    assert sharded["data_digest"] == whole["data_digest"]
    assert sharded["outer_bits"] == pytest.approx(whole["outer_bits"], rel=0.05), "of a rank's own part"
    assert set(sharded["bytes_compressed_by_op"]) == {"reduce_scatter", "all_gather", "outer"}
    for key in ("train_loss", "val_loss"):
        ours, theirs = curve(lab, "sharded", key), curve(lab, "plain", key)
        assert ours == {step: pytest.approx(loss, abs=3e-5) for step, loss in theirs.items()}, key


def test_what_replicas_agreed_on_is_evaluated(lab: Lab) -> None:
    losses = curve(lab, "plain", "val_loss")
    assert losses[3] == losses[4] == losses[5] != losses[6] == losses[7] == losses[8] != losses[9]


@pytest.mark.parametrize("name", ["diloco", "streaming", "all", "sharded"])
def test_a_run_resumed_between_two_synchronisations_ends_where_the_uninterrupted_one_does(lab: Lab, name: str) -> None:
    whole, resumed = checkpoint(lab, name, STEPS), checkpoint(lab, f"{name}-resumed", STEPS)
    files = [
        {entry.name: entry.sha256 for entry in Manifest.read(path).files if entry.name.startswith("weights/__")}
        for path in (whole, resumed)
    ]
    assert files[0] == files[1]
    for rank in range(len(files[0])):
        one, other = (load_own(path / f"rank-{rank}.pt") for path in (whole, resumed))
        for part in ("compressors", "data", "schedule", "rng"):
            assert same(one[part], other[part]), part
    rows = [row(lab, run) for run in (name, f"{name}-resumed")]
    assert rows[1]["resumed_at_steps"] == [SAVED]
    for field in ("val_loss", "train_loss", "bytes_compressed_total", "outer_bits", "data_digest"):
        assert rows[0][field] == rows[1][field], field
    under_way = load_own(checkpoint(lab, name, SAVED) / "rank-0.pt")["compressors"][0]["outer:outer"]["arrived"]
    assert sorted(under_way) == (["fragment0"] if name == "streaming" else []), "what is to be lost, if anything is"


@pytest.mark.parametrize("name", ["diloco", "streaming"])
def test_replicas_differ_between_synchronisations_and_are_one_model_at_the_end(lab: Lab, name: str) -> None:
    one, other = replicas(checkpoint(lab, name, SAVED))
    assert one.keys() == other.keys()
    assert any(not torch.equal(one[key], other[key]) for key in one)
    assert same(*(outer_parameters(lab, name, SAVED, rank) for rank in range(2))), "what they agreed on is the same"
    assert same(*replicas(checkpoint(lab, name, STEPS)))


def test_nothing_is_sent_between_two_synchronisations(lab: Lab) -> None:
    sent = curve(lab, "diloco", "sent_bytes")
    grew = [step for step in range(1, STEPS + 1) if sent[step] > sent.get(step - 1, 0)]
    assert grew == [4, 8, 10], "every four steps, and after the last one"
    parts = curve(lab, "streaming", "sent_bytes")
    grew = [step for step in range(1, STEPS + 1) if parts[step] > parts.get(step - 1, 0)]
    assert grew == [3, 4, 6, 8, 9, 10], "parts when they are used, gradients in every third step and in the last one"
    said = row(lab, "diloco")
    assert said["bytes_compressed_total"] == sent[STEPS]
    assert (said["outer"], said["outer_every"], said["outer_method"]) == ("diloco", 4, "int8 rounding=stochastic")
    assert (said["outer_learning_rate"], said["outer_momentum"]) == (0.7, 0.9)
    assert said["outer_bytes"] == 8 * said["trainable_parameters"], "two float32 numbers a parameter"


def test_a_step_that_is_void_on_one_replica_is_skipped_by_all(lab: Lab) -> None:
    said = row(lab, "plain")
    assert said["nonfinite_steps"] == 1
    assert said["val_loss"] < curve(lab, "plain", "val_loss")[1]
    assert same(*replicas(checkpoint(lab, "plain", STEPS)))
    assert said["bytes_source"] == "computed", "torch's own all-reduce"
    by_gradient = _embedded(lab)
    # four synchronisations, three exchanges of gradients (not in step 3); half of the elements, there and back
    floats = 4 * (said["trainable_parameters"] - by_gradient) * 4 + 3 * by_gradient * 4
    assert said["bytes_compressed_by_op"] == {"outer": floats}


def _embedded(lab: Lab) -> int:
    """How many parameters go by their gradients."""
    return replicas(checkpoint(lab, "plain", STEPS))[0]["model.hf.transformer.wte.weight"].numel()


def test_where_all_goes_by_gradients_replicas_are_equal_and_nothing_is_sent_in_between(lab: Lab) -> None:
    assert same(*replicas(checkpoint(lab, "all", SAVED)))
    sent = curve(lab, "all", "sent_bytes")
    assert [step for step in range(1, STEPS + 1) if sent[step] > sent.get(step - 1, 0)] == [3, 6, 9, 10]
    assert curve(lab, "all", "train_loss")[10] < curve(lab, "all", "train_loss")[1]
    assert row(lab, "all")["outer_bytes"] == 4 * row(lab, "all")["trainable_parameters"], "gradients that are added up"


def test_embeddings_are_equal_between_two_synchronisations(lab: Lab) -> None:
    name = "model.hf.transformer.wte.weight"
    for run, at in (("streaming", SAVED), ("plain", SAVED)):
        one, other = replicas(checkpoint(lab, run, at))
        assert torch.equal(one[name], other[name])
        assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("before", "settings", "world", "complaint"),
    [
        (DILOCO, {**DILOCO, "outer_learning_rate": 0.5}, 2, "outer_learning_rate: was None, is 0.5"),
        (DILOCO, {}, 2, "outer: was 'diloco', is 'none'"),
        ({}, DILOCO, 2, "outer: was 'none', is 'diloco'"),
        (DILOCO, {**DILOCO, "dp_replicas": 4}, 4, "dp_replicas: was 2, is 4"),
        (DILOCO, DILOCO, 4, "ranks: were 2, are 4"),
        (DILOCO, DILOCO, 2, None),
        ({}, {"dp_replicas": 4}, 4, None),
    ],
)
def test_replicas_that_would_not_be_the_same_ones_do_not_go_on(
    tmp_path: Path, before: dict[str, Any], settings: dict[str, Any], world: int, complaint: str | None
) -> None:
    lab, anyhow = Lab(tmp_path), {"resume_changed": "true", "resume_resharded": "true"}
    saved, asked = (parse(flags(lab, "one", **given, **anyhow)) for given in (before, settings))
    manifest = Manifest(SAVED, 2, torch.__version__, training_settings(saved), ())
    ranks: Any = SimpleNamespace(world=world, data_world=world)
    with pytest.raises(CheckpointError, match=complaint) if complaint else nullcontext():
        check_training(manifest, asked, ranks, print)


WRONG = {
    "--outer diloco": "outer: there is one replica; give dp_replicas 2 or more, or virtual_ranks",
    "--outer_every 5": "outer_every: no replica trains by itself; give outer",
    "--outer diloco --virtual_ranks 4 --dp_replicas 2": "virtual_ranks: virtual ranks are data-parallel ranks",
    "--outer diloco --virtual_ranks 4 --comm_compress int8": "comm_compress: virtual ranks with outer are whole",
    "--outer diloco --virtual_ranks 4 --compile": "compile: a compiled block computes with the weights of the one",
    "--outer diloco --virtual_ranks 4 --lora_rank 2": "lora_rank: replicas that train by themselves train whole",
    "--outer diloco --dp_replicas 2 --tp 2": "outer: a replica that trains by itself is whole, or sharded by FSDP2",
    "--outer diloco --dp_replicas 2 --mixed_precision fp16": "a loss scale of its own; give bf16 or no",
    "--outer diloco --outer_every 3 --outer_fragments 4": "outer_fragments: 4 parts in 3 steps",
    "--outer diloco --outer_every 3 --outer_overlap 3": "outer_overlap: 3 steps are not over",
    "--outer diloco --outer_mixing 0.5": "outer_mixing: a replica has not trained on",
    "--outer local_sgd --outer_momentum 0.9": "outer_momentum: local_sgd goes on with the replicas' mean",
    "--outer diloco --outer_exchange all_gather": "outer_exchange: all_gather hands on a method's messages",
    "--outer diloco --outer_gather int8": "outer_gather: torch's own all-reduce brings the mean back",
    "--outer diloco --outer_compress delta": "outer_compress: delta is for parameters (all_gather) only",
    "--outer diloco --outer_compress int4 --outer_gather powersgd": "powersgd with error feedback does not send",
    "--outer local_sgd --outer_gradient_every 3": "outer_gradient_every: nothing goes by its gradients",
    "--outer diloco --outer_gradient_compress int8": "outer_gradient_compress: nothing goes by its gradients",
    "--outer local_sgd --outer_by_gradient all --outer_gradient_compress int8": (
        "outer_gradient_compress: with outer_by_gradient all everything goes by outer_compress"
    ),
    "--outer diloco --outer_by_gradient embeddings --outer_gradient_compress delta": (
        "outer_gradient_compress: delta is for parameters (all_gather) only"
    ),
    "--outer diloco --outer_by_gradient all": "outer: with outer_by_gradient all no replica takes a step of its own",
    "--outer local_sgd --outer_by_gradient all --outer_fragments 2": "outer_fragments: with outer_by_gradient all",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_before_ranks_start(words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(TrainConfig, words.split())
    assert sum(WRONG[words] in complaint for complaint in raised.value.complaints) == 1


def test_a_fragment_that_cannot_be_sent_is_void_and_replicas_go_back() -> None:
    said: list[str] = []
    module = torch.nn.Linear(3, 1)
    both = cc.outer.VirtualReplicas(module, 2, lambda p: torch.optim.SGD(p, lr=0.1), "int8", every=2)
    local = LocalSteps(both, 4, said.append)  # type: ignore[arg-type]  # what it asks for, virtual replicas have
    local.after_update(1)
    both.models[1].weight.data.fill_(torch.inf)
    local.after_update(2)
    assert [text[:35] for text in said] == ["synchronisation after step 2 is voi"]
    assert all(torch.equal(replica.weight, module.weight) for replica in both.models)
    local.after_update(3)
    local.after_update(4)
    assert len(said) == 1
