"""--operators: what it may say, what it stands for, and what is refused before a rank starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.operators import OPERATORS, Facts, choose
from fsdp_lab.settings.operators.table import CONFLICTS, WORDS
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing import operators as refusing
from fsdp_lab.settings.refusing.early import checked


def facts(family: str = "llama", device: str = "cpu", dtype: str = "fp32", *packages: str, torch: int = 13) -> Facts:
    return Facts(family, device, dtype, (2, torch), lambda extra: None if extra in packages else f"no {extra}")


def chosen(operators: dict[str, str], where: Facts) -> dict[str, str]:
    return choose(ModelConfig(operators=operators), where)


def refused(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        checked(TrainConfig, list(flags))
    return error.value.complaints


def test_flag_and_file_say_the_same_and_the_default_changes_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("operators: {attention: eager, rope: naive, others: best}\n")
    text = '{"others": "best", "rope": "naive", "attention": "eager"}'
    assert parse(["--operators", text]).digest() == parse(["--config", str(file)]).digest()
    file.write_text("operators: best\n")
    assert parse(["--operators", "best"]) == parse(["--config", str(file)])
    assert parse(["--operators", "default"]).digest() == parse([]).digest()
    assert parse(["--operators", "naive"]).digest() != parse([]).digest()
    assert parse(["--operators", '{"precision": "bf16"}']).model == parse(["--mixed_precision", "bf16"]).model
    again = parse(["--operators", text]).to_yaml()
    file.write_text(again)
    assert parse(["--config", str(file)]).to_yaml() == again


@pytest.mark.parametrize("family", ["gpt2", "llama", "minicpm", "bert"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("packages", [(), ("liger",), ("liger", "flash")])
def test_words_always_stand_for_something_that_can_be_had(family: str, device: str, packages: tuple[str, ...]) -> None:
    for word in WORDS:
        for dtype in ("fp32", "bf16"):
            where = facts(family, device, dtype, *packages)
            everything = chosen({"others": word}, where)
            assert everything.keys() == {name for name, o in OPERATORS.items() if family in o.families}
            assert chosen(everything, where) == everything  # naming each is not refused either
            pairs = set(everything.items())
            assert not [c for c in CONFLICTS if {c.first, c.second} <= pairs]


def test_best_takes_what_is_installed_and_gives_way_to_what_was_named() -> None:
    with_liger, without = facts("llama", "cuda", "bf16", "liger"), facts("llama", "cuda", "bf16")
    assert chosen({"others": "best"}, with_liger)["rms_norm"] == "liger"
    assert chosen({"others": "best"}, with_liger)["compile"] == "off"
    assert chosen({"others": "best"}, without)["compile"] == "blocks"
    compiled = chosen({"others": "best", "compile": "blocks"}, with_liger)
    assert {compiled[name] for name in ("rope", "swiglu")} == {"plain"}
    assert chosen({"attention": "best"}, facts("llama", "cuda", "bf16", "flash"))["attention"] == "flash"
    assert chosen({"attention": "best"}, facts("llama", "cuda", "fp32", "flash"))["attention"] == "sdpa"


def test_a_flag_of_its_own_wins_over_a_word_and_contradicts_a_name() -> None:
    model = ModelConfig(operators={"others": "naive"}, attention="sdpa", compile=True, activation_checkpointing=True)
    assert {n: choose(model, facts())[n] for n in ("attention", "compile", "checkpointing")} == {
        "attention": "eager",
        "compile": "blocks",
        "checkpointing": "blocks",
    }
    with pytest.raises(ConfigError, match="operators: attention sdpa, but --attention says eager; give one of them"):
        ModelConfig(operators={"attention": "sdpa"}, attention="eager")
    with pytest.raises(ConfigError, match="precision fp32, but --mixed_precision bf16"):
        ModelConfig(operators={"precision": "fp32"}, mixed_precision="bf16")


@pytest.mark.parametrize(
    ("operators", "where", "said"),
    [
        (
            {"rope": "liger"},
            facts(),
            "rope: liger is made of Triton kernels, which run on a CUDA device only; give plain",
        ),
        ({"rope": "liger"}, facts("llama", "cuda"), "rope: liger needs a package: no liger"),
        ({"attention": "sdpa-cudnn"}, facts("llama", "cuda"), "attention: sdpa-cudnn has no float32"),
        ({"cross_entropy": "torch"}, facts(torch=11), "cross_entropy: torch is torch's from 2.13 on, this is 2.11"),
        ({"cross_entropy": "torch"}, facts("llama", "cpu", "bf16"), "cross_entropy: torch rounds the loss itself"),
        ({"cross_entropy": "chunked"}, facts("bert"), "cross_entropy: chunked is not for a bert, which has whole"),
        ({"rope": "naive"}, facts("gpt2"), "operators: rope: a gpt2 has none; leave it out"),
        (
            {"compile": "whole", "swiglu": "compiled"},
            facts(),
            "swiglu compiled and compile whole cannot be had together",
        ),
        (
            {"compile": "blocks", "swiglu": "liger"},
            facts("llama", "cuda", "bf16", "liger"),
            "swiglu liger and compile blocks cannot be had together: torch.compile of the blocks makes",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(operators: dict[str, str], where: Facts, said: str) -> None:
    with pytest.raises(ValueError, match=r"^operators: ") as error:
        chosen(operators, where)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_it_is_refused_before_a_rank_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusing, "device_here", lambda: "cpu")
    llama = ("--model", "llama-nano")
    (one,) = refused(*llama, "--operators", '{"swiglu": "liger"}')
    assert one.startswith("operators: swiglu: liger is made of Triton kernels")
    (one,) = refused(*llama, "--attention", "flash")
    assert one == "attention: flash trains on a CUDA device only; give sdpa or eager"
    assert "no operator 'rop' (did you mean rope?)" in refused(*llama, "--operators", '{"rop": "naive"}')[0]
    assert "wants a JSON object, or one of naive, best, default" in refused(*llama, "--operators", "bset")[0]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (one,) = refused("--model_dir", str(tmp_path), "--operators", '{"rms_norm": "torch"}')
    assert one == "operators: rms_norm: a gpt2 has none; leave it out"
    assert checked(TrainConfig, [*llama, "--operators", "best"]).model.operators == {"others": "best"}
    (one,) = refused("--virtual_ranks", "2", "--operators", '{"compile": "whole"}')
    assert one.startswith("compile: virtual ranks change the parameters under a compiled model")
