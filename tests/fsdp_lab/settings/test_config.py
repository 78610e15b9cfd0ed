"""Laws of the settings: every flag, file key and field is the same thing, and every mistake is named, together."""

import itertools
import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fsdp_lab.settings.__main__ import main
from fsdp_lab.settings.config import TrainConfig, default_run_name, parse
from fsdp_lab.settings.groups import DataConfig, OptimConfig
from fsdp_lab.settings.operators import OPERATORS
from fsdp_lab.settings.reading import strict
from fsdp_lab.settings.reading.fields import Config, ConfigError, digest_of
from fsdp_lab.settings.reading.specs import Spec
from fsdp_lab.settings.systems.table import recipes

SPECS = TrainConfig.specs()
NOT_TRAINING = {"run_name", "output_dir", "results_path", "tensorboard", "log_interval", "cache_dir"}
JSON_VALUES = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


def values_of(spec: Spec) -> st.SearchStrategy[Any]:
    """Values that fit a setting, found through its own limits."""
    low = spec.limits.get("at_least", spec.limits.get("above", 0))
    high = spec.limits.get("at_most", spec.limits.get("below", low + 1000))
    if "choices" in spec.limits:
        return st.sampled_from(spec.limits["choices"])
    if "method" in spec.limits:
        return st.from_regex("[a-z][a-z0-9_]{0,6}", fullmatch=True)  # labels are taken apart: test_method_flags.py
    if spec.name == "system":
        return st.sampled_from(list(recipes()))
    if "others" in spec.limits:  # what the words and precision become: test_operators.py
        return st.fixed_dictionaries({}, optional={n: st.sampled_from(list(o.choices)) for n, o in OPERATORS.items()})
    if "pattern" in spec.limits:
        return st.from_regex(spec.limits["pattern"][0], fullmatch=True)
    by_type: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(low, high),
        float: st.floats(low, high, exclude_min="above" in spec.limits, exclude_max="below" in spec.limits),
        str: TEXT.filter(lambda text: not text.startswith("-")),
        dict: st.dictionaries(TEXT, JSON_VALUES | st.lists(JSON_VALUES, max_size=2) | TEXT, max_size=3),
    }
    return by_type[spec.base]


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)


def complaints(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    return str(caught.value)


def file_with(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_every_setting_has_help_a_fitting_default_and_a_lower_case_name(spec: Spec) -> None:
    assert len(spec.help) > 10
    assert spec.check(spec.default) == spec.default
    assert spec.name == spec.name.lower()
    assert not spec.name.startswith("no_")  # --no_x is how x is switched off


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flag_to_config_to_yaml_to_config(spec: Spec, data: st.DataObject, tmp_path: Path) -> None:
    value = data.draw(values_of(spec))
    config = parse([f"--{spec.name}", as_text(value)])
    assert config.resolved()[spec.name] == ("none" if spec.name == "system" else value), "a system is its settings"
    again = parse(["--config", file_with(tmp_path, config.to_yaml())])
    assert again == config == TrainConfig.of(**{spec.name: value})
    assert (again.digest(), again.to_yaml()) == (config.digest(), config.to_yaml())


def test_resolved_lists_every_setting_in_the_order_written_and_the_groups_hold_them() -> None:
    config = parse(["--batch_size=3", "--max_length", "64"])
    assert list(config.resolved()) == list(SPECS)
    assert (config.optim.batch_size, config.data.max_length, config.run.seed) == (3, 64, 42)
    with pytest.raises(FrozenInstanceError):
        config.run.seed = 1  # type: ignore[misc]


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = file_with(tmp_path, "seed: 7\nbatch_size: 2\n")
    config = parse(["--batch_size", "5", "--config", file])
    assert (config.run.seed, config.optim.batch_size, config.optim.num_epochs) == (7, 5, None)


def test_dashes_are_as_good_as_underscores() -> None:
    flags = ["--batch-size=8", "--max-length", "64", "--no-tensorboard", "--comm-config_json", '{"a-b": "--c-d"}']
    config = parse(flags)
    assert (config.optim.batch_size, config.data.max_length, config.run.tensorboard) == (8, 64, False)
    assert config.comm.comm_config_json == {"a-b": "--c-d"}
    assert "--batch-sice: no such flag; did you mean --batch_size?" in complaints("--batch-sice=8")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--compile"], True),
        (["--compile", "true"], True),
        (["--compile=false"], False),
        (["--no_compile"], False),
        (["--compile", "--no_compile"], False),
        ([], False),
    ],
)
def test_booleans(flags: list[str], expected: bool) -> None:
    assert parse([*flags, "--seed", "1"]).model.compile is expected


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "1.0e-3", ".001", "1e-03"])
def test_numbers_that_yaml_1_1_would_read_as_text_work(tmp_path: Path, text: str) -> None:
    assert parse(["--config", file_with(tmp_path, f"learning_rate: {text}\n")]).optim.learning_rate == 1e-3
    assert parse(["--learning_rate", text]).optim.learning_rate == 1e-3


