"""Laws of the results file: a row is written whole or not at all, and no row costs another one its life."""

import json
import logging
import math
import multiprocessing
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from fsdp_lab import results
from fsdp_lab.results.__main__ import fields, main
from fsdp_lab.results.derived import derived
from fsdp_lab.results.migrate import migrate
from fsdp_lab.results.scaling import scaling_efficiency
from fsdp_lab.results.schema import BY_NAME, FIELDS, Field
from fsdp_lab.results.validation import problems
from fsdp_lab.run.environment import environment, git_revision
from fsdp_lab.settings.config import TrainConfig, parts_of_config

REFERENCE = Path(__file__).resolve().parents[3] / "results" / "reference"
SAMPLES: dict[str, Any] = {
    "int": 3,
    "float": 1.5,
    "str": "gloo",
    "bool": True,
    "object": {"ratio": 0.01, "deep": [1, None]},
    "object of int": {"all_gather": 3, "reduce_scatter": 5, "outer": 2},
    "object of str": {"attention": "sdpa"},
    "object of float": {"all_gather": 1.5},
    "list of int": [3],
    "list of float": [0.5, 1],
    "list of str": [],
}


def example(**changes: Any) -> dict[str, Any]:
    """A row with every field, sound unless ``changes`` spoil it."""
    row = {field.name: field.kind.split("|")[0] if "|" in field.kind else SAMPLES[field.kind] for field in FIELDS}
    row |= {"schema_version": results.SCHEMA_VERSION, "migrated_from": None, "time_utc": "2025-01-31T00:00:00+00:00"}
    row |= {"bytes_raw_total": 400, "bytes_compressed_total": 100, "virtual_ranks": None, "draft_target": None}
    return row | derived(row) | changes


def test_a_draft_has_no_perplexity_and_only_a_draft() -> None:
    row = example(val_loss=None, val_ppl=None, val_tokens=None, eval_weights=None)
    assert len(problems(row)) == 4
    assert problems(row | {"draft_target": "a folder"}) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "results.jsonl"


@pytest.fixture
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def names(path: Path) -> list[str]:
    return [row["run_name"] for row in results.load(path)]


