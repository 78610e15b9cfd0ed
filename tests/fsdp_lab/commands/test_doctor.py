"""`fsdp-lab doctor`: what it says of this machine, and when it ends with 1."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdp_lab.commands import doctor
from fsdp_lab.commands.machine import hardware as machine, project as working
from fsdp_lab.commands.machine.finding import Finding, needed, useful
from fsdp_lab.ranks import environment


def findings(*found: Finding) -> Callable[[], Iterator[Finding]]:
    return lambda: iter(found)


def test_what_can_be_said_at_once_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--fast", "--json"]) == 0, "the tests train here"
    sections = json.loads(capsys.readouterr().out)
    assert sections.keys() == {"This machine", "This project"}
    found = {finding["name"]: finding for section in sections.values() for finding in section}
    assert {"system", "processor", "memory", "shared memory", "disk", "GPU", "loopback", "ports"} <= found.keys()
    assert {"root", "iproute2", "namespaces", "training", "figures", "drafts", "links", "token cache"} <= found.keys()
    assert all(finding["ok"] or finding["remedy"] for finding in found.values()), "missing, with how to get it"
    assert not any(finding["ok"] and finding["remedy"] for finding in found.values())


@pytest.mark.parametrize(
    ("installed", "preloaded", "ok", "said"),
    [
        (True, None, True, "jemalloc"),
        (False, None, False, "glibc"),
        (True, "", False, "glibc"),
        (False, "x", True, "x"),
    ],
)
def test_it_says_where_ranks_take_memory_from(
    installed: bool, preloaded: str | None, ok: bool, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if preloaded is not None:
        monkeypatch.setenv("LD_PRELOAD", preloaded)
    if installed:
        (tmp_path / "libjemalloc.so.2").touch()
    monkeypatch.setattr(environment, "_places", lambda: [tmp_path / "libjemalloc.so.2"])
    found = next(finding for finding in machine.findings() if finding.name == "allocator")
    assert (found.ok, said in found.said, bool(found.remedy)) == (ok, True, not ok)


def test_with_torch_it_tries_a_method() -> None:
    found = {finding.name: finding for finding in working.findings_with_torch()}
    assert found["gloo"].ok
    assert found["kernels"].ok
    assert "8.1" in found["kernels"].said


@pytest.mark.parametrize(("stops", "code"), [(True, 1), (False, 0)])
def test_only_what_training_needs_makes_it_fail(
    stops: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = needed if stops else useful
    monkeypatch.setattr(machine, "findings", findings(kind("gloo", False, "none", "get a torch with it")))
    monkeypatch.setattr(working, "findings", findings(useful("figures", True, "yes", "unused")))
    assert doctor.main(["--fast"]) == code
    said = capsys.readouterr().out
    assert "  missing  gloo" in said
    assert "get a torch with it" in said
    assert "unused" not in said
    assert ("Training cannot work here: gloo." in said) == stops


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "find_spec", lambda name: None if name in ("tokenizers", "scipy") else object())
    found = {finding.name: finding for finding in working.findings()}
    assert found["training"].stops_training
    assert "tokenizers" in found["training"].said
    assert found["training"].remedy == "pip install 'fsdp-comm-compress[lab]'"
    assert (found["figures"].ok, found["figures"].stops_training, found["drafts"].ok) == (False, False, True)


def test_a_wheel_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(working, "ROOT", tmp_path)
    found = {finding.name: finding for finding in working.findings()}
    assert not found["checkout"].ok
    assert not found["links"].ok


def test_a_port_that_is_taken_is_seen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not machine._is_free(port)
    assert machine._is_free(port)


def test_a_full_or_foreign_disk_stops_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine._disk(tmp_path).ok
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = machine._disk(tmp_path)
    assert found.stops_training
    assert "not writable" in found.said
