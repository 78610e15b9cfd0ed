"""The audit of a whole program: a stranger's ranks are counted, also killed ones, and nothing else changes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor

import comm_compress as cc
from comm_compress.integrations.audit.lines import Line
from comm_compress.integrations.audit.whole_program import count_files as kept, running
from comm_compress.integrations.audit.whole_program.count_files import Kept, RankCounts
from fsdp_lab.audit import main
from tests.distributed import run_ranks

ROOT = Path(__file__).resolve().parents[4]
LINE = Line("all_reduce", "default_pg 0,1", "float32", "a.py:1", "user", "f()", ("a.py:1 f",), 3, 300, 200, 100)

FSDP2 = """
import os, sys
import sitecustomize
assert sitecustomize.whose == "the user's", "their own is run"
assert not any("whole_program" in place for place in sys.path)
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 64, bias=False))
fully_shard(model)
for step in range(3):
    model(torch.ones(8, 64)).square().mean().backward()
dist.all_reduce(torch.ones(1000))
dist.barrier()
os._exit(0)  # nothing that Python does at its end is done
"""


def test_a_strangers_torchrun_is_counted_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(FSDP2)
    (tmp_path / "sitecustomize.py").write_text('whose = "the user\'s"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert main(["--json", str(tmp_path / "bytes.json"), "--", *launched, str(tmp_path / "train.py")]) == 0
    found = json.loads((tmp_path / "bytes.json").read_text())
    assert [(rank["rank"], rank["world_size"], rank["has_ended"]) for rank in found["ranks"]] == [
        (0, 2, False),
        (1, 2, False),
    ]
    weights = 2 * 64 * 32 * 4  # bytes; of a gather each rank hands over half, of a reduce-scatter all
    for rank in found["ranks"]:
        sent = {(line["op"], line["through"]): (line["calls"], line["payload_bytes"]) for line in rank["lines"]}
        assert sent["all_gather", "torch.distributed.fsdp"] == (3, 3 * weights // 2), "the root is gathered once a step"
        assert sent["reduce_scatter", "torch.distributed.fsdp"] == (3, 3 * weights)
        assert sent["all_reduce", "user"] == (1, 4000)
    reduced = next(line for line in found["lines"] if line["op"] == "all_reduce")
    assert (reduced["calls"], reduced["sent_bytes"], reduced["group"]) == (2, 8000, "default_pg 0,1")
    assert "train.py:" in reduced["where"]


def _killed_while_it_counts(folder: Path) -> None:
    writer = Kept(folder, 1, 2, "gloo")
    for number in range(3000):  # more lines than there is room for at first
        writer.put(replace(LINE, where=f"a.py:{number}", calls=number))
    writer.put(replace(LINE, where="a.py:0", calls=7))
    writer.put_named("c10d::strange_", 2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_rank_had_counted_is_there(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_killed_while_it_counts, args=(tmp_path,))
    process.start()
    process.join()
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"op": "all_ga')  # killed while it wrote a line
    (found,) = kept.read(tmp_path)
    assert (found.rank, found.has_ended, found.not_counted) == (1, False, {"c10d::strange_": 2})
    assert [line.calls for line in found.lines] == [7, *range(1, 3000)]
    assert replace(found.lines[5], where="a.py:1", calls=3) == LINE
    assert "was counted until then: rank 1" in cc.ProgramAudit(("x",), 137, (found,), ()).table(shown=2)


def _counts(rank: int, *lines: Line) -> RankCounts:
    return RankCounts(rank, 4, "gloo", "host", rank, True, None, lines, {"c10d::strange_": 1})


def test_ranks_are_summed_by_kind_of_group() -> None:
    here, there = replace(LINE, group="tp 0,1"), replace(LINE, group="tp 2-3", sent_bytes=500)
    alone = replace(LINE, group="tp 0-2")
    audit = cc.ProgramAudit(("x",), 0, (_counts(0, here, alone), _counts(2, there), _counts(2, there)), ("late",))
    pairs, three = audit.lines
    assert (pairs.calls, pairs.sent_bytes, pairs.group, three.group) == (9, 1200, "tp 0,1 2-3", "tp 0-2")
    assert audit.not_counted == {"c10d::strange_": 3}
    text = audit.table(shown=1)
    assert "and 1 more, which send less" in text
    assert "2 ranks sent 0.001 MB" in text
    assert "rank 2 sent most" in text
    assert "started more than once, and counted together: rank 2" in text
    assert text.endswith("late")
    assert audit.as_json()["sent_bytes"] == 1400


def test_a_program_without_torch_imports_none_and_is_said_to_have_no_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys, json; assert 'torch' not in sys.modules and 'comm_compress' not in sys.modules"
    assert main(["--", sys.executable, "-c", program]) == 1
    assert "no process of this program became a rank" in capfd.readouterr().out
    assert main(["--", sys.executable, "-c", "raise SystemExit(7)"]) == 7, "the program's own"
    assert main(["--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_what_cannot_be_counted_does_not_harm_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for torch, so that no real one is imported; counting fails as it has no tensors."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (package / "__init__.py").write_text("from torch.distributed.distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text("def init_process_group(backend):\n    return backend\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import torch.distributed as dist; raise SystemExit(dist.init_process_group('x') != 'x')"
    audit = cc.audit_program([sys.executable, "-c", program])
    assert (audit.exit_code, audit.ranks) == (0, ())
    assert "Error: " in audit.troubles[0]


def test_a_signal_to_end_is_the_programs(tmp_path: Path) -> None:
    told = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    program = f"import comm_compress as cc, sys; print(cc.audit_program([sys.executable, '-c', {told!r}]).exit_code)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout == "143\n", done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "audit: no program; put it after --, for example: "),
        (["--lines", "-1", "--", "true"], "--lines: got '-1', wants a whole number, at least 0"),
        (
            ["--json", "/no/such/folder/x.json", "--", "true"],
            "--json: got '/no/such/folder/x.json', wants a file in a folder that exists",
        ),
        (["--", "no-such-program"], "audit: cannot start no-such-program (No such file or directory)"),
    ],
)
def test_what_is_wrong_is_one_message(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_both_sides_know_the_same_variable() -> None:
    text = (running._START / "sitecustomize.py").read_text()
    assert f'FOLDER = "{running.FOLDER}"\n' in text
    assert sorted(path.name for path in running._START.glob("*.py")) == ["__init__.py", "sitecustomize.py"]


def _compiled() -> list[tuple[str, int, int]]:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def summed(x: Tensor) -> Tensor:
        return functional.all_reduce(2 * x, "sum", "0").sin()

    with cc.audit() as audit:
        summed(torch.ones(100))
        summed(torch.ones(100))
    return [(line.op, line.calls, line.payload_bytes) for line in audit.lines]


def test_compiled_functions_stay_compiled_and_are_counted() -> None:
    assert run_ranks(1, _compiled) == [[("all_reduce", 2, 800)]]
