"""A draft is trained, saved, gone on from, and judged; ranks give the numbers of one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from tqdm import tqdm

import comm_compress as cc
from fsdp_lab import results
from fsdp_lab.data import digest_of_all
from fsdp_lab.data.chats.examples import Example
from fsdp_lab.eagle import evaluate, train
from fsdp_lab.eagle.data.chats import Chats
from fsdp_lab.eagle.data.tokens import load_chat_tokenizer, load_examples
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.folder import load_draft
from fsdp_lab.eagle.training.positions import PositionScores, expected_tau, positions
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel, shard
from fsdp_lab.results.validation import problems
from fsdp_lab.run.entry import run_training
from tests.distributed import run_program, run_ranks, torchrun_environment
from tests.fsdp_lab.eagle.tiny import VOCABULARY, save_target, tiny_draft, tiny_target

STEPS = 3


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :7], mask[1, :2] = False, False  # ranks with different numbers of supervised rows
    return tokens, mask


def model() -> EagleTrainingModel:
    target = tiny_target("llama", torch.float32)
    return EagleTrainingModel(target, tiny_draft(target), STEPS)


def gradients_of_a_rank(shard_target: bool) -> tuple[float, dict[str, Any], int]:
    """The loss and whole gradients of this rank's half of the batch, and how many bytes were sent uncompressed."""
    built, rank = model(), dist.get_rank()
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    shard(built, init_device_mesh("cpu", (2,)), policy, target=shard_target)
    handle = cc.attach(built, reduce_scatter=cc.make("identity"))
    tokens, mask = (x[rank : rank + 1] for x in batch())
    counts = built.counts(mask)
    dist.all_reduce(counts)
    outcome = built(tokens, mask, counts / 2)
    outcome.loss.backward()
    found = {name: p.grad.full_tensor().numpy() for name, p in built.draft.named_parameters()}  # type: ignore[union-attr]
    assert all(p.grad is None for p in built.target.parameters())
    return float(outcome.loss.detach()), found, handle.ledger.totals("reduce_scatter").raw_bytes


@pytest.mark.parametrize("shard_target", [False, True])
def test_two_ranks_give_the_gradients_of_one(shard_target: bool) -> None:
    """The mean is over all ranks' supervised tokens; the draft is one unit, reduced once."""
    alone = model()
    outcome = alone(*batch())
    outcome.loss.backward()
    ranks = run_ranks(2, gradients_of_a_rank, shard_target)
    assert sum(loss for loss, _, _ in ranks) / 2 == pytest.approx(float(outcome.loss.detach()), rel=1e-5)
    for name, parameter in alone.draft.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(torch.tensor(ranks[0][1][name]), parameter.grad, rtol=1e-4, atol=1e-5)
    elements = sum(p.numel() for p in alone.draft.parameters())
    assert ranks[0][2] == pytest.approx(4 * elements / 2, rel=0.05)


def test_the_table_by_hand() -> None:
    """From each row of each conversation, counted one by one."""
    built = model().eval()
    tokens, mask = batch()
    examples = [Example(str(i), tokens[i, : 12 - i], mask[i, : 12 - i]) for i in range(2)]
    table = positions(built, examples, batch_size=1)
    for one, two in zip(table, positions(built, examples, batch_size=2), strict=True):
        assert one == pytest.approx(two, rel=1e-4)
    rows, right, judged = [0] * STEPS, [0] * STEPS, [0] * STEPS
    with torch.no_grad():
        for example in examples:
            outcome = built(example.tokens[None], example.said[None])
            for t in range(len(example.tokens)):
                for k in range(STEPS):
                    rows[k] += bool(outcome.supervised[k, 0, t])
                    if outcome.supervised[k, 0, t] and outcome.scores.correct[:k, 0, t].all():
                        judged[k] += 1
                        right[k] += bool(outcome.scores.correct[k, 0, t])
    assert [row.tokens for row in table] == rows
    assert [row.conditional for row in table] == [r / max(1, j) for r, j in zip(right, judged, strict=True)]
    half = PositionScores(1, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0)
    assert expected_tau([half, half]) == 1.75


def chats(path: Path) -> Path:
    """An answer that repeats one letter: what a draft can learn in a few steps."""
    lines = []
    for i in range(12):
        turns = [("human", f"say {chr(97 + i)}"), ("gpt", chr(97 + i) * 20)]
        lines.append(json.dumps({"id": str(i), "conversations": [{"from": w, "value": v} for w, v in turns]}))
    path.write_text("\n".join(lines))
    return path


def conversations(folder: Path) -> list[Example]:
    tokenizer = load_chat_tokenizer(folder / "target")
    return load_examples(folder / "chats.jsonl", tokenizer, 100).examples


def digest_of(examples: list[Example], count: int, seed: int = 42) -> str:
    """Of the first conversations that are dealt, as one process would have them: written anew, row by row."""
    total = 0
    for i in range(count):
        epoch, place = divmod(i, len(examples))
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        example = examples[order[place]]
        data = torch.cat([example.tokens, example.said.long()]).numpy().tobytes()
        found = hashlib.blake2b(data, digest_size=16, salt=i.to_bytes(16, "little"))
        total += int.from_bytes(found.digest(), "little")
    return f"{total % 2**128:032x}"


def words(folder: Path, *more: str) -> list[str]:
    given = ["--target_dir", str(folder / "target"), "--data_path", str(folder / "chats.jsonl"), "--threads", "1"]
    small = ["--draft_vocab_size", "40", "--batch_size", "3", "--steps_ahead", "3", "--max_length", "100"]
    places = ["--output_dir", str(folder / "out"), "--results_path", str(folder / "results.jsonl")]
    return [*given, *small, *places, "--learning_rate", "0.003", "--tensorboard", "false", *more]


