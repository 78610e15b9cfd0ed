"""Token caches: shards overwritten at the same size, meta files that lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.limited_process import trained
from experiments.faults.hostile.tiny_model import change
from fsdp_lab.data import load_tokenizer, tokenize
from fsdp_lab.files.atomic import file_sha256


def _overwritten(cache: Path) -> None:
    shard = cache / "train-00000.bin"
    shard.write_bytes(b"\xff" * shard.stat().st_size)


def _overwritten_with_its_sum(cache: Path) -> None:
    _overwritten(cache)
    meta = json.loads((cache / "meta.json").read_text(encoding="utf-8"))
    meta["shards"]["train"][0]["sha256"] = file_sha256(cache / "train-00000.bin")
    (cache / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _cut_off(cache: Path) -> None:
    shard = cache / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])


def _settings(**values: object) -> Callable[[Path], None]:
    def lie(cache: Path) -> None:
        meta = json.loads((cache / "meta.json").read_text(encoding="utf-8"))
        change(cache / "meta.json", settings=meta["settings"] | values)

    return lie


def _deep(cache: Path) -> None:
    (cache / "meta.json").write_text("[" * 100_000, encoding="utf-8")


def _train(spoil: Callable[[Path], None], mixed: bool = False) -> Make:
    def make(folder: Path) -> list[str]:
        text = folder / "text.jsonl"
        lines = (json.dumps({"id": str(i), "text": f"document number {i} " * 100}) for i in range(200))
        text.write_text("\n".join(lines), encoding="utf-8")
        places = folder / "out" / "cache"
        cache = tokenize(text, load_tokenizer(), places, val_fraction=0.05, progress=False).folder
        spoil(cache)
        data = ["--data_mix", json.dumps({str(cache): 1})] if mixed else ["--data_path", str(text)]
        return trained(folder / "out", *data)

    return make


CASES = [
    Case("token shards", "overwritten at the same size", _train(_overwritten), "has changed .*delete"),
    Case("token shards", "overwritten, in a mix", _train(_overwritten, mixed=True), "has changed .*delete"),
    Case(  # a stranger's sums can fit; then it comes out when the tokens are read: the run has begun, and has failed
        "token shards",
        "overwritten, and its sum fits",
        _train(_overwritten_with_its_sum),
        "fsdp_lab.train: rank 0: .*holds token 65,535.*delete",
        code=1,
    ),
    Case("token shards", "cut off", _train(_cut_off), "bytes instead of"),
    Case("token shards", "shards of 0 tokens", _train(_settings(shard_tokens=0)), "is damaged .*delete the folder"),
    Case("token shards", "a dtype that is no number's", _train(_settings(dtype="object")), "is damaged .*delete"),
    Case("token shards", "a meta file nested 100,000 deep", _train(_deep), "is damaged .*delete the folder"),
]
