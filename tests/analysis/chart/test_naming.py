"""Arms have names on the chart that are short, and tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from analysis.chart.naming import named
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics import names
from tests.analysis.chart.planted import judged

SIGNS = {"optimizer_compress": "signsgd", "dp_replicas": 2}
TOPK = {"outer": "diloco", "outer_every": 30, "dp_replicas": 2, "outer_compress": "topk ratio=0.02 values=int2 chunked"}
UNTIL_FREEZE = {**SIGNS, "optimizer": "zero_one_adam", "optimizer_until_freeze": "gradients"}
ARMS: dict[str, Mapping[str, Any]] = {
    "none": {},
    "none, 2 replicas": {"dp_replicas": 2},
    "int8 + delta": {"comm_compress": "int8", "param_compress": "delta"},
    "muon": {"optimizer": "muon"},
    "muon int4, int8 + delta": {
        **{"optimizer": "muon", "optimizer_compress": "int4"},
        **{"comm_compress": "int8", "param_compress": "delta"},
    },
    "onebit_adam adam_freeze_after=9 signsgd": {**SIGNS, "optimizer": "onebit_adam", "adam_freeze_after": 9},
    "zero_one_adam signsgd": {**SIGNS, "optimizer": "zero_one_adam"},
    "zero_one_adam signsgd gradients": UNTIL_FREEZE,
    "dion": {"optimizer": "dion", "dp_replicas": 2},
    "ef21_muon topk ratio=0.1 + signsgd": {
        **{"optimizer": "ef21_muon", "dp_replicas": 2, "optimizer_compress": "topk ratio=0.1"},
        **{"optimizer_gather": "signsgd"},
    },
    "every 30 diloco": {"outer": "diloco", "outer_every": 30, "dp_replicas": 2},
    "every 30 diloco topk": TOPK,
    "every 30 diloco, embeddings by gradient": {
        **{"outer": "diloco", "outer_every": 30, "dp_replicas": 2},
        **{"outer_by_gradient": "embeddings", "outer_gradient_every": 3},
    },
    "every 30 diloco int8, embeddings by powersgd": {
        **{"outer": "diloco", "outer_every": 30, "dp_replicas": 2, "outer_by_gradient": "embeddings"},
        **{"outer_compress": 'int8 layers(*wte*="powersgd rank=9")', "outer_gradient_every": 3},
    },
    "every 30 diloco int4, embeddings by powersgd": {
        **{"outer": "diloco", "outer_every": 30, "dp_replicas": 2, "outer_by_gradient": "embeddings"},
        **{"outer_compress": "int4", "outer_gradient_compress": "powersgd rank=9", "outer_gradient_every": 3},
    },
    "gradients of 5 steps": {
        **{"outer": "local_sgd", "outer_every": 30, "dp_replicas": 2},
        **{"outer_by_gradient": "all", "outer_gradient_every": 5},
    },
    "gradients of each step": {
        **{"outer": "local_sgd", "outer_every": 30, "dp_replicas": 2},
        **{"outer_by_gradient": "all", "outer_gradient_every": 1},
    },
    "every 30 diloco(1, 0.3)": {
        **{"outer": "diloco", "outer_every": 30, "dp_replicas": 2},
        **{"outer_learning_rate": 1.0, "outer_momentum": 0.3},
    },
    "every 30 diloco(momentum 0.6)": {
        **{"outer": "diloco", "outer_every": 30, "dp_replicas": 2, "outer_momentum": 0.6},
    },
    "muon, every 30 diloco": {"outer": "diloco", "outer_every": 30, "dp_replicas": 2, "optimizer": "muon"},
}


def rows(arms: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    (base,) = judged(["none"], [1])
    defaults = (base.get("arm_settings") or {}) | {"optimizer_gather": "none", "optimizer_until_freeze": "moves"}
    defaults |= {"outer_by_gradient": "none", "outer_gradient_every": None, "outer_gradient_compress": "none"}
    defaults |= {"outer_learning_rate": None, "outer_momentum": None}
    said = [{**base["config"], **defaults, **settings} for settings in arms.values()]
    return [Row({**base, "arm_settings": defaults, "config": config}) for config in said]


def called(arms: Mapping[str, Mapping[str, Any]], longest: int = 44) -> list[str]:
    (comparison,) = comparisons(rows(arms), across_training=True)
    renamed = named(comparison, longest)
    assert [names.full(runs.arm) for runs in renamed.arms] == [runs.arm.label for runs in comparison.arms]
    assert renamed.baseline is not None
    assert renamed.baseline.arm.label == "none"
    return [runs.arm.label for runs in renamed.arms]


def test_names_say_what_moves_the_weights_and_what_is_sent() -> None:
    assert set(called(ARMS)) == set(ARMS)


@pytest.mark.parametrize("longest", [5, 12, 24])
def test_names_differ_however_short_they_must_be(longest: int) -> None:
    assert len(set(called(ARMS, longest))) == len(ARMS)


def test_arms_that_differ_in_settings_alone_keep_those() -> None:
    other = {**TOPK, "outer_compress": "topk ratio=0.05 values=int2 chunked"}
    both = {"none": {}, "a": TOPK, "b": other}
    assert set(called(both, 80)) == {
        "none",
        "every 30 diloco topk ratio=0.02 values=int2 chunked",
        "every 30 diloco topk ratio=0.05 values=int2 chunked",
    }
    assert set(called(both, 40)) == {"none", "every 30 diloco topk ratio=0.02", "every 30 diloco topk ratio=0.05"}
    nested = {**TOPK, "outer_compress": "topk ratio=0.02 values(int8 block_size=64) chunked"}
    with_values = {"every 30 diloco topk values=int2", "every 30 diloco topk values(int8 block_size=64)"}
    assert set(called({"none": {}, "a": TOPK, "b": nested}, 30)) == {"none", *with_values}