def run(folder: Path, world: int, *more: str) -> tuple[int, str, str]:
    environment = [{**e, "GLOO_SOCKET_IFNAME": "lo"} for e in torchrun_environment(world)]
    return run_program(_main, [words(folder, *more)] * world, environment)


def _main() -> None:
    tqdm.set_lock(RLock())  # its own is a semaphore, and ranks leave by os._exit
    run_training(train.train, EagleConfig, "fsdp_lab.eagle.train")


def test_train_go_on_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path / "target")
    chats(tmp_path / "chats.jsonl")
    settings = ["--max_steps", "30", "--comm_compress", "int8", "--log_interval", "15", "--tensorboard", "true"]
    code, out, err = run(tmp_path, 2, *settings, "--run_name", "first")
    assert code == 0, err
    assert "12 conversations; the draft knows 40 tokens" in out
    losses = [float(line.split("loss_0 ")[1].split()[0]) for line in out.splitlines() if "loss_0 " in line]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    (row,) = results.load(tmp_path / "results.jsonl")
    assert problems(row) == []
    assert (row["draft_target"], row["steps"], row["val_loss"]) == (str(tmp_path / "target"), 30, None)
    assert row["compression_ratio_reduce_scatter"] > 3
    assert row["tokens_seen"] == 15 * sum(len(e.tokens) for e in conversations(tmp_path))
    assert row["train_loss_by_position"][0] == pytest.approx(losses[1], rel=0.2)
    assert row["data_digest"] == digest_of(conversations(tmp_path), 30 * 6)
    events = EventAccumulator(str(tmp_path / "out/logs/first/tensorboard")).Reload()
    for k in range(STEPS):
        seen = [(scalar.step, scalar.value) for scalar in events.Scalars(f"positions/loss_{k}")]
        assert seen == [(15, pytest.approx(seen[0][1])), (30, pytest.approx(row["train_loss_by_position"][k], rel=0.2))]
        assert f"positions/loss_{k}" not in out
    assert all(0.05 < scalar.value < 10 for scalar in events.Scalars("memory/rss_gb"))
    runs = tmp_path / "out" / "runs"
    code, _, err = run(tmp_path, 1, "--max_steps", "1", "--draft_dir", str(runs / "first/draft"), "--run_name", "more")
    assert code == 0, err
    first, again = (load_draft(runs / name / "draft") for name in ("first", "more"))
    assert torch.equal(first.d2t, again.d2t)
    assert 0 < float((first.fc.weight - again.fc.weight).detach().abs().max()) < 0.01

    places = {"target_dir": "target", "draft_dir": "out/runs/first/draft", "data_path": "chats.jsonl"}
    given = [word for name, place in places.items() for word in (f"--{name}", str(tmp_path / place))]
    assert evaluate.main([*given, "--prompts", "2", "--max_new_tokens", "6", "--steps_ahead", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("2 of 2") == 3  # by 1, 2 and 4 drafts a pass
    assert "expected tokens a pass of the target, 2 drafts" in said


def test_a_stop_signal_is_an_exit_code_of_its_own(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    chats(tmp_path / "chats.jsonl")
    environment = [{**torchrun_environment(1)[0], "FSDP_LAB_FAULT": "usr2:step=2"}]
    code, out, err = run_program(_main, [words(tmp_path, "--max_steps", "4", "--run_name", "a")], environment)
    assert code == 143, err
    assert "step 2 is saved" in out
    assert "fsdp_lab.eagle.train: stopped by SIGUSR2" in err


def test_conversations_go_on_from_a_whole_state_only() -> None:
    tokens, mask = batch()
    examples = [Example(str(i), tokens[i], mask[i]) for i in range(2)]

    def dealt(world: int) -> list[Chats]:
        unused: Any = None
        ranks: list[Any] = [SimpleNamespace(rank=rank, world=world) for rank in range(world)]
        return [Chats("c", unused, unused, examples, 2 // world, 1, r, seed=0) for r in ranks]

    (alone,), both = dealt(1), dealt(2)
    for chats_ in (alone, *both):
        chats_.next_batch()
        chats_.next_batch()
    parts = [chats_._dealt.part(2) for chats_ in (alone, *both)]
    assert digest_of_all(parts[:1]) == digest_of_all(parts[1:])
    state = both[1].state_dict()
    (_, again) = dealt(2)
    again.load_state_dict(state)
    assert again.state_dict() == state
    del state["digest"]
    with pytest.raises(ValueError, match=r"resume: the saved state .* of another version: it lacks \['digest'\]"):
        again.load_state_dict(state)


def test_who_hangs_is_said_by_the_program_that_was_started(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    chats(tmp_path / "chats.jsonl")
    environment = [{**torchrun_environment(1)[0], "FSDP_LAB_FAULT": "hang:rank=0,step=2"}]
    code, _, err = run_program(_main, [words(tmp_path, "--max_steps", "4", "--hang_timeout_s", "2")], environment)
    assert code == 1
    assert "fsdp_lab.eagle.train: no progress for" in err
    (row,) = results.load(tmp_path / "results.jsonl")
    assert (row["status"], row["draft_target"]) == ("failed", str(tmp_path / "target"))


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    chats(tmp_path / "chats.jsonl")
    code, _, err = run(tmp_path, 1)
    assert (code, "target_dir: no folder" in err, "Traceback" in err) == (2, True, False)
    (tmp_path / "target").mkdir()
    code, _, err = run(tmp_path, 1)
    assert (code, "holds no config.json" in err, "Traceback" in err) == (2, True, False)
