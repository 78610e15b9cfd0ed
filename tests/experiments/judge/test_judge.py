"""`fsdp-lab judge` from file to page; parts run in this process, and ranks are forked from the tests' server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import comm_compress as cc
from analysis.judged.__main__ import main as make_page
from experiments.judge import __main__ as command, children, stage
from experiments.judge.measures import bytes_by_ranks, errors, rank, speed
from experiments.judge.subject import channels, loading, plugin
from experiments.judge.subject.job import Fact, Job
from tests.distributed import run_ranks

FOLDER = Path(__file__).parent / "judged"
SMALL = {"elements": 1 << 12, "mib": 1, "repeats": 1}
HEAD = "import comm_compress as cc\nfrom comm_compress.methods.identity import Identity, IdentityConfig\n"
METHOD = "@cc.register({!r}, IdentityConfig)\nclass {}(Identity):\n    pass\n"


def on_rank(file: str, method: str, folder: str) -> list[Fact]:
    before = channels.library()
    job = Job(Path(file), method, loading.load(Path(file)), before, {})
    return list(rank.collectives(job, dist.get_rank(), Path(folder)))


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch, fresh_registry: None) -> None:
    """Every part in this process, small; each as if the file had not been imported yet."""

    def part(
        name: str, file: Path, method: str, folder: Path, limit_s: float, options: Mapping[str, Any] | None = None
    ) -> list[Fact]:
        out = folder / f"{name}.jsonl"
        known = set(cc.available())
        stage.main([name, str(file), method, str(out), json.dumps(dict(options or {}))])
        for new in set(cc.available()) - known:
            del cc.registry._METHODS[new]  # type: ignore[attr-defined]
        sys.modules.pop(plugin.module_name(file), None)
        return children.facts_in(out)

    monkeypatch.setattr(children, "run_part", part)
    monkeypatch.setattr(
        bytes_by_ranks,
        "run_ranks",
        lambda file, method, folder, *_: run_ranks(2, on_rank, str(file), method, str(folder), alone=True),
    )
    monkeypatch.setattr(command, "SIZES", {True: SMALL, False: SMALL})
    monkeypatch.setattr(errors, "BESIDE", ("int8",))
    monkeypatch.setattr(speed, "BESIDE", ("int8",))
    monkeypatch.setattr(command.trainings, "page", lambda folder: make_page([str(folder / "facts.json")]))


def judged(file: Path, out: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    code = command.main([str(file), "--out", str(out), "--no_training", "--quick", *words])
    return code, json.loads((out / "judged.json").read_text()), (out / "index.html").read_text()


def test_a_sound_method_gets_a_page_with_all_that_was_measured(tmp_path: Path) -> None:
    code, facts, page = judged(FOLDER / "stc.py", tmp_path / "stc", "--settings", '{"ratio": 0.05}')
    assert code == 0
    assert facts["look"]["method"] == "stc ratio=0.05"
    assert facts["broken"] == []
    (bits,) = [fact for fact in facts["facts"]["ranks"] if fact["kind"] == "bits"]
    for of_rank in bits["by_rank"]:  # 32 bits of place and one of sign for 5 % of the elements
        assert of_rank["declared"] == of_rank["counted"] == of_rank["moved"] == pytest.approx(0.05 * 33, rel=0.01)
    by_data = {f["data"]: f for f in facts["facts"]["errors"] if f["kind"] == "error" and f["judged"]}
    assert by_data["laplace"]["nmse"] < by_data["gauss"]["nmse"] < 1  # heavier tails suit it
    assert all(f["memcpy_ratio"] > 0 for f in facts["facts"]["speed"])
    for words in ("11 of 11 laws and 8 of 8 checks hold", "stc ratio=0.05", "bytes of state", "x memcpy"):
        assert words in page
    assert "http" not in page.partition("<main>")[2].replace("http-equiv", "")


def test_a_cheat_ends_with_one_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, facts, page = judged(FOLDER / "smuggler.py", tmp_path)
    assert code == 1
    assert "broken: only_messages_reach_other_ranks" in capsys.readouterr().err
    assert "Not to be compared" in page
    assert any("outside of its `cc.State` (EXACT)" in text for _, text in facts["objections"])


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("x = 1\n", [], "registers no method"),
        (HEAD + METHOD.format("one", "One") + METHOD.format("two", "Two"), [], "say which one with --method"),
        (HEAD + METHOD.format("one", "One"), ["--method", "two"], "registers one, and no 'two'"),
        (HEAD + METHOD.format("one", "One"), ["--settings", '{"ratio": 1}'], "unknown key 'ratio'"),
        (HEAD + METHOD.format("int8", "One"), [], "'int8' is already registered (mine.py:3)"),
        ("def broken(:\n", [], "SyntaxError: invalid syntax (mine.py, line 1) (mine.py:1)"),
        ("raise SystemExit(0)\n", [], "cannot be imported: SystemExit: 0 (mine.py:1)"),
        ("", ["--settings", "[1]"], "wants a JSON object"),
        ("", ["--method", "a=("], "a method is written like"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_two(
    text: str, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SystemExit) as stop:
        command.main([str(tmp_path / "mine.py"), "--out", str(tmp_path / "out"), "--no_training", *words])
    assert stop.value.code == 2
    said = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith(("judge:", "python -m", "fsdp-lab"))
    ]
    assert len(said) == 1
    assert message in said[0]


def test_a_missing_corpus_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(children, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as stop:
        command.main([str(FOLDER / "stc.py"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "--no_training" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_broken_methods_are_not_trained_unless_asked() -> None:
    options = command._parser().parse_args([str(FOLDER / "stc.py")])
    why = command._trained(options, FOLDER / "stc.py", {"method": "stc"}, Path("rows"), ["a law: broken"])
    assert "--anyway" in why


def test_what_a_stranger_never_ends_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program = (
        'import sys, time; print(\'{"kind": "begun", "name": "zeros_stay_zero"}\', '
        "file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    )

    def start(words: list[str], log: Any, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program, words[5]], start_new_session=True)

    monkeypatch.setattr(children, "start", start)
    begun = time.monotonic()
    facts = children.run_part("laws", FOLDER / "sleeper.py", "sleeper", tmp_path, 1.5)
    assert facts[-1] == {"kind": "late", "why": "zeros_stay_zero had not ended after 1.5 s, and was stopped"}
    assert time.monotonic() - begun < 20


def test_a_file_that_is_never_read_to_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [{"kind": "late", "why": "had not ended after 60 s, and was stopped"}]
    monkeypatch.setattr(children, "run_part", lambda *words: late)
    code, facts, page = judged(FOLDER / "stc.py", tmp_path)
    assert code == 1
    assert "broken: importing stc.py had not ended after 60 s" in capsys.readouterr().err
    assert "importing stc.py had not ended" in page
    assert facts["place"] is None
