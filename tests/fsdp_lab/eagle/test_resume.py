"""A draft's training that goes on ends where the uninterrupted one does, bit for bit; the best draft is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open

from fsdp_lab import results
from fsdp_lab.checkpoint.files.folder import Manifest
from fsdp_lab.checkpoint.files.safe_load import load_own
from fsdp_lab.eagle.choice import Choice
from fsdp_lab.eagle.data.prompts import first_prompts
from fsdp_lab.eagle.data.tokens import load_chat_tokenizer
from fsdp_lab.eagle.decoding.chain import speculate
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.folder import load_draft, save_draft, verifier_of
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.results.validation import problems
from fsdp_lab.run.run import Run
from tests.distributed import preload
from tests.fsdp_lab.checkpoint.test_resume import same
from tests.fsdp_lab.eagle.test_train import chats, words
from tests.fsdp_lab.eagle.tiny import save_target, tiny_draft, tiny_target
from tests.fsdp_lab.training_ranks import StopAfter, Training, train_all

preload("fsdp_lab.eagle.train")
STEPS, STOP = 6, 3
TOPK = {"comm_compress": "topk", "comm_config_json": '{"ratio": 0.05}', "param_compress": "identity"}
MEASURED = {"eval_steps": 2, "eval_prompts": 3, "eval_max_new_tokens": 8, "num_drafts": 3}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str | None]]:
    folder = tmp_path_factory.mktemp("drafts")
    save_target(folder / "target")
    chats(folder / "chats.jsonl")

    def flags(name: str, **settings: Any) -> list[str]:
        fixed = {"run_name": name, "max_steps": STEPS, "save_steps": STOP, "log_interval": 1}
        more = [word for k, v in (fixed | settings).items() for word in (f"--{k}", str(v))]
        return [*words(folder, *more), "--output_dir", str(folder / name)]

    topk = TOPK | MEASURED | {"eval_data": folder / "chats.jsonl"}
    stopped = flags("topk-stopped", **topk, gradient_accumulation_steps=2)
    trainings = [
        Training(flags("none-whole"), draft=True),
        Training(flags("none-resumed", resume=checkpoint(folder, "none-whole", STOP)), draft=True),
        Training(flags("topk-whole", **topk, gradient_accumulation_steps=2), draft=True),
        Training(stopped, event=StopAfter(STOP), draft=True),
        Training(stopped, draft=True),
    ]
    little = {"eval_steps": STOP, "eval_prompts": 1, "eval_max_new_tokens": 3}  # it is profiled, which is slow
    sharded: dict[str, Any] = {"comm_compress": "int8", "shard_target": "true", **little}
    sharded["eval_data"] = folder / "chats.jsonl"
    path = checkpoint(folder, "sharded-whole", STOP)  # from there on it is measured before it is trained
    trainings.append(Training(flags("sharded-whole", **sharded), draft=True))
    trainings.append(Training(flags("sharded-resumed", **sharded, resume=path), draft=True))
    return folder, train_all(trainings)


def checkpoint(folder: Path, run: str, step: int) -> Path:
    return folder / run / "runs" / run / "checkpoints" / f"step-{step:08d}"


def draft_of(folder: Path, run: str) -> Path:
    return folder / run / "runs" / run / "draft"


def row(folder: Path, run: str) -> dict[str, Any]:
    return [row for row in results.load(folder / "results.jsonl") if row["run_name"] == run][-1]


def test_a_stop_signal_ends_it_and_the_same_command_goes_on(ended: tuple[Path, list[str | None]]) -> None:
    folder, said = ended
    assert said == [None, None, None, "Preempted: SIGTERM to rank 1", None, None, None]
    rows = [row for row in results.load(folder / "results.jsonl") if row["run_name"] == "topk-stopped"]
    assert [(row["status"], row["saved_step"]) for row in rows] == [("preempted", STOP), ("ok", STEPS)]
    assert rows[1]["resumed_at_steps"] == [STOP]
    assert not any(problems(row) for row in rows)


@pytest.mark.parametrize(
    ("whole", "resumed"),
    [("none-whole", "none-resumed"), ("topk-whole", "topk-stopped"), ("sharded-whole", "sharded-resumed")],
)
def test_it_ends_where_the_uninterrupted_one_does(
    ended: tuple[Path, list[str | None]], whole: str, resumed: str
) -> None:
    folder, _ = ended
    one, other = (load_draft(draft_of(folder, name)).state_dict() for name in (whole, resumed))
    assert same(dict(one), dict(other))
    first, second = row(folder, whole), row(folder, resumed)
    for name in (
        "train_loss",
        "train_loss_by_position",
        "train_accuracy_by_position",
        "tokens_seen",
        "data_digest",
        "tau",
        "tau_step",
    ):
        assert first[name] == second[name], name
    assert first["data_digest"]
    assert 0 < first["bytes_compressed_total"] == second["bytes_compressed_total"]
    if whole != "topk-whole":  # no last checkpoint before stock collectives were seen
        return
    paths = [checkpoint(folder, name, STEPS) for name in (whole, resumed)]
    files = [
        {entry.name: entry.sha256 for entry in Manifest.read(path).files if entry.name.startswith("weights/__")}
        for path in paths
    ]
    assert len(files[0]) == 2, "a part of draft and optimizer for each rank"
    assert files[0] == files[1]
    for rank in range(2):
        mine, theirs = (load_own(path / f"rank-{rank}.pt") for path in paths)
        assert all(same(mine[part], theirs[part]) for part in ("compressors", "data", "also", "schedule"))


def test_the_best_measured_draft_is_kept(ended: tuple[Path, list[str | None]]) -> None:
    """As the curve has it: the first of those with the largest tau; after every second step and at the end."""
    folder, _ = ended
    curve = (folder / "topk-stopped" / "runs" / "topk-stopped" / "curve.jsonl").read_text().splitlines()
    measured = [(line["tau"], line["step"]) for line in map(json.loads, curve) if "tau" in line]
    assert [step for _, step in measured] == [2, 4, 6]
    best = max(measured, key=lambda m: (m[0], -m[1]))
    found = row(folder, "topk-stopped")
    assert (found["tau"], found["tau_step"], found["tau_prompts"]) == (pytest.approx(best[0]), best[1], 3)
    kept = draft_of(folder, "topk-stopped")
    with safe_open(kept / "model.safetensors", "pt") as file:
        assert (file.metadata()["step"], float(file.metadata()["tau"])) == (str(best[1]), found["tau"])
    draft, target = load_draft(kept), Target.from_folder(folder / "target", torch.float32)
    tokenizer = load_chat_tokenizer(folder / "target")
    prompts = first_prompts(folder / "chats.jsonl", tokenizer, 3, 200)
    got = [speculate(target, draft, prompt, 8, 3, stop=[tokenizer.eos_token_id]) for prompt in prompts]
    assert found["tau"] == sum(len(g.tokens) - 1 for g in got) / sum(g.passes for g in got)


def test_a_resumed_run_knows_the_best_draft_so_far(tmp_path: Path) -> None:
    """From the folder itself, if it is this run's; a new run takes any that is measured."""
    target = tiny_target("llama", torch.float32)
    notes = {"run_name": "mine", "tau": "1.75", "step": "40"}
    save_draft(tiny_draft(target), tmp_path / "draft", verifier_of(""), notes=notes)

    def known(name: str, is_resumed: bool) -> Any:
        ranks = SimpleNamespace(broadcast=lambda value: value)
        paths = SimpleNamespace(model=tmp_path / "draft")
        run = SimpleNamespace(name=name, paths=paths, is_resumed=is_resumed, ranks=ranks)
        model: Any = SimpleNamespace()
        return Choice(EagleConfig.of(output_dir=str(tmp_path)), model, model, cast(Run, run)).row()["tau"]

    assert [known("mine", True), known("mine", False), known("another", True)] == [1.75, None, None]
