import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsdp_lab.data.batches.loader import TokenDataset
from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.tokens.shards import TokenizedCorpus
from fsdp_lab.data.tokens.tokenization import split_of, tokenize
from fsdp_lab.data.tokens.tokenizer import TextTokenizer, TokenArray
from fsdp_lab.files.atomic import file_sha256
from fsdp_lab.files.errors import DataError
from tests.distributed import _CONTEXT, preload
from tests.fsdp_lab.data.conftest import WriteArray, rows

preload(__name__)
SHARD = 1000
VAL = 0.2


def streams(corpus: TokenizedCorpus) -> dict[str, list[int]]:
    return {
        split: np.concatenate([*corpus.shards(split), np.empty(0, np.uint16)]).tolist() for split in ("train", "val")
    }


def expected_streams(data: list[dict[str, str]], tokenizer: TextTokenizer) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"train": [], "val": []}
    for row in data:
        document = Document(**row)
        found[split_of(document, VAL)] += [*tokenizer.encode(document.full_text).tolist(), tokenizer.eot_id]
    return found


def folder_bytes(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    meta = json.loads(files.pop("meta.json"))
    for shard in meta["shards"]["train"] + meta["shards"]["val"]:
        del shard["position"]["file_bytes"]  # how far the reader had read ahead: for progress bars only
    return files | {"meta.json": json.dumps(meta).encode()}


def run(path: Path, tokenizer: TextTokenizer, cache: Path) -> TokenizedCorpus:
    return tokenize(path, tokenizer, cache, val_fraction=VAL, shard_tokens=SHARD, progress=False)


@pytest.mark.parametrize("compress", [False, True])
def test_streams_are_the_documents_each_ended_by_eot(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, compress: bool
) -> None:
    data = rows(100)
    corpus = run(write_array(data, compress=compress), tokenizer, tmp_path / "cache")
    assert streams(corpus) == expected_streams(data, tokenizer)
    assert corpus.meta.documents == 100
    for split in ("train", "val"):
        sizes = [shard.tokens for shard in corpus.meta.shards[split]]
        assert all(size == SHARD for size in sizes[:-1])
        assert 0 < sizes[-1] <= SHARD
    assert all(map_.dtype == np.dtype("<u2") for map_ in corpus.shards("train"))
    TokenizedCorpus.open(corpus.folder, verify=True)


def test_a_document_larger_than_shards_and_pieces(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    data = [*rows(3), {"id": "huge", "title": "", "text": "many words in\nlines " * 20_000}, *rows(3)]
    corpus = run(write_array(data), tokenizer, tmp_path / "cache")
    assert streams(corpus) == expected_streams(data, tokenizer)


class CountingTokenizer(TextTokenizer):
    def __init__(self, original: TextTokenizer) -> None:
        self.__dict__.update(original.__dict__)
        self.texts: list[str] = []

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        self.texts += texts
        return super().encode_batch(texts)


def test_a_finished_cache_is_opened_without_tokenising(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    path, counting = write_array(rows(20)), CountingTokenizer(tokenizer)
    first = run(path, counting, tmp_path / "cache")
    assert len(counting.texts) == 20
    copy = tmp_path / "renamed.json"
    shutil.copyfile(path, copy)
    assert run(copy, counting, tmp_path / "cache") == first  # the content counts, not the name
    assert len(counting.texts) == 20


def test_every_setting_has_its_own_cache(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    path = write_array(rows(20))
    settings = [(0.2, 1000), (0.1, 1000), (0.2, 999)]
    folders = {
        tokenize(path, tokenizer, tmp_path, val_fraction=v, shard_tokens=s, progress=False).folder for v, s in settings
    }
    folders.add(run(write_array(rows(21), "other.json"), tokenizer, tmp_path).folder)
    assert len(folders) == 4


def test_equal_texts_never_stand_on_both_sides() -> None:
    assert len({split_of(Document(str(i), f"title {i}", "the same"), 0.5) for i in range(50)}) == 1


def test_split_is_stable_and_has_the_asked_size() -> None:
    splits = [split_of(Document("", "", f"text {i}"), 0.25) for i in range(4000)]
    assert [i for i in range(12) if splits[i] == "val"] == [2, 3, 6]
    assert 0.22 < splits.count("val") / 4000 < 0.28
    assert split_of(Document("", "", "x"), 0.0) == "train"


KILLER = """
import os, pathlib, signal, sys
from fsdp_lab.data.tokens.tokenization import tokenize
from fsdp_lab.data.tokens.tokenizer import load_tokenizer
path, cache, moment, count = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
replace, calls = pathlib.Path.replace, [0]
def deadly(self, target):
    calls[0] += 1
    if moment == "before" and calls[0] == count: os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if moment == "after" and calls[0] == count: os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.replace = deadly
tokenize(path, load_tokenizer(), cache, val_fraction=%r, shard_tokens=%r, progress=False)
""" % (VAL, SHARD)  # noqa: UP031


def killed(path: Path, cache: Path, moment: str, count: int) -> None:
    process = _CONTEXT.Process(target=_kill_oneself, args=(str(path), str(cache), moment, str(count)))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _kill_oneself(*words: str) -> None:
    """``KILLER``, forked from the server that has imported what it needs."""
    sys.argv[1:] = words
    exec(compile(KILLER, "KILLER", "exec"), {"__name__": "__main__"})


# Renames 1, 3, ... 19 are of shards, 2, 4, ... 20 of meta files that list them; 21 finalizes.
@pytest.mark.parametrize(("moment", "counts"), [("before", (1, 6, 7, 21)), ("after", (1, 5, 12, 20))])
def test_killed_at_any_point_gives_the_same_bytes(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, moment: str, counts: tuple[int, ...]
) -> None:
    path = settled(write_array(rows(100)))
    whole = run(path, tokenizer, tmp_path / "whole")
    assert sum(len(shards) for shards in whole.meta.shards.values()) == 10
    for count in counts:
        cache = tmp_path / f"cache{count}"
        cache.mkdir()
        shutil.copyfile(tmp_path / "whole" / "file_hashes.json", cache / "file_hashes.json")
        killed(path, cache, moment, count)
        resumed = run(path, tokenizer, cache)
        assert folder_bytes(resumed.folder) == folder_bytes(whole.folder)


def test_killed_again_and_again(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    path = settled(write_array(rows(100)))
    whole, cache = run(path, tokenizer, tmp_path / "whole"), tmp_path / "cache"
    killed(path, cache, "after", 6)
    for _ in range(3):
        killed(path, cache, "before", 4)
    assert folder_bytes(run(path, tokenizer, cache).folder) == folder_bytes(whole.folder)


def test_killed_at_a_random_moment(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    path = settled(write_array(rows(2500)))
    whole, cache = run(path, tokenizer, tmp_path / "whole"), tmp_path / "cache"
    program = KILLER.replace('"before"', '"never"').replace('"after"', '"never"')
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", program, str(path), str(cache), "never", "0"])
        time.sleep(random.uniform(0.3, 0.8))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert folder_bytes(run(path, tokenizer, cache).folder) == folder_bytes(whole.folder)


def settled(path: Path) -> Path:
    """Old enough for its hash to be remembered, so that runs differ in nothing but the kill."""
    os.utime(path, (time.time() - 60,) * 2)
    return path


class StopError(Exception):
    pass


def test_resuming_tokenises_only_what_is_missing(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp_lab.data.tokens.pieces._BATCH_PIECES", 1)
    path, calls = write_array(rows(100)), []

    def stop_after_80_batches() -> None:
        calls.append(1)
        if len(calls) > 80:
            raise StopError

    with pytest.raises(StopError):
        tokenize(
            path, tokenizer, tmp_path, val_fraction=VAL, shard_tokens=SHARD, progress=False, check=stop_after_80_batches
        )
    counting = CountingTokenizer(tokenizer)
    corpus = run(path, counting, tmp_path)
    assert streams(corpus) == expected_streams(rows(100), tokenizer)
    assert 20 <= len(counting.texts) < 20 + 2 * SHARD / 100  # two unfinished shards of about 125-token documents


def test_two_processes_at_once(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    path = write_array(rows(1500))
    program = KILLER.replace('"before"', '"never"').replace('"after"', '"never"')
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "cache"), "never", "0"]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    corpus = run(path, tokenizer, tmp_path / "cache")
    assert streams(corpus) == expected_streams(rows(1500), tokenizer)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped", "meta"])
def test_damaged_shards_are_refused_by_name(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, damage: str, verify: bool
) -> None:
    folder = run(write_array(rows(30)), tokenizer, tmp_path / "cache").folder
    shard, content = folder / "train-00001.bin", (folder / "train-00001.bin").read_bytes()
    if damage == "cut":
        shard.write_bytes(content[:-1])
    elif damage == "gone":
        shard.unlink()
    elif damage == "flipped":
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        shard = folder / "meta.json"
        shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(DataError, match="delete") as caught:
        TokenizedCorpus.open(folder, verify=verify)
    assert str(shard) in str(caught.value)


def test_a_shard_that_changed_unseen_is_refused_when_it_is_read(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    """A stranger's folder: its sums fit, its tokens do not."""
    folder = run(write_array(rows(30)), tokenizer, tmp_path / "cache").folder
    shard, meta = folder / "train-00001.bin", json.loads((folder / "meta.json").read_text())
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    entry = next(entry for entry in meta["shards"]["train"] if entry["file"] == shard.name)
    entry["sha256"] = file_sha256(shard)
    (folder / "meta.json").write_text(json.dumps(meta))
    corpus = run(write_array(rows(30)), tokenizer, tmp_path / "cache")
    dataset = TokenDataset(corpus, "train", 10)
    with pytest.raises(DataError, match=rf"{shard} holds token 65,535.*delete {folder}"):
        dataset.rows(np.arange(len(dataset)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard_tokens": 0}, "not those of a token cache"),
        ({"shard_tokens": 10**400}, "64 bits"),
        ({"dtype": "object"}, "not those of a token cache"),
        ({"eot_id": "end"}, "eot_id is 'end'"),
        ({"file": "../../secret"}, "not the name of a file"),
        ({"tokens": -5}, "wants a whole number"),
        ({"tokens": "many"}, "wants a whole number"),
        ({"tokens": 5}, "before the last"),
    ],
)
def test_a_meta_file_that_lies_is_refused(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = run(write_array(rows(30)), tokenizer, tmp_path / "cache").folder
    meta = json.loads((folder / "meta.json").read_text())
    place = meta["shards"]["train"][0] if change.keys() & {"file", "tokens"} else meta["settings"]
    place.update(change)
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=rf"meta\.json is damaged.*{words}.*delete the folder"):
        TokenizedCorpus.open(folder)


def test_a_damaged_shard_is_refused_when_resuming(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    path = settled(write_array(rows(100)))
    killed(path, tmp_path / "cache", "after", 9)
    next((tmp_path / "cache").glob("*/train-00000.bin")).write_bytes(b"short")
    with pytest.raises(DataError, match=r"train-00000\.bin has 5 bytes"):
        run(path, tokenizer, tmp_path / "cache")


def test_unfinished_cache_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished token cache"):
        TokenizedCorpus.open(tmp_path)


def test_unusable_data_and_settings(tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no documents"):
        run(write_array([]), tokenizer, tmp_path / "cache")
    with pytest.raises(DataError, match="does not exist"):
        run(tmp_path / "nothing", tokenizer, tmp_path / "cache")
    with pytest.raises(DataError, match="val_fraction"):
        tokenize(write_array(rows(1)), tokenizer, tmp_path / "cache", val_fraction=1.0)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="--cache_dir"):
        run(write_array(rows(1)), tokenizer, tmp_path / "file")


def test_plain_progress_lines_when_there_is_no_terminal(
    tokenizer: TextTokenizer,
    write_array: WriteArray,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fsdp_lab.data.tokens.progress._LINE_SECONDS", -1.0)
    tokenize(write_array(rows(10)), tokenizer, tmp_path / "cache")
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("tokenising data.json: 100 %")
    assert "10 documents" in lines[-1]
    assert "MB/s" in lines[-1]
