import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fsdp_lab.data.tokens import preparing
from fsdp_lab.data.tokens.preparing import prepare
from fsdp_lab.data.tokens.shards import TokenizedCorpus
from fsdp_lab.data.tokens.status import Status, heartbeat, read_status, status_path, write_status
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError
from tests.fsdp_lab.data.conftest import WriteArray, rows


def call(
    path: Path, tokenizer: TextTokenizer, cache: Path, rank: int, run_id: str = "run 1/a", patience_s: float = 30.0
) -> TokenizedCorpus:
    return prepare(path, tokenizer, cache, is_builder=rank == 0, run_id=run_id, progress=False, patience_s=patience_s)


@pytest.mark.parametrize("late", [0, 1])
def test_all_ranks_get_the_builders_corpus(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, late: int
) -> None:
    path = write_array(rows(50))

    def rank(number: int) -> TokenizedCorpus:
        time.sleep(0.3 * (number % 2 == late))
        return call(path, tokenizer, tmp_path / "cache", number)

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(rank, range(4))
    assert others == [first] * 3


def test_the_builders_failure_reaches_every_rank(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    path = write_array([{"text": "fine"}, {"text": 3}])

    def message(rank: int) -> str:
        with pytest.raises(DataError) as caught:
            call(path, tokenizer, tmp_path / "cache", rank)
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        builder, *others = pool.map(message, range(3))
    assert "element 1 of the array" in builder
    assert others == [f"the rank that tokenises failed: {builder}"] * 2


def test_an_interrupted_builder_is_heard(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(write_array(rows(5)), tokenizer, tmp_path, is_builder=True, run_id="1", progress=False, check=interrupt)
    with pytest.raises(DataError, match="KeyboardInterrupt"):
        prepare(tmp_path, tokenizer, tmp_path, is_builder=False, run_id="1")


def test_what_earlier_runs_left_is_not_believed(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    bad, good, cache = write_array([{"text": 3}], "bad.json"), write_array(rows(5)), tmp_path / "cache"
    with pytest.raises(DataError):
        call(bad, tokenizer, cache, 0, "run 1")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(call, good, tokenizer, cache, 1, "run 2")
        time.sleep(0.3)
        assert not waiting.done()
        built = call(good, tokenizer, cache, 0, "run 2")
        assert waiting.result(10) == built


def test_a_builder_killed_hard_is_noticed(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    program = (
        "import pathlib, sys, time; from fsdp_lab.data.tokens.status import heartbeat, status_path\n"
        "with heartbeat(status_path(pathlib.Path(sys.argv[1]), 'r')): print('up', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with pytest.raises(DataError, match="no sign of life for 1 s"):
        call(tmp_path, tokenizer, tmp_path, 1, "r", patience_s=1.0)


def test_a_slow_builder_outlasts_any_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_lab.data.tokens.status.BEAT_SECONDS", 0.05)
    monkeypatch.setattr(preparing, "_LAST_POLL_SECONDS", 0.1)
    path = status_path(tmp_path, "r")
    with ThreadPoolExecutor(1) as pool:
        with heartbeat(path):
            waiting = pool.submit(preparing._wait, path, 1.0, lambda: None)
            time.sleep(2.5)
            assert not waiting.done()
        write_status(path, Status("done", "folder"))
        assert waiting.result(5) == "folder"


def test_waiting_can_be_stopped(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    def stop() -> None:
        raise InterruptedError("preempted")

    with pytest.raises(InterruptedError, match="preempted"):
        prepare(tmp_path, tokenizer, tmp_path, is_builder=False, run_id="r", check=stop)


def test_status_files_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = status_path(tmp_path, "any / string?")
    assert path.parent.parent == tmp_path
    assert read_status(path) is None
    path.parent.mkdir()
    path.write_text(json.dumps({"state": "done"})[:-3])
    assert read_status(path) is None


def test_old_status_files_are_removed(tmp_path: Path) -> None:
    old = status_path(tmp_path, "old")
    with heartbeat(old):
        pass
    os.utime(old, (0, 0))
    with heartbeat(status_path(tmp_path, "new")):
        pass
    assert not old.exists()
    assert status_path(tmp_path, "new").exists()
