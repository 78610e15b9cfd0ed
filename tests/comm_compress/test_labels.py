"""Laws of labels: what is written can be read again, and what cannot be read is said."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from comm_compress.labels import Arm, Method, arm_label, label, parse_arm, parse_label, spelled_out
from tests.comm_compress.table import IDS, TABLE

ROOT = Path(__file__).resolve().parents[2]
TEXT = st.text(max_size=6) | st.sampled_from(
    ["no", "true", "feedback", "1e3", "None", "a=b", "x+y", '"', "[", "{", "method"]
)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
# a text of several words stands for a method; no setting has one of its own
WORDS = TEXT.filter(lambda text: len(text.split()) < 2)
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS
VALUES = st.recursive(PLAIN, lambda v: st.lists(v, max_size=2) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6)


@given(TEXT, st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_is_written_is_read_again(name: str, settings: dict[str, Any]) -> None:
    read = parse_label(label(name, settings))
    assert json.dumps(read) == json.dumps([name, _method_first(settings)])


def _method_first(value: Any, outermost: bool = True) -> Any:
    """As a label orders settings: the method's name of a nested one before its settings."""
    if not isinstance(value, dict):
        return value
    order = sorted(value, key=lambda k: k != "method" or outermost or not isinstance(value[k], str))
    return {key: _method_first(value[key], False) for key in order}


@pytest.mark.parametrize(("forward", "backward"), [("int8", "none"), ("none", "int8"), ("int4 hadamard", "topk k=3")])
def test_methods_of_activations_are_read_again(forward: str, backward: str) -> None:
    read = parse_arm(arm_label("none", activations=forward, activation_gradients=backward))
    assert (read.activations, read.activation_gradients or "none") == (forward, backward)
    assert arm_label("none", activations=forward, activation_gradients=backward).startswith("none, activations ")


@pytest.mark.parametrize(
    ("sent", "back"), [("none", "none"), ("topk ratio=0.01", "none"), ("int4 hadamard", "int8"), ("none", "int8")]
)
def test_local_steps_are_read_again(sent: str, back: str) -> None:
    outer = {"outer_method": sent, "outer_gather": back}
    text = arm_label("int8", "delta", outer="diloco", outer_every=7, **outer, prefetch=2, optimizer="int8")
    read = parse_arm(text)
    assert text.endswith(", optimizer int8")
    assert read.optimizer == "int8"
    assert text.startswith("int8 + delta, prefetch 2, every 7 diloco")
    assert (read.outer, read.outer_every, read.prefetch) == ("diloco", 7, 2)
    assert (read.outer_method or "none", read.outer_gather or "none") == (sent, back)


@pytest.mark.parametrize(("name", "settings"), TABLE, ids=IDS)
def test_every_method_and_setting_of_the_table(name: str, settings: dict[str, Any]) -> None:
    assert parse_label(label(name, settings)) == Method(name, settings)


def rows() -> list[dict[str, Any]]:
    """Every row of a run among the reference results."""
    found = []
    for path in sorted((ROOT / "results" / "reference").rglob("*.jsonl*")):
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        lines = (json.loads(line) for line in text.splitlines())
        found += [line for line in lines if isinstance(line, dict) and isinstance(line.get("config"), dict)]
    return found


def test_every_arm_of_the_reference_rows() -> None:
    arms = {
        json.dumps([row["config"].get(name, default) for name, default in ARM], sort_keys=True)
        for row in rows()
        if "comm_compress" in row["config"]
    }
    assert len(arms) > 90
    for said in map(json.loads, arms):
        gradients, settings, parameters, parameter_settings, dtype = said
        both = label(gradients, settings), label(parameters, parameter_settings)
        read = parse_arm(arm_label(*both, reduced_in=dtype))
        other = None if parameters == "none" else Method(parameters, parameter_settings)
        assert read == Arm(Method(gradients, settings), other, None if dtype == "fp32" else dtype)