def strict_lines(path: Path) -> list[Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the file")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_what_is_appended_is_loaded_in_order_with_every_field(path: Path) -> None:
    written = [results.append(path, example(run_name=name)) for name in "abc"]
    assert results.load(path) == written
    assert [list(row) for row in written] == [[field.name for field in FIELDS]] * 3


def test_version_and_time_are_filled_in_and_optional_fields_become_null(path: Path) -> None:
    row = {k: v for k, v in example().items() if k == "status" or (BY_NAME[k].required != "no" and k != "time_utc")}
    del row["schema_version"]
    written = results.append(path, row)
    assert written["schema_version"] == results.SCHEMA_VERSION
    assert written["time_utc"].endswith("+00:00")
    assert written["git_commit"] is None


def test_a_failed_run_may_lack_what_it_did_not_measure(path: Path) -> None:
    row = {k: v for k, v in example(status="failed", error="lost rank 1").items() if BY_NAME[k].required == "always"}
    assert results.append(path, row)["val_ppl"] is None
    with pytest.raises(ValueError, match=r"step_time_ms_p50: missing.*val_ppl: missing"):
        results.append(path, row | {"status": "ok"})


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_mistyped_field_is_refused_by_name_and_the_row_is_kept_aside(path: Path, field: Field) -> None:
    bad = {"int": 1.5, "float": "1.5", "str": 5, "bool": 1, "list of str": [1]}.get(field.kind, [object()])
    with pytest.raises(ValueError, match=rf"\b{field.name}: got"):
        results.append(path, example(**{field.name: bad}))
    assert not path.exists()
    assert json.loads(path.with_name("results.jsonl.rejected").read_text())["world_size"] in (3, repr(bad), bad)
    if field.kind in ("int", "float"):
        assert problems(example(**{field.name: True}))


def test_unknown_and_missing_fields_are_reported_together(path: Path) -> None:
    row = example(tokens_per_sec=1.0, compress_config={1: 2})
    del row["seed"]
    with pytest.raises(ValueError, match=r"tokens_per_sec: no such field; seed: missing; compress_config: got"):
        results.append(path, row)


def test_an_inverted_ratio_is_refused() -> None:
    assert problems(example(compression_ratio=0.25)) == [
        "compression_ratio: got 0.25, but the row's counts give 4 (raw / compressed)"
    ]
    assert not problems(example(compression_ratio=None, bytes_compressed_total=0))


def test_nan_and_infinity_become_null_and_are_listed(path: Path) -> None:
    bad = {"train_loss": math.nan, "val_ppl": math.inf, "comm_time_ms_by_op": {"all_gather": -math.inf, "x": 1.0}}
    written = results.append(path, example(**bad, versions={"list": [1.0, math.nan]}))
    assert strict_lines(path) == [written]
    assert results.load(path) == [written]
    assert (written["train_loss"], written["comm_time_ms_by_op"]) == (None, {"all_gather": None, "x": 1.0})
    expected = {"train_loss", "val_ppl", "comm_time_ms_by_op.all_gather", "versions.list.1"}
    assert set(written["nonfinite_fields"]) == expected


@pytest.mark.usefixtures("without_fsync")
def test_killed_at_every_byte_of_the_last_line(path: Path) -> None:
    for name in ("first", "second", "last"):
        results.append(path, example(run_name=name, config={"text": 'quote " brace } newline \n é'}))
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    rejected = path.with_name("results.jsonl.rejected")
    for end in range(start, len(whole) + 1):
        path.write_bytes(whole[:end])
        rejected.unlink(missing_ok=True)
        results.append(path, example(run_name="new"))
        complete = end >= len(whole) - 1  # all but the newline
        assert [row["run_name"] for row in strict_lines(path)] == [
            "first",
            "second",
            *(["last"] if complete else []),
            "new",
        ]
        fragment = b"" if complete else whole[start:end]
        assert (rejected.read_bytes().rstrip(b"\n") if rejected.exists() else b"") == fragment


@pytest.mark.usefixtures("without_fsync")
@settings(max_examples=50)
@given(tail=st.binary(max_size=40))
def test_whatever_another_program_left_at_the_end_earlier_and_new_rows_survive(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("results") / "r.jsonl"
    results.append(path, example(run_name="old"))
    with path.open("ab") as file:
        file.write(tail)
    results.append(path, example(run_name="new"))
    assert names(path) == ["old", "new"]


def test_mending_is_announced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results.append(path, example())
    path.write_bytes(path.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING):
        results.append(path, example())
    assert "truncated line" in caplog.text
    assert "results.jsonl.rejected" in caplog.text


def test_a_disk_that_takes_half_a_row_keeps_none_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.append(path, example(run_name="old"))
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda file, data: write(file, data[:100]) if len(data) > 100 else write(file, data)
    )
    with pytest.raises(OSError, match="No space left"):
        results.append(path, example(run_name="new"))
    monkeypatch.undo()
    assert names(path) == ["old"]
    assert path.read_bytes().endswith(b"}\n")


def append_many(path: Path, writer: int) -> None:
    for i in range(10):
        results.append(path, example(run_name=f"{writer}-{i}"))


def test_many_processes_append_without_losing_a_row(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(path, w)) for w in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    got = names(path)
    assert sorted(got) == sorted(f"{w}-{i}" for w in range(4) for i in range(10))
    assert [name for name in got if name.startswith("2-")] == [f"2-{i}" for i in range(10)]


def test_load_leaves_bad_lines_out_and_says_which(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results.append(path, example(run_name="a"))
    newer = json.dumps(example(schema_version=results.SCHEMA_VERSION + 1))
    with path.open("a") as file:
        file.write(f'\n{{"run_name": \n[1]\n{newer}\n{{"loss": NaN}}\n')
    results.append(path, example(run_name="b"))
    assert names(path) == ["a", "b"]
    assert [line for line in (3, 4, 5, 6) if f"line {line} left out" in caplog.text] == [3, 4, 5, 6]
    with pytest.raises(ValueError, match="cannot read results file"):
        results.load(path.with_name("nothing.jsonl"))


def test_an_unusable_path_is_found_before_the_run(tmp_path: Path) -> None:
    results.ensure_appendable(tmp_path / "new" / "results.jsonl")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    for bad in (tmp_path, tmp_path / "file" / "results.jsonl"):
        with pytest.raises(ValueError, match="results_path"):
            results.ensure_appendable(bad)


def test_check_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.append(path, example())
    assert main(["check", str(path)]) == 0
    with path.open("a") as file:
        file.write(json.dumps(example(steps="many", bogus=1)) + "\n")
    assert main(["check", str(path)]) == 2
    error = capsys.readouterr().err
    assert "line 2: bogus: no such field" in error
    assert "line 2: steps: got 'many' (str), wants int" in error
    with pytest.raises(SystemExit) as stop:
        main(["check", str(path.with_name("nothing"))])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_show_and_fields_commands(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.append(path, example(run_name="long-name-of-a-run", val_ppl=math.nan))
    assert main(["show", str(path)]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert row.startswith("long-name-of-a-run  ok")
    assert row.endswith(" -")
    assert len(heading) == len(row)
    assert main(["fields"]) == 0
    assert all(f"`{field.name}`" in fields() and field.meaning for field in FIELDS)


def test_environment_fits_the_schema() -> None:
    found = environment()
    assert not problems(example(**found))
    assert found["versions"]["python"].startswith("3.")
    assert found["hardware"]["cores"] >= 1


def test_a_folder_that_is_no_checkout_has_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == (None, None)
    (tmp_path / ".git").touch()
    assert git_revision(tmp_path) == (None, None)


def test_rows_that_a_run_left_are_no_change_of_the_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", "code.py")
    git("commit", "-m", "first")
    commit, dirty = git_revision(tmp_path)
    assert (len(commit or ""), dirty) == (40, False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rows.jsonl").write_text("{}\n")
    assert git_revision(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("a = 2\n")
    assert git_revision(tmp_path) == (commit, True)
    git("checkout", "code.py")
    (tmp_path / "more.py").touch()
    assert git_revision(tmp_path) == (commit, True)


# ---- what follows from counts, and rows of earlier versions -------------------------------------------------------


def test_every_ratio_names_its_denominator() -> None:
    row = {
        "steps": 10,
        "comm_time_ms_total": 2000.0,
        "compress_time_ms_total": 50.0,
        "extra_collectives_time_ms_total": 5.0,
        "decompress_time_ms_total": None,
        "bytes_raw_total": 600,
        "bytes_compressed_total": 150,
        "bytes_raw_by_op": {"reduce_scatter": 400, "all_gather": 200},  # fp32 gradients, bf16 parameters
        "bytes_compressed_by_op": {"reduce_scatter": 50, "all_gather": 100, "outer": 30},
        "elements_by_op": {"reduce_scatter": 100, "all_gather": 100},
        "world_size": 2,
        "dp_replicas": 2,
        "trainable_parameters": 60,
        "tokens_per_s": 50.0,
        "flops_per_token": 400.0,
        "peak_flops": 1e5,
    }
    assert derived(row) == {
        "outer_bits": 8 * 30 * 2 / (60 * 10),
        "mfu": 50 * 400 / (2 * 1e5),
        "compress_time_ms": 5,
        "decompress_time_ms": None,
        "extra_collective_time_ms": 0.5,
        "effective_bw_raw_gbps": pytest.approx(600 / 2 / 1e9),
        "effective_bw_compressed_gbps": pytest.approx(150 / 2 / 1e9),
        "compression_ratio": 600 / 150,
        "compression_ratio_reduce_scatter": 400 / 50,
        "compression_ratio_vs_fp32": 4 * 200 / 150,
        "compression_ratio_vs_bf16": 2 * 200 / 150,
        "compression_ratio_reduce_scatter_vs_fp32": 4 * 100 / 50,
        "compression_ratio_reduce_scatter_vs_bf16": 2 * 100 / 50,
    }
    assert set(derived({}).values()) == {None}


@pytest.mark.parametrize("name", sorted(derived({})))
def test_a_row_that_contradicts_its_own_counts_is_refused(name: str) -> None:
    row = example(comm_time_ms_total=8.0)
    row |= derived(row)
    assert problems(row) == []
    (complaint,) = problems(row | {name: 1.1 * row[name]})
    assert complaint.startswith(f"{name}: got ")


@pytest.mark.parametrize("file", ["fresh_weights/all_methods.jsonl", "fresh_weights/first_methods.jsonl"])
def test_committed_rows_of_version_1_are_migrated_when_read(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = REFERENCE / file
    old, new = strict_lines(path), results.load(path)
    assert len(old) == len(new) > 0
    assert main(["check", str(path)]) == 0
    assert f"{file}: {len(old)} of {len(old)} rows are sound" in capsys.readouterr().out
    for before, after in zip(old, new, strict=True):
        if before["schema_version"] == 1:
            assert (after["schema_version"], after["migrated_from"]) == (results.SCHEMA_VERSION, 1)
            assert list(after) == [field.name for field in FIELDS]
            kept = before.keys() & after.keys() - {"schema_version", "config", "config_hash"}
            assert before["config"].items() <= after["config"].items()
            assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
            assert before.keys() - after.keys() == {"peak_gpu_gb"}
            assert after["mem_peak_alloc_gb"] == before["peak_rss_gb"]
            # this ratio was in version 1: it says that the elements were found
            assert derived(after)["compression_ratio_vs_bf16"] == pytest.approx(before["compression_ratio_vs_bf16"])
            assert after["clip_rate"] is after["grad_rel_error"] is after["loss_curve"] is None


def test_migrate_command_writes_what_load_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "deep" / "new.jsonl"
    old.write_bytes((REFERENCE / "fresh_weights" / "first_methods.jsonl").read_bytes())
    assert main(["migrate", str(old), "--out", str(tmp_path / "new.jsonl")]) == 0
    assert strict_lines(tmp_path / "new.jsonl") == results.load(old)
    assert all(row["schema_version"] == results.SCHEMA_VERSION for row in strict_lines(tmp_path / "new.jsonl"))

    old.write_text(json.dumps(example(loss_curve="curves/a.jsonl")) + "\n{half")
    new.parent.mkdir()
    capsys.readouterr()
    assert main(["migrate", str(old), "--out", str(new)]) == 2  # a line was lost
    assert "line 2 left out" in capsys.readouterr().err
    (row,) = strict_lines(new)
    assert new.parent / row["loss_curve"] == tmp_path / "deep" / ".." / "curves" / "a.jsonl"
    for out, why in ((new, "exists already"), (tmp_path / "nowhere" / "new.jsonl", "cannot write")):
        with pytest.raises(SystemExit) as stop:
            main(["migrate", str(old), "--out", str(out)])
        assert stop.value.code == 2
        assert why in capsys.readouterr().err


def test_settings_that_came_later_have_their_defaults() -> None:
    config = TrainConfig.of(model="gpt2-nano", seed=7)
    lacking = {name: value for name, value in config.resolved().items() if name not in ("save_steps", "attention")}
    old = example(schema_version=2, config=lacking, config_hash="0" * 64)
    new = migrate(old)
    assert {name: new[name] for name in config.row()} == {name: old[name] for name in config.row()} | {
        "config": config.resolved(),
        "config_hash": config.digest(),
        **parts_of_config(config),
    }
    assert new["migrated_from"] == 2
    gone = migrate(example(schema_version=2, config={**lacking, "colour": "red"}, config_hash="0" * 64))
    assert (gone["config"], gone["config_hash"]) == ({**lacking, "colour": "red"}, "0" * 64)


# what the user's list of fields names, required and optional, letter by letter
WANTED = """
run_name world_size model dataset max_length batch_size compress_method compress_config seed
step_time_ms_mean step_time_ms_p50 step_time_ms_p90 tokens_per_s comm_time_ms_total comm_ratio comm_time_ms_by_op
bytes_raw_total bytes_compressed_total compression_ratio train_loss val_loss val_ppl
compress_time_ms decompress_time_ms extra_collectives extra_collective_time_ms index_bytes density residual_norm
grad_rel_error grad_cos_sim mem_peak_alloc_gb mem_peak_reserved_gb time_to_target_ppl_s ppl_at_fixed_time
"""


def test_every_field_that_was_asked_for_has_its_name() -> None:
    assert set(WANTED.split()) <= {field.name for field in FIELDS}


@pytest.mark.parametrize(
    "file",
    [
        "fresh_weights/bar.jsonl",
        "links/links.jsonl",
        "fresh_weights/world_size.jsonl",
        "fresh_weights/all_methods.jsonl",
    ],
)
def test_committed_rows_have_what_follows_from_their_counts(file: str) -> None:
    """Also a field that is younger than the row: the time of further rounds, in a step."""
    rows = results.load(REFERENCE / file)
    known = [row for row in rows if row["extra_collectives_time_ms_total"] is not None]
    assert known or file == "fresh_weights/all_methods.jsonl"
    for row in known:
        assert row["extra_collective_time_ms"] == row["extra_collectives_time_ms_total"] / row["steps"]
    assert all("extra_collective_time_ms" in row for row in rows)


def test_migration_touches_nothing_else() -> None:
    row = example()
    assert migrate(row) == row
    for strange in ({"schema_version": 7}, {"schema_version": "1"}, {}, {"schema_version": True}):
        assert migrate(strange) == strange
    broken = migrate({"schema_version": 1, "bytes_raw_by_op": "none", "steps": "many", "bogus": 1, "peak_gpu_gb": 2.0})
    assert (broken["mem_peak_alloc_gb"], broken["mem_peak_reserved_gb"]) == (2.0, None)
    complaints = problems(broken)
    assert "bogus: no such field" in complaints
    assert any(c.startswith("steps: got 'many'") for c in complaints)


def test_a_new_row_may_not_lack_what_an_old_one_may() -> None:
    assert problems(example(migrated_from=1, clip_rate=None)) == []
    assert problems(example(clip_rate=None)) == ["clip_rate: missing"]
    assert problems(example(migrated_from=3, side_settings=None)) == []
    assert problems(example(status="failed", side_settings=None)) == ["side_settings: missing"]


def test_scaling_efficiency_is_against_one_rank_with_the_same_settings() -> None:
    hardware = {"cpu": "x", "gpus": []}
    settings = [("a", 1, 100.0), ("a", 1, 120.0), ("a", 1, 110.0), ("a", 4, 220.0), ("b", 4, 220.0), ("a", 2, None)]
    rows = [
        {"status": "ok", "config_hash": h, "world_size": w, "tokens_per_s": speed, "hardware": hardware}
        for h, w, speed in settings
    ]
    rows.append(rows[3] | {"hardware": {"cpu": "y", "gpus": []}})
    rows.append(rows[0] | {"status": "failed", "tokens_per_s": None})
    efficiency = scaling_efficiency(rows)
    assert efficiency[3] == pytest.approx(220 / (4 * 110))
    assert efficiency[1] == pytest.approx(120 / 110)
    assert efficiency[4:] == [None, None, None, None]
