"""One method, many ways to say it: the same compressor wherever a method can be given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress import conformance, laws
from comm_compress.integrations import ddp
from comm_compress.labels import label
from tests.comm_compress.table import IDS, TABLE, build
from tests.distributed import run_ranks

WANTED: dict[str, Any] = {"ratio": 0.02, "values": {"method": "qsgd", "bits": 4}}
SAME: list[Any] = [
    "topk ratio=0.02 values(qsgd bits=4)",
    {"method": "topk", "ratio": 0.02, "values": "qsgd bits=4"},
    {"method": "topk ratio=0.02", "values": {"method": "qsgd", "bits": 4}},
]
WRONG: list[tuple[Any, str]] = [
    ("topq ratio=0.02", "unknown compression method 'topq' (did you mean 'topk'?)"),
    ("topk ratios=0.02", "unknown key 'ratios' (did you mean 'ratio'?)"),
    ("topk ratio=two", "ratio = 'two': must be a number"),
    ("int8 + delta", "two methods (gradients + parameters), where one is wanted"),
    ({"ratio": 0.02}, "needs a 'method'"),
    (8, "8: must be a method's name, a label such as 'topk ratio=0.01'"),
    (cc.Compressor, "must be a method's name"),
]


def built() -> list[Any]:
    """Those ways, and the compressor itself."""
    return [*SAME, cc.make("topk", WANTED)]


@pytest.mark.parametrize(("name", "settings"), TABLE, ids=IDS)
def test_make_reads_every_label(name: str, settings: dict[str, Any]) -> None:
    wanted = build(name, settings)
    for said in (label(name, settings), {"method": name, **settings}, wanted):
        made = cc.make(said)
        assert made is not None
        assert (made.name, made.settings) == (wanted.name, wanted.settings)


def test_settings_may_stand_beside_a_label_but_not_contradict_it() -> None:
    made = cc.make("topk ratio=0.02", {"indices": "rice", "ratio": 0.02})
    assert made is not None
    assert (made.settings["ratio"], made.settings["indices"]) == (0.02, "rice")
    with pytest.raises(ValueError, match=re.escape("topk: ratio is said twice, as 0.02 and as 0.1")):
        cc.make("topk ratio=0.02", {"ratio": 0.1})
    with pytest.raises(ValueError, match="built already and takes no settings"):
        cc.make(made, {"ratio": 0.1})


@pytest.mark.parametrize(
    ("method", "key"), [("topk", "values"), ("lowrank", "values"), ("delta", "values"), ("randomk", "values")]
)
def test_methods_inside_settings(method: str, key: str) -> None:
    ways = ["int4 block_size=64", {"method": "int4", "block_size": 64}, cc.make("int4 block_size=64")]
    made = [cc.make(method, {key: way}) for way in ways]
    texts = {label(method, {k: v for k, v in c.settings.items() if k != key}) for c in made if c is not None}
    assert len(texts) == 1
    for compressor in made:
        assert compressor is not None
        said = compressor.settings[key]
        assert (said["method"], said["block_size"]) == ("int4", 64)
        json.dumps(compressor.settings)  # what a results row keeps
    with pytest.raises(ValueError, match=r"values: .*did you mean 'int4'"):
        cc.make(method, {key: "int44 block_size=64"})


def test_methods_by_layer() -> None:
    made = cc.make("int8", {"layers": {"*.bias": "none", "*wte*": "topk ratio=0.1", "*h*": cc.make("bf16")}})
    assert made is not None
    layers = made.settings["layers"]
    assert (layers["*.bias"]["method"], layers["*wte*"]["ratio"], layers["*h*"]["method"]) == ("identity", 0.1, "bf16")


def _attached() -> list[Any]:
    """What each door makes of each way, and how each refuses what is wrong."""
    seen: list[Any] = []
    ways = {
        "reduce_scatter": lambda way: cc.attach(_sharded(), reduce_scatter=way).reduce_scatter,
        "all_gather": lambda way: cc.attach(_sharded(), all_gather=way).all_gather,
        "all_reduce": lambda way: _between(all_reduce=way).reduce,
        "all_reduce_gather": lambda way: _between(all_reduce="identity", all_reduce_gather=way).gather,
        "compressor": lambda way: ddp.attach(DistributedDataParallel(nn.Linear(2, 2)), way).compressor,
        "all_gather of ddp": lambda way: ddp.attach(DistributedDataParallel(nn.Linear(2, 2)), "bf16", way).all_gather,
    }
    for key, attach in ways.items():
        is_gather = "gather" in key
        for way in [*(["int4 block_size=64", cc.make("int4 block_size=64")] if is_gather else built())]:
            made = attach(way)
            seen.append((key, made.name, made.settings))
        seen += [(key, _refusal(attach, wrong), words) for wrong, words in WRONG]
    return seen


def _refusal(attach: Callable[[Any], Any], wrong: Any) -> str:
    try:
        attach(wrong)
    except ValueError as error:
        return str(error)
    return "accepted"


def _sharded() -> nn.Module:
    return fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))


def _between(**methods: Any) -> Any:
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    cc.attach(model, **methods)
    from comm_compress.integrations.fsdp._compat import param_groups

    return param_groups(model)[0]._all_reduce_hook.reduction


def test_every_way_at_every_door() -> None:
    wanted = cc.make("topk", WANTED)
    assert wanted is not None
    for key, said, held in run_ranks(2, _attached)[0]:
        if said == "int4":
            assert held["block_size"] == 64
        elif said == "topk":
            assert held == wanted.settings
        else:
            assert said.startswith(key.partition(" ")[0] + ": "), said
            assert held in said


def test_virtual_ranks_take_them_too() -> None:
    for way in built():
        ranks = cc.VirtualRanks(nn.Linear(4, 4), 2, [], reduce_scatter=way, all_gather="int4 block_size=64")
        assert ranks.reduce_scatter is not None
        assert ranks.reduce_scatter.settings["values"]["bits"] == 4
    assert cc.VirtualRanks(nn.Linear(4, 4), 2, [], reduce_scatter="none").reduce_scatter is None
    for wrong, words in WRONG:
        with pytest.raises(ValueError, match=re.escape(words)) as raised:
            cc.VirtualRanks(nn.Linear(4, 4), 2, [], all_gather=wrong)
        assert str(raised.value).startswith("all_gather: ")


def _show(factory: conformance.Factory) -> None:
    print(factory().settings)


def test_conformance_reads_labels_and_refuses_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["conformance", *words])
        return conformance.main()

    monkeypatch.setattr(laws, "laws_for", lambda compressor: [_show])
    assert run("topk ratio=0.02", '{"indices": "rice"}') == 0
    assert "'ratio': 0.02" in (said := capsys.readouterr().out)
    assert "'indices': 'rice'" in said
    for words in (["bf61"], ["bf16 x=1"], ["bf16", "{"], ["bf16", "[]"], ["none"]):
        assert run(*words) == 2
        said = capsys.readouterr().err
        assert said.startswith("conformance: ")
        assert len(said.splitlines()) == 1
