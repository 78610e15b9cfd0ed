"""The recipe from questions to figures, on a tiny random target."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.drafts import real_run, smollm2
from experiments.drafts.questions import main as questions_main, questions
from experiments.drafts.real_run import Part, Progress
from experiments.drafts.report import report
from fsdp_lab.settings.reading.strict import load_json
from tests.distributed import preload, run_program
from tests.fsdp_lab.eagle.tiny import save_target

for module in ("fsdp_lab.eagle.data.regenerate", "fsdp_lab.eagle.train", "fsdp_lab.eagle.evaluate"):
    preload(module)

SMALL = {
    "questions": 8, "choice": 2, "held_out": 6, "answer_tokens": 8, "answer_batch": 4, "epochs": 1, "eval_steps": 1,
    "prompts": 2,
}  # fmt: skip


REFERENCE = Path(__file__).parents[3] / "results/reference/drafts"


def test_the_committed_report_is_of_the_committed_figures() -> None:
    found = load_json((REFERENCE / "real_run.json").read_bytes())
    assert (REFERENCE / "real_run.md").read_text(encoding="utf-8") == report(found)


def test_nobody_is_asked_about_the_same_article_twice() -> None:
    asked = questions(50, 5, 10, seed=1)
    names = [row["id"] for rows in asked.values() for row in rows]
    assert {name: len(rows) for name, rows in asked.items()} == {"held_out": 10, "choice": 5, "training": 50}
    assert len(set(names)) == 65
    more = questions(80, 5, 10, seed=1)
    assert (more["held_out"], more["choice"]) == (asked["held_out"], asked["choice"]), "whatever is trained on"
    assert more["training"][:50] == asked["training"]
    assert questions(50, 5, 10, seed=2)["held_out"] != asked["held_out"]
    with pytest.raises(ValueError, match="questions, but there are"):
        questions(10_000, 100, 100, seed=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("real_run") / "target")


def as_module() -> None:
    """What `python -m` does with the words after it."""
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def forked(progress: Progress, part: Part) -> int:
    """The part's own command in a process that has its imports already, which else take most of the time."""
    code, _, err = run_program(as_module, [part.command[2:]], [{"OMP_NUM_THREADS": "1"}])
    progress.ended(part, 0.1, code)
    assert code == 0, err
    return code


def flags(target: Path, out: Path, **changed: Any) -> list[str]:
    given = {**SMALL, "target_dir": target, "out": out, **changed}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def test_from_questions_to_figures(
    target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished, the same command changes nothing; other flags are refused."""
    out, training = tmp_path / "drafts", ["--", "--threads", "1", "--steps_ahead", "2", "--tensorboard", "false"]
    monkeypatch.setattr(Progress, "run", forked)
    assert real_run.main([*flags(target, out), *training]) == 0
    said = capfd.readouterr().out
    found = json.loads((out / "real_run.json").read_bytes())
    assert found["training"]["tau_prompts"] == len((out / "choice.jsonl").read_text().splitlines())
    speed = found["evaluation"]["speed"]
    assert [drafting["num_drafts"] for drafting in speed["drafting"]] == [1, 2, 4]
    assert {drafting["same_output"] for drafting in speed["drafting"]} == {speed["prompts"]} == {SMALL["prompts"]}
    text = (out / "real_run.md").read_text()
    assert text == report(found)
    assert text in said
    assert text.count("| 2 of 2 |") == 3

    assert real_run.main([*flags(target, out), *training]) == 0
    assert json.loads((out / "real_run.json").read_bytes()) == found
    with pytest.raises(SystemExit, match="2"):
        real_run.main([*flags(target, out, epochs=2), *training])
    assert "training is there already, made by" in capfd.readouterr().err


def test_a_part_that_failed_is_run_again_and_one_that_did_not_is_left(tmp_path: Path) -> None:
    code = tmp_path / "code"
    command = f"import sys; sys.exit(int(open({str(code)!r}).read()))"
    part = Part("a part", [sys.executable, "-c", command])
    for number in (3, 0):
        code.write_text(str(number))
        assert not Progress(tmp_path / "progress.json").is_done(part)
        assert Progress(tmp_path / "progress.json").run(part) == number
    progress = Progress(tmp_path / "progress.json")
    assert progress.is_done(part)
    assert progress.seconds["a part"] > 0
    with pytest.raises(ValueError, match="a part is there already"):
        progress.is_done(Part("a part", [sys.executable, "-c", ""]))


@pytest.mark.parametrize("main", [real_run.main, questions_main, smollm2.main])
def test_a_folder_that_cannot_be_made_is_one_message(
    main: Callable[[list[str]], int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(smollm2, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(smollm2, "member", lambda *_: b"")
    monkeypatch.setattr(smollm2, "_READERS", ())
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path / "file" / "drafts" / "target")])
    assert "wants a folder, there or to be made; " in capsys.readouterr().err


def test_a_folder_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        smollm2.main(["--out", str(tmp_path)])
    assert "is there already" in capsys.readouterr().err
