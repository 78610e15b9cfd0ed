"""No line makes reading fail, none is lost without a word, and an empty selection says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from analysis.rows import reading as rows
from analysis.rows.reading import SCHEMA_VERSIONS, parse_selection, read, read_for_user, select
from fsdp_lab.results import SCHEMA_VERSION as WRITTEN
from fsdp_lab.results.schema import BY_NAME
from tests.analysis.planted_rows import died, diverged, row, write

GOOD = dict(row())


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in GOOD.items() if key != name}


def test_what_is_written_can_be_read() -> None:
    assert SCHEMA_VERSIONS[-1] == WRITTEN


def test_columns_have_the_types_that_the_schema_gives_them() -> None:
    names = {"int": int, "float": (int, float), "str": str, "bool": bool, "list of str": list}
    for name, kind in (rows._ALWAYS | rows._WHEN_OK | rows._OPTIONAL).items():
        written = BY_NAME[name].kind
        wanted = dict if written.startswith("object") else str if "|" in written else names[written]
        assert kind == wanted or (kind == (int, float) and wanted is int), name


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (json.dumps(GOOD)[:200], "not whole JSON"),
        ("[1, 2]", "not a JSON object but list"),
        ('"text"', "not a JSON object but str"),
        ("\xff\xfe", "not whole JSON"),
        ("[" * 100_000, "not whole JSON"),
        (json.dumps(GOOD | {"schema_version": 1}), "fsdp-lab results migrate"),
        (json.dumps(GOOD | {"schema_version": 99}), "newer program"),
        (json.dumps(GOOD | {"schema_version": "2"}), "schema version '2'"),
        (json.dumps(without("schema_version")), "no schema_version"),
        (json.dumps(without("seed")), "no seed"),
        (json.dumps(without("config")), "no config"),
        (json.dumps(without("num_parameters")), "no num_parameters"),
        (json.dumps(GOOD | {"seed": "42"}), 'seed is "42"'),
        (json.dumps(GOOD | {"seed": True}), "seed is true"),
        (json.dumps(GOOD | {"val_loss": "5.0"}), 'val_loss is "5.0"'),
        (json.dumps(GOOD | {"val_loss": None}), "no val_loss although it ended well"),
        (
            json.dumps(GOOD | {"val_loss": None, "draft_target": "a folder"}),
            "no tau although it ended well (trained without",
        ),
        (json.dumps(GOOD | {"bytes_compressed_by_op": 3}), "bytes_compressed_by_op is 3"),
        (json.dumps(GOOD | {"config": {"comm_config_json": [1]}}), "config.comm_config_json is [1]"),
    ],
)
def test_a_bad_line_is_left_out_by_number(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join([json.dumps(GOOD).encode(), b"", line.encode("latin-1"), json.dumps(GOOD).encode()]))
    found = read(file)
    assert [r.line for r in found.rows] == [1, 4]
    (complaint,) = found.left_out
    assert complaint.startswith(f"{file}, line 3: ")
    assert why in complaint


@given(lines=st.lists(st.binary(max_size=40)))
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    file = tmp_path_factory.getbasetemp() / "anything.jsonl"
    file.write_bytes(b"\n".join([*lines, json.dumps(GOOD).encode()]))
    assert read([file]).rows[-1]["run_name"] == GOOD["run_name"]


def test_failed_and_diverged_runs_are_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [died("int8", 1), diverged("int8", 2)])
    file.write_text(file.read_text() + json.dumps(GOOD | {"val_loss": float("nan")}) + "\n")
    found = read(file)
    assert len(found.rows) == 3
    assert not found.left_out


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl.*No such file"):
        read([tmp_path / "none.jsonl"])


def test_a_curve_lies_beside_its_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD | {"loss_curve": "curves/a.jsonl"}) + "\n")
    (found,) = read(tmp_path / "rows.jsonl").rows
    assert found.curve == tmp_path / "curves" / "a.jsonl"
    assert row().curve is None


def test_select_by_columns_and_settings() -> None:
    there = [row("none", 1), row("int8", 1), row("int8", 2), row("int8", 3, link_rate_asked=1e9)]
    assert [r["seed"] for r in select(there, compress_method="int8", seed=[1, 3])] == [1, 3]
    assert [r["seed"] for r in select(there, comm_compress="int8", link_rate_asked=None)] == [1, 2]
    assert select(there) == there
    assert select([], seed=1) == []


def test_an_empty_selection_says_which_filter_and_what_there_was() -> None:
    there = [row("none", 1), row("int8", 2), row("int8", 3)]
    with pytest.raises(ValueError, match=r"select seed=4: none of the 2 rows left .* they have 2, 3$"):
        select(there, compress_method="int8", seed=4)
    with pytest.raises(ValueError, match="select sede: no row has a column or setting of that name"):
        select(there, sede=4)


def test_selections_as_they_are_typed() -> None:
    wanted = parse_selection(
        ["seed=1,2", "model=gpt2-nano", "link_rate_asked=null", 'comm_config_json={"a": 1, "b": 2}']
    )
    assert wanted == {
        "seed": [1, 2],
        "model": ["gpt2-nano"],
        "link_rate_asked": [None],
        "comm_config_json": [{"a": 1, "b": 2}],
    }
    with pytest.raises(ValueError, match="wants COLUMN=VALUE"):
        parse_selection(["seed"])


def test_users_hear_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n{half")
    assert len(read_for_user([file])) == 1
    said = capsys.readouterr().err
    assert "line 2" in said
    assert "1 line left out, rows read: 1" in said
    file.write_text("\n".join([json.dumps(GOOD), *["{half"] * 50]))
    assert len(read_for_user([file])) == 1
    said = capsys.readouterr().err
    assert said.count("left out: ") == 10
    assert "50 lines left out" in said
    file.write_text("{half")
    with pytest.raises(ValueError, match="no sound row"):
        read_for_user([file])
