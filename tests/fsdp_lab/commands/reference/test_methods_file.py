"""methods.json says what the registry and the committed measurements say today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import comm_compress as cc
from fsdp_lab.commands.reference import methods_file

ROOT = Path(__file__).resolve().parents[4]


def test_the_file_is_what_would_be_written_now() -> None:
    assert methods_file.read() == methods_file.written(), (
        "make it anew: python -m fsdp_lab.commands.reference.methods_file"
    )


def test_it_has_every_method_of_ours() -> None:
    assert [method["name"] for method in methods_file.read()["methods"]] == cc.available()


def test_a_method_that_was_changed_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = methods_file.read()
    content["methods"][3]["settings"][0]["meaning"] = "something else"
    copy = tmp_path / "methods.json"
    copy.write_text(methods_file.as_text(content))
    made_anew = methods_file.read()
    monkeypatch.setattr(methods_file, "FILE", copy)
    monkeypatch.setattr(methods_file, "written", lambda: made_anew)
    assert methods_file.main(["--check"]) == 1
    assert methods_file.main([]) == 0
    assert methods_file.main(["--check"]) == 0


def test_measurements_are_those_of_the_files_it_names() -> None:
    content = methods_file.read()
    rows = [json.loads(line) for line in (ROOT / content["measured"]["fidelity"]).read_text().splitlines()]
    topk = next(method for method in content["methods"] if method["name"] == "topk")
    (row,) = (row for row in rows if row["method"] == "topk" and not row["config"] and row["data"] == "gradients")
    assert topk["bits"] == round(row["bits"], 3)
    assert {line["operation"] for line in topk["speed"]} >= {"encode", "encode with feedback"}


def test_reading_needs_no_torch() -> None:
    program = "import sys; from fsdp_lab.commands.reference import methods_file; methods_file.read()"
    program += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
