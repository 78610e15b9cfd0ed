"""Where weights are, and what tells them apart; damaged and strange folders are in tests/fsdp_lab/models/saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_lab.settings.models.weight_files import weight_files, weights_digest


def test_one_file_or_all_that_an_index_names(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"all")
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    places = {"b": "two.safetensors", "a": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]


def test_pickles_only_when_trusted_and_only_without_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"as pickles, which can run code; .*--trust_pickle"):
        weight_files(tmp_path)
    with pytest.raises(ValueError, match=r"safetensors$"):
        weight_files(tmp_path, key="target_dir")
    assert weight_files(tmp_path, trust_pickle=True) == [tmp_path / "pytorch_model.bin"]
    (tmp_path / "model.safetensors").write_bytes(b"all")
    assert weight_files(tmp_path, trust_pickle=True) == [tmp_path / "model.safetensors"]


def test_a_digest_is_of_every_byte_and_of_the_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 100)
    two.write_bytes(b"y")
    digests = {weights_digest(files) for files in ([one], [two], [one, two], [two, one])}
    one.write_bytes(b"x" * 99 + b"z")
    digests.add(weights_digest([one]))
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {32}
