"""Methods on the command line: whatever way they are typed, the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comm_compress.labels import arm_label, label
from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.groups import CommConfig
from fsdp_lab.settings.reading.fields import ConfigError
from tests.comm_compress.table import TABLE

HADAMARD = {"comm_compress": "int4", "comm_config_json": {"hadamard": True}}
DELTA = {"param_compress": "delta", "param_config_json": {"mode": "grid"}}
QSGD = {"comm_compress": "topk", "comm_config_json": {"values": {"method": "qsgd", "bits": 4}}}
BF16 = {"comm_compress": "bf16", "param_compress": "bf16", "comm_dtype": "bf16", "fsdp_prefetch": 0}


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (["--comm_compress", "int4 hadamard"], HADAMARD),
        (["--comm-compress", "int4", "--comm-config-json", '{"hadamard": true}'], HADAMARD),
        (["--comm_compress", '{"method": "int4", "hadamard": true}'], HADAMARD),
        (["--comm_compress", "int4 hadamard", "--comm_config_json", '{"hadamard": true}'], HADAMARD),
        (["--comm_compress", "int4 hadamard + delta mode=grid"], HADAMARD | DELTA),
        (["--method", "int4 hadamard + delta mode=grid"], HADAMARD | DELTA),
        (["--comm_compress", "int4 hadamard", "--param_compress", "delta mode=grid"], HADAMARD | DELTA),
        (["--comm_compress=int4 hadamard + delta mode=grid", "--param_compress", "delta mode=grid"], HADAMARD | DELTA),
        (["--comm_compress", "topk", "--comm_config_json", '{"values": "qsgd bits=4"}'], QSGD),
        (["--comm_compress", "topk values(qsgd bits=4)"], QSGD),
        (["--comm_compress", "bf16 + bf16, reduced in bf16, prefetch 0"], BF16),
        (
            ["--comm_compress", "none, every 5 diloco topk  ratio=0.10 + int8"],
            {"outer": "diloco", "outer_every": 5, "outer_compress": "topk ratio=0.1", "outer_gather": "int8"},
        ),
        (
            ["--comm_compress", "none, optimizer int8", "--optimizer", "muon"],
            {"optimizer_compress": "int8", "optimizer": "muon"},
        ),
        (["--comm_compress", "none + int8, no reshard"], {"param_compress": "int8", "fsdp_reshard": False}),
    ],
)
def test_what_flags_mean(flags: list[str], meant: dict[str, Any], tmp_path: Path) -> None:
    wanted = TrainConfig.of(**{"comm_compress": "none", **meant})
    assert parse(flags) == wanted
    assert parse(flags).digest() == wanted.digest(), "the row says the same, so it is the same cell of a sweep"
    file = tmp_path / "run.yaml"
    file.write_text(parse(flags).to_yaml())
    assert parse(["--config", str(file)]) == wanted


def test_a_file_and_python_say_it_as_freely(tmp_path: Path) -> None:
    wanted = TrainConfig.of(**HADAMARD, **DELTA)
    file = tmp_path / "run.yaml"
    file.write_text("comm_compress: {method: int4, hadamard: true}\nparam_compress: delta mode=grid\n")
    assert parse(["--config", str(file)]) == wanted
    assert TrainConfig.of(comm_compress={"method": "int4", "hadamard": True}, **DELTA) == wanted
    file.write_text("method: int4 hadamard + delta mode=grid\n")
    assert parse(["--config", str(file)]) == wanted
    assert CommConfig(comm_compress="int4 hadamard + delta mode=grid") == wanted.comm


@pytest.mark.parametrize(("name", "settings"), [*TABLE, ("none", {})], ids=lambda part: str(part)[:40])
def test_every_label_is_a_flag(name: str, settings: dict[str, Any]) -> None:
    comm = parse(["--comm_compress", arm_label(label(name, settings), "delta mode=grid")]).comm
    said = comm.comm_compress, comm.comm_config_json, comm.param_compress, comm.param_config_json
    assert said == (name, json.loads(json.dumps(settings)), "delta", {"mode": "grid"})


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["int4 + delta", "--param_compress", "int8"], "'int4 + delta' says delta for param_compress, which is given"),
        (["int4 + delta", "--param_compress", "none"], "which is given as none, too"),
        (["int4 + delta", "--param_config_json", '{"mode": "grid"}'], "says {} for param_config_json"),
        (["topk ratio=0.1", "--comm_config_json", '{"ratio": 0.2}'], "ratio is said twice, as 0.1 and as 0.2"),
        (["bf16, reduced in bf16", "--comm_dtype", "fp32"], "says bf16 for comm_dtype, which is given as fp32, too"),
        (["topk 0.1"], "0.1 needs the name of a setting before it"),
        (["int8", "--param_compress", "int8 + int8"], "param_compress: 'int8 + int8': two methods"),
        (['{"ratio": 1}'], "needs a 'method'"),
        (["int8, reduced in bf17"], "comm_dtype: got 'bf17', wants one of fp32, bf16, fp16"),
    ],
)
def test_contradictions_are_refused(flags: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(["--comm_compress", *flags, "--batch_size", "x"])
    assert complaint in str(raised.value)
    assert "2 problems" in str(raised.value), "those of other flags are said with it"


def test_both_names_of_one_setting_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("method: int8\ncomm_compress: int4\n")
    for flags in (["--method", "int8", "--comm_compress", "int8"], ["--config", str(file)]):
        with pytest.raises(
            ConfigError, match=r"method, (--)?comm_compress: two names of one setting; give one of them"
        ):
            parse(flags)
