"""Conversations that are not the same on all machines are refused: each rank reads its own copy of the file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdp_lab.data.opening import open_corpus
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.config import parse
from fsdp_lab.settings.models.presets import resolve
from tests.fsdp_lab.eagle.tiny import save_target


def test_ranks_that_read_other_conversations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}]
    path.write_text("\n".join(json.dumps({"messages": [*said, {"role": "user", "content": str(i)}]}) for i in range(9)))
    flags = [
        "--data_format",
        "conversations",
        "--data_path",
        str(path),
        "--model_dir",
        str(save_target(tmp_path / "m")),
    ]
    config = resolve(parse([*flags, "--batch_size", "1", "--max_length", "64"]), has_gpu=False)
    of_two: dict[str, Any] = {"is_first": True, "data_rank": 0, "data_world": 2, "played": 1}

    def opened(gather: Any) -> Any:
        ranks: Any = SimpleNamespace(**of_two, gather=gather)
        return open_corpus(config, ranks, "run", lambda: None)

    assert len(opened(lambda mine: [mine, mine]).validation) == 1
    with pytest.raises(DataError, match="does not hold the same conversations for all ranks; copy it to every machine"):
        opened(lambda mine: [mine, f"not {mine}"])