def test_words_that_yaml_1_1_would_read_as_something_else_work(tmp_path: Path) -> None:
    file = file_with(tmp_path, "mixed_precision: no\nrun_name: 2025-01-31\ncompile: no\nprofile: on\nweight_decay: 1\n")
    config = parse(["--config", file])
    assert (config.model.mixed_precision, config.run.run_name) == ("no", "2025-01-31")
    assert (config.model.compile, config.run.profile, config.optim.weight_decay) == (False, True, 1.0)


def test_a_method_config_is_a_mapping_in_yaml_and_json_on_the_command_line(tmp_path: Path) -> None:
    file = file_with(tmp_path, "comm_config_json:\n  ratio: 1e-2\n  wrap: {name: 'two words'}\n")
    flag = '{"ratio": 0.01, "wrap": {"name": "two words"}}'
    assert parse(["--config", file]) == parse(["--comm_config_json", flag])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch_size", "eight"], ["--batch_size", "'eight'", "whole number", "command line"]),
        (["--batch_size", "2.5"], ["--batch_size", "'2.5'"]),
        (["--batch_size", "0"], ["at least 1"]),
        (["--val_fraction", "1"], ["--val_fraction", "below 1"]),
        (["--learning_rate", "nan"], ["--learning_rate", "'nan'"]),
        (["--learning_rate", "1e999"], ["--learning_rate"]),
        (["--seed"], ["--seed", "no value"]),
        (["--compile", "maybe"], ["--compile", "true or false"]),
        (["--comm_dtype", "fp8"], ["fp32, bf16, fp16"]),
        (["--no_compile=true"], ["no_compile"]),
        (["--batch", "8"], ["--batch: no such flag", "--batch_size"]),
        (["stray"], ["'stray'"]),
        (["--comm_config_json", '{"a": NaN}'], ["NaN"]),
        (["--comm_config_json", '{"a": 1e999}'], ["1e999"]),
        (["--comm_config_json", '{"a": 1, "a": 2}'], ["'a' appears twice"]),
        (["--comm_config_json", "[1]"], ["JSON object"]),
        (["--comm_config_json", "{"], ["not valid JSON"]),
        (["--run_name", "../up"], ["--run_name", "folder"]),
        (["--run_name", ".."], ["--run_name"]),
        (["--output_dir", ""], ["--output_dir", "some text"]),
        (["--config", "no-such-file.yaml"], ["--config", "no-such-file.yaml"]),
    ],
)
def test_mistakes_on_the_command_line_are_named(flags: list[str], words: list[str]) -> None:
    message = complaints(*flags)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_size: eight", ["batch_size", "'eight'", "whole number", "recipe.yaml"]),
        ("batch_size: '8'", ["batch_size", "'8'"]),
        ("batch_size: true", ["batch_size", "True"]),
        ("batch_size: 010", ["batch_size", "'010'"]),
        ("run_name: 2025", ["run_name", "2025", "text"]),
        ("compile: 1", ["compile", "true or false"]),
        ("learning_rate: .nan", ["learning_rate"]),
        ("comm_config_json: [1]", ["comm_config_json", "JSON object"]),
        ("comm_config_json: {1: 2}", ["comm_config_json", "JSON object"]),
        ("learning_rat: 1", ["learning_rat: no such setting", "did you mean learning_rate?"]),
        ("seed: 1\nseed: 2", ["'seed' appears twice"]),
        ("- seed", ["recipe.yaml", "list"]),
        ("seed: [", ["recipe.yaml", "not valid YAML"]),
        ("config: other.yaml", ["config: no such setting"]),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    message = complaints("--config", file_with(tmp_path, text))
    assert all(word in message for word in words), message
    assert len(message.splitlines()) == 2