ARM = [
    ("comm_compress", "none"),
    ("comm_config_json", {}),
    ("param_compress", "none"),
    ("param_config_json", {}),
    ("comm_dtype", "fp32"),
]


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("int8", Arm(Method("int8", {}))),
        ("  topk   ratio = 0.01 ", Arm(Method("topk", {"ratio": 0.01}))),
        ("int8+delta", Arm(Method("int8", {}), Method("delta", {}))),
        ("none + none", Arm(Method("none", {}), Method("none", {}))),
        ("int4 hadamard no feedback", Arm(Method("int4", {"hadamard": True, "error_feedback": False}))),
        ("int4 error_feedback=true", Arm(Method("int4", {"error_feedback": True}))),
        ("topk k=null", Arm(Method("topk", {"k": None}))),
        ("topk values=int8", Arm(Method("topk", {"values": "int8"}))),
        ("topk values(qsgd bits=4)", Arm(Method("topk", {"values": {"method": "qsgd", "bits": 4}}))),
        ('topk values={"method": "qsgd"}', Arm(Method("topk", {"values": {"method": "qsgd"}}))),
        ("int8 layers(*.h.[0-9].*=none wte(topk k=1))", None),
        ("bf16 + bf16, reduced in bf16, prefetch 0, no reshard", None),
        ("none, activations int8", Arm(Method("none", {}), activations="int8")),
        ("none, optimizer int4  hadamard", Arm(Method("none", {}), optimizer="int4 hadamard")),
        (
            "int8 + delta, no reshard, activations int4  hadamard + topk ratio=0.10",
            Arm(
                Method("int8", {}),
                Method("delta", {}),
                reshard=False,
                activations="int4 hadamard",
                activation_gradients="topk ratio=0.1",
            ),
        ),
        ("x step=1e+16+y", Arm(Method("x", {"step": 1e16}), Method("y", {}))),
    ],
)
def test_spellings(text: str, arm: Arm | None) -> None:
    if arm is None:
        arm = {
            "int8": Arm(Method("int8", {"layers": {"*.h.[0-9].*": "none", "wte": {"method": "topk", "k": 1}}})),
            "bf16": Arm(Method("bf16", {}), Method("bf16", {}), "bf16", 0, False),
        }[text.split()[0]]
    assert parse_arm(text) == arm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a method's name is missing"),
        ("+ delta", "a method's name is missing before '+'"),
        ("topk 0.01", "0.01 needs the name of a setting before it, as in ratio=0.01"),
        ("topk ratio=", "a value is missing"),
        ("topk ratio=0.1 ratio=0.2", "ratio is said twice"),
        ("none, every diloco", "a number of steps is missing before 'diloco'"),
        ("none, every 3", "what is done is missing"),
        ("none, every 3 diloco int8 + int8 + int8", "3 methods for two directions"),
        ("none, every 3 diloco, every 4 diloco", "outer every is said twice"),
        ("topk ratio=0,01", "'01' stands after a comma"),
        (
            "topk, reduced",
            "activations METHOD, every NUMBER KIND METHOD and optimizer METHOD can",
        ),
        ("topk, optimizer int8 + int8", "'+' is out of place"),
        ("topk, optimizer", "a method's name is missing"),
        ("topk, activations", "a method's name is missing"),
        ("topk, activations a + b + c", "3 methods for two directions (activations + their gradients)"),
        ("topk, activations a, activations b", "activations is said twice"),
        ("topk values(int8", "a parenthesis is not closed"),
        ("topk values=int8)", "')' is out of place"),
        ("a + b + c", "3 methods for two directions"),
        ('topk values="int8', "has no end"),
        ("topk ratio=1e999", "too large"),
        ("topk k=[NaN]", "valid JSON"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        parse_arm(text)
    assert str(raised.value).startswith(f"{text!r}: ")


def test_one_method_is_not_two() -> None:
    with pytest.raises(ValueError, match=r"two methods \(gradients \+ parameters\), where one is wanted"):
        parse_label("int8 + delta")
    with pytest.raises(ValueError, match="follows the comma"):
        parse_label("int8, prefetch 0")


def test_labels_inside_settings_are_spelled_out() -> None:
    assert spelled_out({"values": "qsgd bits=4", "indices": "rice", "layers": {"*": "int8 no feedback"}}) == {
        "values": {"method": "qsgd", "bits": 4},
        "indices": "rice",
        "layers": {"*": {"method": "int8", "error_feedback": False}},
    }


def test_labels_need_no_torch() -> None:
    program = "import comm_compress.labels, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
