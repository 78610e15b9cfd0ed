"""Wherever a file's code may remember something, a change of it is seen; constants and functions are no change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import comm_compress as cc
from comm_compress.core import rounds
from experiments.judge.objections import objections
from experiments.judge.subject import channels

TEXT = """
import torch
CONSTANT = torch.arange(4)
LIST = []
TENSOR = torch.zeros(3)

class Kept:
    total = 0

def default(kept={}):
    return kept

def _closed():
    inside = [0]
    def closed():
        return inside
    return closed

closed = _closed()
"""
CHANGES: dict[str, Callable[[ModuleType], Any]] = {
    "LIST": lambda m: m.LIST.append(torch.ones(2)),
    "TENSOR": lambda m: m.TENSOR.add_(1),
    "Kept.total": lambda m: setattr(m.Kept, "total", 3),
    "default()": lambda m: m.default().update(a=1),
    "closed()": lambda m: m.closed().append(1),
}


def module() -> ModuleType:
    made = ModuleType("somebodys")
    exec(compile(TEXT, "somebodys.py", "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_its_name(name: str) -> None:
    theirs, method = module(), cc.make("identity")
    assert method is not None
    before = channels.variables(theirs, method)
    assert channels.variables(theirs, method) == before
    CHANGES[name](theirs)
    after = channels.variables(theirs, method)
    assert [key for key in after if after[key] != before.get(key)] == [name]


def test_attributes_of_the_method_and_of_what_it_wraps_are_seen() -> None:
    method: Any = cc.make("int8 error_feedback=true")
    before = channels.variables(module(), method)
    method.inner.seen = torch.ones(2)
    after = channels.variables(module(), method)
    assert [key for key in after if after[key] != before.get(key)] == ["BlockUniform object .seen"]


def test_functions_that_were_replaced_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = channels.library()
    assert channels.replaced(before) == []
    monkeypatch.setattr(rounds, "sent_by", lambda *words: cc.ByteCount())
    monkeypatch.setattr(cc.Layout, "byte_count", property(lambda layout: cc.ByteCount()))
    names = channels.replaced(before)
    assert "comm_compress.core.rounds.sent_by" in names
    assert "comm_compress.core.encoded.Layout.byte_count" in names


def test_files_are_seen_when_they_are_written_and_not_when_read(tmp_path: Path) -> None:
    opened, file = channels.Opened(), tmp_path / "letter"
    file.write_text("outside of the block")
    with opened.watching():
        file.read_text()
        assert opened.seen == []
        os.close(os.open(file, os.O_WRONLY))
        file.write_text("again")
    file.write_text("after it")
    assert opened.seen == [f"file {file}"] * 2


LOOK = {
    "size_depends_on_data": False,
    "traits": {"additive": True},
    "is_codec": True,
    "max_ranks": None,
}


def world(ranks: int, bits: float, rounds: int = 1) -> dict[str, Any]:
    return {"kind": "world", "world": ranks, "bits": bits, "rounds": rounds, "state_bytes": 0.0}


@pytest.mark.parametrize(
    ("facts", "look", "words"),
    [
        ({"errors": [world(2, 1.0), world(8, 1.1)]}, {}, None),
        ({"errors": [world(2, 1.0), world(8, 2.0)]}, {}, "its bits grow with the ranks: 1 at 2, 2 at 8"),
        ({"errors": [world(2, 1.0, rounds=3)]}, {}, "takes 3 rounds"),
        ({"ranks": [{"kind": "memory", "by_data": ["EXACT"], "alike": []}]}, {}, "outside of its `cc.State` (EXACT)"),
        ({"ranks": [{"kind": "memory", "by_data": [], "alike": ["TABLE"]}]}, {}, "a cache, it seems"),
        ({}, {"size_depends_on_data": True}, "depends on the data"),
        ({}, {"traits": {"additive": False}}, "no law checks what error feedback is told"),
        ({}, {"max_ranks": 4}, "at most 4 ranks"),
        (
            {"speed": [{"kind": "speed", "judged": True, "operation": "encode", "memcpy_ratio": 0.01}]},
            {},
            "encode 0.01",
        ),
        ({"speed": [{"kind": "speed", "judged": False, "operation": "encode", "memcpy_ratio": 0.01}]}, {}, None),
    ],
)
def test_a_reviewer_objects_to_what_was_measured(facts: Any, look: dict[str, Any], words: str | None) -> None:
    said = [text for _, text in objections(facts, {**LOOK, **look})]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
