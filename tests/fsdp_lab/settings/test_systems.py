"""Published systems: what ``--system`` stands for, what contradicts it, and whether what is said of each is so."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import comm_compress as cc
from comm_compress.labels import arm_label, label
from experiments.sweeps.recipe.recipe import read
from fsdp_lab.commands.reference.system_pages import command
from fsdp_lab.settings.__main__ import main as settings_command
from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.groups import CommConfig
from fsdp_lab.settings.methods import complaints_about
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.systems.kinds import Recipe
from fsdp_lab.settings.systems.missing import MISSING
from fsdp_lab.settings.systems.table import SYSTEMS, recipes, system
from fsdp_lab.training import replica_optimizers
from fsdp_lab.training.optim import build_optimizer
from tests.experiments.sweeps.recipes import write_recipe

ROOT = Path(__file__).resolve().parents[3]
RECIPES = list(recipes().values())
ELEMENTS = 1_000_000
_UNLABELLED = ("optimizer_gather", "optimizer_until_freeze", "replica_compress")  # what only flags can say
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def typed(recipe: Recipe, *further: str) -> TrainConfig:
    needs = [word for flag, least in recipe.needs.items() for word in (f"--{flag}", str(least))]
    return parse(["--system", recipe.name, *needs, *further])


def arm_of(comm: CommConfig) -> str:
    """The label of all that a system can say, but what only flags can."""
    return arm_label(
        label(comm.comm_compress, comm.comm_config_json),
        label(comm.param_compress, comm.param_config_json),
        reshard=comm.fsdp_reshard,
        outer=comm.outer,
        outer_every=comm.outer_every,
        outer_method=comm.outer_compress,
        outer_gather=comm.outer_gather,
        optimizer=comm.optimizer_compress,
    )


def bits(name: str, settings: dict[str, Any], world: int) -> float:
    """Bits of an element by the compressor itself, after its warm-up; of `delta` those of the changes."""
    made = cc.make(name, {key: value for key, value in settings.items() if key != "warmup_steps"})
    if made is None:
        return 32.0
    made = made.codec if name == "delta" else made
    sent = made.traffic(ELEMENTS, world)
    assert sent is not None
    return 8 * sent / ((world - 1) * ELEMENTS)


@every_recipe
def test_a_recipe_builds_its_compressors_and_can_run(recipe: Recipe) -> None:
    config = typed(recipe)
    assert complaints_about(config.comm) == []
    assert config.conflicts() == []
    for flag in recipe.needs:
        without = parse(["--system", recipe.name]).conflicts()
        assert any(f"give {flag}" in complaint for complaint in without), "what it needs is asked for"


@every_recipe
def test_the_line_that_runs_it_has_what_it_was_measured_with(recipe: Recipe) -> None:
    program, subcommand, ranks, _, *flags = command(recipe).split()
    assert (program, subcommand, ranks) == ("fsdp-lab", "train", "--nproc-per-node")
    row = parse(flags).row()
    assert parse(flags).conflicts() == []
    assert {flag: row[flag] for flag in recipe.measured_with} == recipe.measured_with


@every_recipe
def test_rows_are_those_of_the_same_arm_typed_as_a_label_and_as_flags(recipe: Recipe, tmp_path: Path) -> None:
    config = typed(recipe)
    needs = [word for flag, least in recipe.needs.items() for word in (f"--{flag}", str(least))]
    others = [f"--{flag}={value}" for flag, value in recipe.flags]
    unsaid = [f"--{flag}={value}" for flag, value in recipe.flags if flag.startswith(("outer_", *_UNLABELLED))]
    for argv in (others, ["--method", arm_of(config.comm), *unsaid]):
        assert parse([*argv, *needs]).row() == config.row()
    assert config.comm.system == "none"
    assert CommConfig(system=recipe.name) == config.comm, "so in Python"
    file = tmp_path / "run.yaml"
    file.write_text(f"system: {recipe.name}\n")
    assert parse(["--config", str(file), *needs]) == config
    file.write_text(config.to_yaml())
    assert parse(["--config", str(file)]) == config, "what is written is read again"


@every_recipe
@pytest.mark.parametrize("world", [2, 8])
def test_bits_are_those_of_the_compressors(recipe: Recipe, world: int) -> None:
    comm = typed(recipe).comm
    gradients = (recipe.gradient_bits, comm.comm_compress, comm.comm_config_json)
    parameters = (recipe.parameter_bits, comm.param_compress, comm.param_config_json)
    for said, name, settings in (gradients, parameters):
        if said is not None:
            assert bits(name, settings, world) == pytest.approx(said, abs=0.005 if said > 0.1 else 0.0005)


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.outer_bits], ids=lambda recipe: recipe.name)
def test_bits_of_local_steps_are_those_of_their_messages(recipe: Recipe) -> None:
    comm = typed(recipe).comm
    sent = bits(*cc.labels.parse_label(comm.outer_compress), 2)
    back = bits(*cc.labels.parse_label(comm.outer_gather), 2)
    everything = 2 * sent if comm.outer_exchange == "all_gather" else sent + back
    assert recipe.outer_bits == pytest.approx(everything / comm.outer_every, abs=0.0005)


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.optimizer_bits], ids=lambda recipe: recipe.name)
def test_bits_between_replicas_are_those_of_a_step(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    config = typed(recipe)
    model = torch.nn.Linear(512, 256, bias=False)
    monkeypatch.setattr(replica_optimizers, "matrices_of_blocks", lambda model: {"": dict(model.named_parameters())})
    replicas = cc.optim.VirtualReplicas(model, 2)
    optim = dataclasses.replace(config.optim, learning_rate=0.1, warmup_steps=1)
    methods = config.comm.optimizer_compress, config.comm.optimizer_gather, config.comm.optimizer_until_freeze
    optimizer, _ = build_optimizer(model, optim, 10, "loop", replicas, *methods)
    sent = 0
    for _ in range(2):
        before = sum(ledger.totals().sent_bytes for ledger in replicas.ledgers)  # of one matrix there is one server
        for rank in range(2):
            model.weight.grad = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(rank))
            replicas.collect(rank)
        optimizer.step()
        optimizer.zero_grad()
        sent = sum(ledger.totals().sent_bytes for ledger in replicas.ledgers) - before
    assert cc.outer.bits(sent, model.weight.numel(), 1, 2) / 2 == pytest.approx(recipe.optimizer_bits, abs=0.0005)


def test_only_sizes_that_the_data_decide_are_not_said() -> None:
    said = ("outer_bits", "gradient_bits", "parameter_bits", "optimizer_bits")
    unsaid = {one.name for one in RECIPES if all(getattr(one, bits) is None for bits in said)}
    ours = {name + rest for name in ("five-bits", "three-bits") for rest in ("", "-moves")}
    assert unsaid == {
        "lossless",
        "lossless-both",
        "powersgd",
        "dion",
        "two-bits",
        "two-bits-moves",
        "two-bits-misfit",
        "two-bits-ranks",
        "muon-four-bits",
        "muon-powersgd",
        "muon-powersgd-2",
        "third-of-a-bit",
        "muloco-powersgd",
        *ours,
    }


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (["powersgd", "--comm_config_json", '{"rank": 8}'], {"comm_compress": "powersgd rank=8"}),
        (["powersgd", "--param_compress", "delta"], {"comm_compress": "powersgd + delta"}),
        (["sdp4bit", "--method", "int4"], {"comm_compress": "int4 hadamard + delta"}),
        (["sdp4bit", "--fsdp_prefetch", "0"], {"comm_compress": "int4 hadamard + delta, prefetch 0"}),
        (["zero++-qwz", "--method", "topk ratio=0.1"], {"comm_compress": "topk ratio=0.1 + int8"}),
        (["diloco", "--outer_every", "500", "--dp_replicas", "2"], {"outer": "diloco", "outer_every": 500}),
        (["none"], {}),
    ],
)
def test_what_a_system_leaves_open_may_be_given(flags: list[str], meant: dict[str, Any]) -> None:
    assert parse(["--system", *flags]).comm == TrainConfig.of(**meant).comm


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ["sdp4bit", "--param_compress", "int8"],
            "system: sdp4bit says delta for param_compress, which is given as int8",
        ),
        (["sdp4bit", "--param_compress", "none"], "which is given as none, too"),
        (["sdp4bit", "--method", "int8 + delta"], "system: sdp4bit says int4 for comm_compress"),
        (["sdp4bit", "--method", "int4 no hadamard"], "comm_config_json: int4: hadamard is said twice"),
        (["zero++-hpz", "--fsdp_reshard"], "says false for fsdp_reshard, which is given as true"),
        (["torchtitan", "--comm_dtype", "bf16"], "says fp32 for comm_dtype"),
        (["diloco", "--outer", "local_sgd"], "says diloco for outer"),
        (["sparseloco", "--outer_compress", "topk"], "for outer_compress, which is given as topk"),
        (["sdp4bits"], "no system 'sdp4bits'; did you mean sdp4bit?"),
        (["ZeRO++"], "no system 'ZeRO++'; did you mean zero++?"),
        (["SCAPE"], "scape cannot be run here: it chooses"),
    ],
)
def test_contradictions_and_unknown_names_are_one_message(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        settings_command(["check", "--", "--system", *flags])
    assert ending.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.startswith("settings: a problem with the settings\n")
    assert len(said.splitlines()) == 2


def test_all_contradictions_are_told_at_once_with_other_complaints() -> None:
    flags = ["--system", "sdp4bit", "--method", "int8", "--param_compress", "int8", "--batch_size", "x"]
    with pytest.raises(ConfigError, match="3 problems"):
        parse(flags)


def test_a_value_that_is_no_name_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigError, match=r"system: got \['sdp4bit'\], wants some text"):
        TrainConfig.of(system=["sdp4bit"])


def test_a_recipe_of_sweeps_may_name_a_system(tmp_path: Path) -> None:
    by_name = read(write_recipe(tmp_path, arms=["none", {"system": ["sdp4bit", "five-bits"]}])).arms
    labels = ["none", "int4 hadamard + delta", "ecsq step=0.25 + delta mode=grid step=0.05"]
    assert by_name == read(write_recipe(tmp_path, arms=labels)).arms
    with pytest.raises(ValueError, match="no system 'sdp'"):
        read(write_recipe(tmp_path, arms=["none", {"system": "sdp"}]))
    with pytest.raises(ValueError, match="says int4 for gradients, which is given as int8"):
        read(write_recipe(tmp_path, arms=["none", {"system": "sdp4bit", "gradients": "int8"}]))
    with pytest.raises(ValueError, match="say it in arms"):
        read(write_recipe(tmp_path, arms=["none"], common={"system": "sdp4bit"}))


def test_the_committed_recipe_has_the_arm_of_every_system_that_runs_under_fsdp2() -> None:
    arms = {arm.label for arm in read(ROOT / "experiments/recipes/chart/systems.yaml").arms}
    assert arms == {"none"} | {arm_of(typed(one).comm) for one in RECIPES if not one.needs}


def test_names_are_unique_and_lead_to_their_system() -> None:
    names = [one.name for entry in SYSTEMS for one in entry.recipes]
    assert len(set(names)) == len(names)
    assert not set(names) & {missing.name for missing in MISSING}
    for entry in SYSTEMS:
        assert entry.recipes[0].name == entry.name
        assert all(system(one.name) is entry for one in entry.recipes)
        assert entry.paper is None or re.fullmatch(r"\d{4}\.\d{5}", entry.paper.arxiv)


def test_quoted_settings_in_the_texts_can_be_given() -> None:
    """What a text tells to type after --comm_config_json is taken by that system."""
    seen = 0
    for entry in SYSTEMS:
        for found in re.findall(r"'(\{[^']*\})'", " ".join([entry.here, *entry.differs])):
            config = parse(["--system", entry.name, "--comm_config_json", found])
            assert complaints_about(config.comm) == []
            assert json.loads(found).items() <= config.comm.comm_config_json.items()
            seen += 1
    assert seen >= 3
