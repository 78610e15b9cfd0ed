"""The trainer on ranks that are arranged in every way: the training that one process makes, in numbers and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fsdp_lab.ranks.parallel_dims import ParallelDims
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import ParallelConfig
from fsdp_lab.settings.reading.fields import ConfigError
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

OURS = "--comm_compress identity --activation identity --activation_grad identity"
# every mode with the same four sequences a step: ranks, sequences of a data-parallel rank, flags
MODES: dict[str, tuple[int, int, str]] = {
    "serial": (1, 4, ""),
    "fsdp": (2, 2, ""),
    "ddp": (2, 2, "--dp_replicas 2"),
    "hsdp": (4, 1, "--dp_replicas 2"),
    "tp": (2, 4, "--tp 2"),
    "sp": (2, 4, "--tp 2 --layout sp --shares 3,1"),
    "galaxy": (2, 4, "--tp 2 --layout galaxy --shares 3,2"),
    "galaxy2": (2, 4, "--tp 2 --layout galaxy2 --activation_checkpointing true"),
    "pipeline": (2, 4, "--pp 2"),
    "fsdp x tp": (4, 2, "--tp 2"),
    "ddp x tp": (4, 2, "--tp 2 --dp_replicas 2 --layout galaxy"),
    "unequal pipeline": (2, 4, "--pp 2 --pp_schedule gpipe --shares 3,2"),
    "pipeline x ddp": (4, 2, "--pp 2 --dp_replicas 2 --pp_schedule gpipe"),
    "pipeline x tp": (4, 4, "--pp 2 --tp 2 --layout galaxy"),
    # the same by our collectives, which lose nothing
    "our fsdp x galaxy": (4, 2, f"--tp 2 --layout galaxy --param_compress identity {OURS}"),
    "our hsdp": (
        *(4, 1),
        "--dp_replicas 2 --comm_compress identity --replica_compress identity --param_compress identity",
    ),
    "our ddp": (2, 2, "--dp_replicas 2 --comm_compress identity"),
    "our pipeline x ddp": (4, 2, f"--pp 2 --dp_replicas 2 {OURS}"),
    "accumulated tp": (2, 2, "--tp 2 --gradient_accumulation_steps 2"),
    "accumulated pipeline": (2, 2, "--pp 2 --gradient_accumulation_steps 2"),
}
# a checkpoint of one mode goes on in another
MOVES = [
    ("galaxy", "serial"),
    ("pipeline", "fsdp x tp"),
    ("fsdp x tp", "pipeline x ddp"),
    ("fsdp", "galaxy2"),
    ("serial", "pipeline x tp"),
    ("sp", "hsdp"),
]
STEPS, SAVED = 3, 2


def flags(folder: Path, name: str, mode: str, *more: str) -> list[str]:
    _, batch, own = MODES[mode]
    given = f"--model gpt2-nano --max_length 16 --max_steps {STEPS} --save_steps {SAVED} --keep_checkpoints 9 {own}"
    given += f" --batch_size {batch} --log_interval 1 --tensorboard false --threads 1 --vocab_size 300"
    given += " --val_fraction 0.004"  # each batch of validation costs what a step costs: 4 of them
    places = ["--output_dir", str(folder), "--results_path", str(folder / "results.jsonl")]
    places += ["--data_path", str(folder / "corpus.json"), "--cache_dir", str(folder / "cache")]
    return [*given.split(), "--run_name", name.replace(" ", "-"), *places, *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Lab(tmp_path_factory.mktemp("modes")).folder
    alone = [Training(flags(folder, mode, mode), ranks=ranks) for mode, (ranks, _, _) in MODES.items()]
    run_all([*alone, Training(flags(folder, "levels", "hsdp", "--system", "sdp4bit-two-levels"), ranks=4)])
    moves = []
    anyhow = ["--resume_changed", "true", "--resume_resharded", "true"]
    for before, after in MOVES:
        saved = folder / "runs" / before.replace(" ", "-") / "checkpoints" / f"step-{SAVED:08d}"
        moved = flags(folder, f"{before} to {after}", after, "--resume", str(saved), *anyhow)
        moves.append(Training(moved, ranks=MODES[after][0]))
    run_all(moves)
    return folder


def run_all(trainings: list[Training]) -> None:
    """As many ranks at a time as a training has, so that no rank waits for those that others are busy with."""
    for ranks in {training.ranks for training in trainings}:
        chosen = [training for training in trainings if training.ranks == ranks]
        assert train_all(chosen, tiny=True) == [None] * len(chosen)


def row(folder: Path, name: str) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    found: dict[str, Any] = next(row for row in rows if row["run_name"] == name.replace(" ", "-"))
    return found


def curve(folder: Path, name: str, first: int) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name.replace(" ", "-") / "curve.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "train_loss" in line and line["step"] >= first]


def check_same(folder: Path, name: str, first: int = 1) -> None:
    """The run is the serial one from step ``first`` on: losses, norms, validation, every weight of the saved model."""
    mine, serial = row(folder, name), row(folder, "serial")
    assert mine["val_loss"] == pytest.approx(serial["val_loss"], abs=1e-5)
    assert mine["val_accuracy"] == pytest.approx(serial["val_accuracy"], abs=0.01)
    assert (mine["val_tokens"], mine["tokens_seen"]) == (serial["val_tokens"], serial["tokens_seen"])
    pairs = zip(curve(folder, name, first), curve(folder, "serial", first), strict=True)
    for ours, theirs in pairs:
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=3e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    weights, whole = (
        load_file(folder / "runs" / run.replace(" ", "-") / "final_model" / "model.safetensors")
        for run in (name, "serial")
    )
    assert weights.keys() == whole.keys()
    for key, tensor in weights.items():
        assert tensor.shape == whole[key].shape, key
        assert (tensor - whole[key]).abs().max() < 2e-5, key


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "serial"])
def test_every_mode_trains_as_one_process_does(folder: Path, mode: str) -> None:
    check_same(folder, mode)
    assert row(folder, mode)["data_digest"] == row(folder, "serial")["data_digest"]


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_checkpoint_of_one_mode_goes_on_in_another(folder: Path, before: str, after: str) -> None:
    name = f"{before} to {after}"
    assert row(folder, name)["resumed_at_steps"] == [SAVED]
    check_same(folder, name, SAVED + 1)


def test_rows_say_how_ranks_were_arranged_and_what_was_sent(folder: Path) -> None:
    said = {mode: {**row(folder, mode)} for mode in MODES}
    assert (said["sp"]["tp"], said["sp"]["layout"], said["sp"]["shares"]) == (2, "sp", [3.0, 1.0])
    assert said["pipeline"]["pp_schedule"] == "1f1b"
    assert said["fsdp"]["tp"] is None
    ops = {mode: set(said[mode]["bytes_compressed_by_op"]) for mode in MODES}
    assert ops["fsdp"] == {"reduce_scatter", "all_gather"}
    assert ops["ddp"] == {"all_reduce"}
    assert ops["fsdp x tp"] == {"reduce_scatter", "all_gather", "activations", "activation_gradients"}
    assert ops["sp"] == {"all_reduce", "activations", "activation_gradients"}
    for mode in MODES:
        if mode != "serial":
            assert all(said[mode]["bytes_compressed_by_op"].values()), mode


def test_replicas_have_a_method_of_their_own_between_them(folder: Path) -> None:
    said = row(folder, "levels")
    bits = {op: 8 * sent / said["elements_by_op"][op] for op, sent in said["bytes_compressed_by_op"].items()}
    assert bits.keys() == {"reduce_scatter", "all_gather", "all_reduce"}
    # a block of 512 or 128 elements has a scale of 32 bits; the last block of a unit is shorter
    assert bits["reduce_scatter"] == pytest.approx(8 + 32 / 512, rel=0.03)
    assert bits["all_reduce"] == pytest.approx(4 + 32 / 128, rel=0.03)
    assert said["val_loss"] == pytest.approx(row(folder, "serial")["val_loss"], abs=0.05)


WRONG = {
    "--layout galaxy": "layout: galaxy divides blocks over tp ranks, and tp is 1",
    "--tp 2 --shares 1,2,3": "shares: 1,2,3 are not 2 numbers",
    "--activation int8": "no activations are exchanged",
    "--tp 2 --compile true": "compile: not with tp or pp",
    "--pp 2 --mixed_precision bf16": "stages of a pipeline compute in float32",
    "--tp 2 --virtual_ranks 4": "virtual ranks are data-parallel ranks",
    "--tp 2 --attention eager": "give sdpa",
    "--dp 4 --dp_replicas 3": "give a divisor",
    "--replica_compress int4 --comm_compress int8": "replica_compress: there is one replica; give dp_replicas",
    "--replica_compress int4 --dp_replicas 2": "or identity to have that exact",
    "--replica_compress int4 --comm_compress int8 --dp 2 --dp_replicas 2": "replicas of one rank each have one sum",
    "--replica_compress int4 --comm_compress int8 --dp_replicas 2 --tp 2": "with tp and pp all sums go by",
    "--replica_compress int4 --comm_compress int8 --dp_replicas 2 --outer diloco": "leave out outer, or this",
    "--replica_compress int4 --comm_compress int8 --dp_replicas 2 --optimizer demo": "replicas of demo sum no",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_excludes_each_other_is_refused_before_ranks_start(words: str) -> None:
    names = [word.removeprefix("--") for word in words.split()[::2]]
    specs = TrainConfig.specs()
    given = {n: specs[n].from_text(text) for n, text in zip(names, words.split()[1::2], strict=True)}
    assert any(WRONG[words] in complaint for complaint in TrainConfig.of(**given).conflicts())


@pytest.mark.parametrize(
    ("asked", "world", "why"),
    [
        ({"tp": 2, "pp": 2}, 6, "no multiple of 4"),
        ({"dp": 2, "tp": 2}, 8, "are 4 ranks, 8 were started"),
        ({"dp_replicas": 3}, 4, "give a divisor"),
        ({"pp": 2}, 4, "--dp_replicas 2"),
    ],
)
def test_ranks_that_cannot_be_arranged_so(asked: dict[str, Any], world: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ParallelDims.of(ParallelConfig(**asked), world)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("tp", [1, 3])
def test_each_batch_has_one_first_rank_and_ranks_of_a_model_are_counted_once(pp: int, replicas: int, tp: int) -> None:
    shards = 2 if pp == 1 else 1
    dims = ParallelDims(pp, replicas, shards, tp)
    ranks = range(pp * dims.dp * tp)
    speak = [dims.data_rank(rank) for rank in ranks if dims.is_first_of_model(rank)]
    assert speak == list(range(dims.dp))
    by_data = [dims.data_rank(rank) for rank in ranks]
    assert all(by_data.count(rank) == pp * tp for rank in range(dims.dp))
