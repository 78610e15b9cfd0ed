"""What is said of methods as plain data: every setting of every method is described, and what is said is true."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import pytest
from torch import Tensor

import comm_compress as cc
from comm_compress import registry
from comm_compress.methods.identity import Identity

NAMES = [name for name in cc.available() if name != "none"]
SETTINGS = [
    *((name, setting) for name in NAMES for setting in cc.describe(name)["settings"]),
    *(("all methods", setting) for setting in cc.describe_common()["settings"]),
    *(("error feedback", setting) for setting in cc.describe_common()["error_feedback"]),
]


@pytest.mark.parametrize("name", cc.available())
def test_every_method_is_described(name: str) -> None:
    said = cc.describe(name)
    assert set(said) == cc.Description.__required_keys__
    assert said["name"] == name
    assert said["idea"].endswith(".")
    assert "\n" not in said["idea"] + said["source"]
    assert json.loads(json.dumps(said)) == said


@pytest.mark.parametrize(("method", "setting"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_setting_is_described_and_has_an_example(method: str, setting: cc.Setting) -> None:
    where = f"{method}: {setting['name']}"
    assert len(setting["meaning"].split()) > 2, f"{where}: write ``{setting['name']}``: ... into its dataclass"
    assert setting["example"], f"{where}: no other value builds"
    assert setting["name"] in setting["example"].replace("feedback", "error_feedback")
    assert cc.make(setting["example"]) is not None


def test_all_settings_are_there_with_their_defaults() -> None:
    for name in NAMES:
        config = registry.registered(name).config
        said = {setting["name"]: setting["default"] for setting in cc.describe(name)["settings"]}
        assert said == dataclasses.asdict(config()), name


@pytest.mark.parametrize("name", NAMES)
def test_directions_and_feedback_are_those_of_the_method_itself(name: str) -> None:
    said, built = cc.describe(name), cc.make(name, {})
    assert built is not None
    assert said["gradients"] == built.traits.for_gradients
    assert said["error_feedback"] == ("error_feedback" in built.settings)
    if said["no_feedback"]:
        with pytest.raises(ValueError, match="error_feedback"):
            cc.make(name, {"error_feedback": True})


def test_limits_are_the_words_of_the_refusal() -> None:
    limits = {setting["name"]: setting["limits"] for setting in cc.describe("topk")["settings"]}
    with pytest.raises(ValueError, match=f"must be {limits['ratio']}$"):
        cc.make("topk ratio=0")
    assert limits["order"] == ""


def test_sources_are_found_in_the_method_and_in_its_module() -> None:
    assert cc.describe("terngrad")["arxiv"] == ["1705.07878"]  # beside qsgd's, in one module
    assert cc.describe("topk")["source"].startswith("Stich, Cordonnier and Jaggi")
    assert cc.describe("zero")["source"] == ""
    assert "Source:" not in cc.describe("qsgd")["details"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'topk'"):
        cc.describe("topkk")


@dataclass(frozen=True)
class Base:
    """Shared by some.

    ``shared``: said where
    it is shared.
    ``both``: not this.
    """

    shared: int = 1
    both: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Own(Base):
    """Of one.

    ``both``: said anew.

    Some remark. ``shared``: no line begins like this.
    """

    undescribed: float = 0.0


def test_a_plugins_method_is_described_as_far_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger(Identity):
        """One idea
        on two lines.

        More of it.

        Source: A. Author, 2026,
        arXiv 2601.00001.
        """

        def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
            return super().encode(rows, state)

    monkeypatch.setitem(registry._METHODS, "stranger", registry.Entry(Own, Stranger, False))
    said = cc.describe("stranger")
    assert (said["idea"], said["details"]) == ("One idea on two lines.", "More of it.")
    assert (said["source"], said["arxiv"]) == ("A. Author, 2026, arXiv 2601.00001.", ["2601.00001"])
    meanings = {setting["name"]: setting["meaning"] for setting in said["settings"]}
    assert meanings == {"shared": "said where it is shared.", "both": "said anew.", "undescribed": ""}
    assert [setting["limits"] for setting in said["settings"]] == ["", "", ""]