def test_all_complaints_come_together(tmp_path: Path) -> None:
    file = file_with(tmp_path, "sed: 1\nbatch_size: x\n")
    flags = ("--learning_rate", "-1", "--bogus", "3", "--max_steps", "--comm_config_json", "{", "--config", file)
    message = complaints(*flags)
    assert "6 problems" in message
    for word in ("sed", "batch_size", "--learning_rate", "--bogus", "--max_steps", "--comm_config_json"):
        assert f"  {word}" in message


def test_a_config_built_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"max_length: got 1.*\n.*val_fraction: got 2"):
        DataConfig(max_length=1, val_fraction=2)
    with pytest.raises(ConfigError, match="sead: no such setting"):
        TrainConfig.of(sead=1)


def test_empty_and_comment_only_files_change_nothing(tmp_path: Path) -> None:
    assert parse(["--config", file_with(tmp_path, "# nothing\n")]) == parse([])


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_the_digest_changes_exactly_with_what_affects_the_training(spec: Spec, data: st.DataObject) -> None:
    value = data.draw(values_of(spec).filter(lambda v: v != spec.default))
    changed = TrainConfig.of(**{spec.name: value}).digest() != TrainConfig().digest()
    assert changed is spec.affects_training
    assert not (spec.affects_training and spec.name in NOT_TRAINING)


def test_a_new_setting_at_its_default_leaves_digests_as_they_were() -> None:
    @dataclass(frozen=True)
    class Later(Config):
        data: DataConfig = field(default_factory=DataConfig)
        optim: OptimConfig = field(default_factory=OptimConfig)

    @dataclass(frozen=True)
    class Earlier(Config):
        data: DataConfig = field(default_factory=DataConfig)

    assert Earlier.of(max_length=64).digest() == Later.of(max_length=64).digest() != Later.of(batch_size=3).digest()


def test_the_digest_is_the_same_in_every_process_and_python() -> None:
    program = "from fsdp_lab.settings.config import TrainConfig\n"
    program += "print(TrainConfig.of(comm_config_json={'b': 1, 'a': .1}).digest())"
    digests = {
        subprocess.check_output([sys.executable, "-c", program], env={"PYTHONHASHSEED": str(seed)}, text=True).strip()
        for seed in (1, 2)
    }
    assert digests == {TrainConfig.of(comm_config_json={"a": 0.1, "b": 1}).digest()}
    golden = "dd267f5d547c5061c8103704d7c2a550ef020440c99e7ddbf66261071ab3c0a3"
    assert digest_of({"rate": 1e-3, "name": "é", "n": 3, "off": None, "on": True, "in": {"a": []}}) == golden


def test_run_names_are_file_system_safe() -> None:
    name = default_run_name("top k/8", "../gpt2", datetime(2025, 1, 31, tzinfo=UTC))
    assert name == "top-k-8-..-gpt2-20250131-000000"
    assert parse(["--run_name", name]).run.run_name == name
    assert SPECS["run_name"].check(default_run_name("-" * 300, "", datetime(2025, 1, 31, tzinfo=UTC)))


