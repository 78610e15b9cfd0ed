"""The law: a run whose interface sent other bytes than it claims is not trusted."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.rounds import Exchange, Reduced, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.methods.identity import Identity, IdentityConfig
from comm_compress.registry import register
from experiments.network.namespaces import Namespaces
from fsdp_lab import results
from fsdp_lab.measure.wire_check import Claim, Interface, agree, interface_counters
from fsdp_lab.ranks.link import VARIABLE, Link, link_of_this_run
from tests.distributed import run_program
from tests.fsdp_lab.test_train import Lab, train_as_program

CLONE_NEWNET = 0x40000000


class Liar(Identity):
    """Sends a byte a rank by the book and everything else past it."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        hidden = rows.clone()
        dist.all_reduce(hidden)
        layout = Layout(Field("values", torch.uint8, 1, "values"))
        message = Encoded.empty(rows.shape[0], rows.shape[1], layout, rows.device)
        yield Exchange(message)
        return Reduced(hidden[state.rank].clone(), message)


def train_in_a_namespace() -> None:
    """The trainer, in the network namespace that NETNS names."""
    namespace = os.open(f"/run/netns/{os.environ['NETNS']}", os.O_RDONLY)
    assert ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    register("liar", IdentityConfig)(Liar)
    train_as_program()


@pytest.mark.netns
@pytest.mark.parametrize(
    ("method", "gathers", "ranks", "per_node", "trusted"),
    [("topk", "none", 2, 1, True), ("liar", "int8", 2, 1, False), ("onebit", "int4", 3, 3, True)],
)
def test_a_run_is_trusted_when_its_interface_sent_what_it_claims(
    tmp_path: Path, method: str, gathers: str, ranks: int, per_node: int, trusted: bool
) -> None:
    lab = Lab(tmp_path)
    settings: dict[str, Any] = {"comm_compress": method, "param_compress": gathers, "eval_steps": 3, "max_steps": 8}
    flags = [*lab.flags(**settings), "--no_save_model"]
    with Namespaces(ranks, per_node=per_node) as net:
        environments = [net.environment(rank) | {"NETNS": net.name(rank)} for rank in range(ranks)]
        code, out, err = run_program(train_in_a_namespace, [flags] * ranks, environments)
    assert code == 0, err
    (row,) = results.load(lab.rows_file)
    assert row["bytes_trusted"] is trusted
    assert ("UNTRUSTED" in out + err) is not trusted
    assert row["interface_steps"] == row["steps"] == 8
    assert (row["link_rate_asked"], row["link_delay_ms"]) == (None, 0)
    if trusted:  # headers are a few percent at most
        assert row["bytes_compressed_total"] < row["interface_bytes_total"] < 1.1 * row["bytes_compressed_total"]


def interface(payload: int, packets: int, resent: int = 0) -> Interface:
    return Interface(payload + 66 * packets, packets, resent)


def test_headers_are_taken_off_and_one_percent_may_remain() -> None:
    claim, own = Claim(100_000, 10), Claim(8, 2)
    exact = 100_000 + 8 + 12 * 144
    assert agree(interface(exact, 50), claim, own)
    assert agree(interface(exact, 5000), claim, own)  # acknowledgements are packets without payload
    assert agree(interface(exact + 1000, 50), claim, own)
    assert agree(interface(exact - 1000, 50), claim, own)
    assert not agree(interface(exact + 1001, 50), claim, own)
    assert not agree(interface(exact - 1001, 50), claim, own)
    assert agree(interface(exact + 1001, 50, resent=1), claim, own)  # sent twice
    assert not agree(interface(exact + 1002, 50, resent=1), claim, own)
    assert not agree(interface(exact - 1001, 50, resent=1), claim, own)  # that explains no missing bytes


def test_the_interfaces_counters_are_read(tmp_path: Path) -> None:
    header = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes ...\n"
    )
    lines = "    lo: 7 1 0 0 0 0 0 0  7 1 0 0 0 0 0 0\n  eth0: 100 2 0 0 0 0 0 0 3000 4 0 0 0 0 0 0\n"
    (tmp_path / "dev").write_text(header + lines)
    assert interface_counters(("eth0",), tmp_path)[:2] == (3000, 4)
    assert interface_counters(("eth0", "lo"), tmp_path)[:2] == (3007, 5)
    with pytest.raises(RuntimeError, match="no eth9"):
        interface_counters(("eth9",), tmp_path)


def test_the_environment_tells_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert link_of_this_run() is None
    link = Link(2e8, 1.9e8, 5.0, ranks=4, per_node=2)
    monkeypatch.setenv(VARIABLE, link.variables()[VARIABLE])
    assert link_of_this_run() == link
    for wrong in ("fast", json.dumps({"speed": 1})):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ValueError, match=VARIABLE):
            link_of_this_run()