def test_command_line_tool(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["get", "output_dir", "tensorboard", "max_steps", "--", "--no_tensorboard", "--output_dir", "a b"]) == 0
    assert capsys.readouterr().out == "a b\nfalse\n\n"
    assert main(["show", "--", "--seed", "5"]) == 0
    assert parse(["--config", file_with(tmp_path, capsys.readouterr().out)]).run.seed == 5
    assert main(["check"]) == 0
    for bad in (["check", "--", "--bogus"], ["get", "nothing", "--"], ["frobnicate"]):
        with pytest.raises(SystemExit) as stop:
            main(bad)
        assert stop.value.code == 2
    assert "--bogus" in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--batch_size", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name} " in text for name in SPECS)


def test_settings_load_without_torch() -> None:
    subprocess.run(
        [sys.executable, "-c", "import fsdp_lab.settings.reading.cli, sys; assert 'torch' not in sys.modules"],
        check=True,
    )


@given(st.recursive(JSON_VALUES | TEXT, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3)))
def test_strict_yaml_and_json_read_back_what_was_written(value: Any) -> None:
    assert strict.load_yaml(strict.dump_yaml({"x": value})) == {"x": value}
    assert strict.load_json(json.dumps(value)) == value


ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join(['*' + before] * 10)}]\n" for before, after in itertools.pairwise("abcdefghijk")
)
HOSTILE_YAML = [
    (ALIAS_BOMB, "more than 10,000 values"),
    ("x: &a [*a]", "an alias of what it lies in"),
    ("x: " + "[" * 3000, "more than 100 levels"),
    ("- " * 3000 + "x", "more than 100 levels"),
    ("!!bool x", "not what its tag says"),
    ("x: !!timestamp x", "not what its tag says"),
    ("x: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ("x: " + "9" * 400, "too large for a whole number of 64 bits"),
    ("x: " + "9" * 5000, "too large for a whole number of 64 bits"),
    ("x: 1\n" * 2, "'x' appears twice"),
    ("[1]: 2", "unhashable key"),
    ("x" * (1 << 21), "2,097,152 characters"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE_YAML)
def test_hostile_yaml_is_one_message(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        strict.load_yaml(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 400 + "}", "too large for a whole number of 64 bits"),
        ("-" + "9" * 5000, "too large for a whole number of 64 bits"),
        (str(2**64), "too large"),
        (
            "{" + ",".join(f'"{i}": 0' for i in range(200_000)) + ', "199999": 1}',
            "'199999' appears twice",
        ),  # no n squared
    ],
)
def test_hostile_json_is_one_message(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        strict.load_json(text)
    assert len(str(caught.value)) < 300


def test_aliases_and_numbers_of_64_bits_are_taken() -> None:
    assert strict.load_yaml("x: &a {b: 1}\ny: *a\nz: [*a, *a]") == {"x": {"b": 1}, "y": {"b": 1}, "z": [{"b": 1}] * 2}
    shared = {"b": [1]}
    assert strict.load_yaml(strict.dump_yaml({"x": shared, "y": shared})) == {"x": shared, "y": shared}
    for number in (2**64 - 1, -(2**63)):
        assert strict.load_json(str(number)) == strict.load_yaml(str(number)) == number


@pytest.mark.parametrize("digits", [30, 299, 301, 400, 5000])
@pytest.mark.parametrize("name", ["seed", "batch_size", "val_fraction"])
def test_numbers_of_many_digits_are_refused_wherever_they_come_from(tmp_path: Path, name: str, digits: int) -> None:
    assert f"--{name}" in complaints(f"--{name}", "9" * digits)
    assert "64 bits" in complaints("--config", file_with(tmp_path, f"{name}: {'9' * digits}"))
    assert "64 bits" in complaints("--comm_config_json", f'{{"a": {"9" * digits}}}')
    with pytest.raises(ConfigError, match=name):
        TrainConfig.of(**{name: 10 ** min(digits, 4000)})
