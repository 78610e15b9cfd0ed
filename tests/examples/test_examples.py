"""The examples as a reader runs them, on two real ranks: stock and identity alike, a compressed pair that trains.

An example runs several times on ranks that are started once: what a rank does for the first time is not done again.
But not where the package that it shows keeps something for the whole of a process (`ALONE`).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import pytest

from examples import tiny
from tests.distributed import free_port, preload, run_program, torchrun_environment

# each example's optional package
EXAMPLES = {
    "fsdp2": None,
    "trainers.accelerate_loop": "accelerate",
    "trainers.fabric_loop": "lightning_fabric",
    "trainers.hf_trainer": "accelerate",
    "trainers.lora": "peft",
    "optimizers.muon": None,
    "save_and_resume": None,
}
DATA_PARALLEL = ("parallel.ddp", "parallel.hsdp")  # replicas: their traffic is an all-reduce
TENSOR_PARALLEL = "parallel.tensor_parallel"  # its traffic is that of activations
KEEPS_FROZEN = {"trainers.lora"}  # what is not trained is sent once
ALONE = {"trainers.accelerate_loop", "trainers.fabric_loop", "trainers.hf_trainer"}
CHOICES = ("stock", "identity", "topk")
BEGINS = "-- example "
ALL = pytest.mark.parametrize("example", EXAMPLES)
for name, package in {**EXAMPLES, **dict.fromkeys((*DATA_PARALLEL, TENSOR_PARALLEL))}.items():
    if package is None or importlib.util.find_spec(package):
        preload(f"examples.{name}")
preload("examples.optimizers.diloco")
preload("examples.parallel.pipeline_parallel")
preload("examples.byte_audit")  # not my_method: its method would be registered in every process


@dataclass(frozen=True)
class Traffic:
    """One line of what an example prints about an operation."""

    calls: int
    sent: int
    uncompressed: int


@dataclass(frozen=True)
class Printed:
    """What an example printed on rank 0; losses as they stand there, nine digits each."""

    losses: tuple[str, ...]
    weights: str
    traffic: dict[str, Traffic]

    def loss(self, step: int) -> float:
        return float(self.losses[step])


def _main(example: str, runs: Sequence[tuple[int, Sequence[str]]]) -> None:
    """One run after the other, each at a port of its own and with its own words on the command line."""
    import torch

    torch.set_num_threads(1)
    for port, words in runs:
        os.environ["MASTER_PORT"], sys.argv[1:] = str(port), words
        if os.environ["RANK"] == "0":
            print(BEGINS, flush=True)
        importlib.import_module(f"examples.{example}").main()


def _said(example: str, *runs: Sequence[str]) -> list[str]:
    """What an example printed in each of ``runs``, which are words on its command line."""
    program = partial(_main, example, [(free_port(), words) for words in runs])
    code, out, err = run_program(program, [[]] * 2, torchrun_environment(2), timeout=280)
    assert code == 0, err
    return out.split(BEGINS)[1:]


@cache
def _said_by_choice(example: str, *choices: str) -> dict[str, str]:
    return dict(zip(choices, _said(example, *(("--compress", choice) for choice in choices)), strict=True))


@cache
def printed(example: str, compress: str) -> Printed:
    package = EXAMPLES.get(example)
    if package is not None:
        pytest.importorskip(package, reason=f"examples.{example} needs {package}: pip install -e .[examples]")
    out = _said_by_choice(example, *((compress,) if example in ALONE else CHOICES))[compress]
    (losses,) = re.findall(r"^losses (.*)$", out, re.M)
    (weights,) = re.findall(r"^loss .*, weights ([0-9a-f]{16})$", out, re.M)
    lines = re.findall(r"^(\w+): (\d+) calls, (\d+) bytes sent, (\d+) in float32$", out, re.M)
    traffic = {op: Traffic(int(calls), int(sent), int(whole)) for op, calls, sent, whole in lines}
    return Printed(tuple(losses.split()), weights, traffic)


@ALL
def test_identity_gives_the_losses_and_weights_of_stock_bit_for_bit(example: str) -> None:
    stock, identity = printed(example, "stock"), printed(example, "identity")
    assert len(stock.losses) == tiny.STEPS
    assert identity.losses == stock.losses
    assert identity.weights == stock.weights
    assert not stock.traffic, "nothing is attached"
    gradients, parameters = identity.traffic["reduce_scatter"], identity.traffic["all_gather"]
    assert gradients.sent == gradients.uncompressed > 0
    if example in KEEPS_FROZEN:
        assert 0 < parameters.sent < 0.2 * parameters.uncompressed, "frozen parameters are sent once"
    else:
        assert parameters.sent == parameters.uncompressed > 0


@ALL
def test_compressed_it_trains_and_sends_what_the_methods_say(example: str) -> None:
    identity, compressed = printed(example, "identity"), printed(example, "topk")
    assert compressed.losses != identity.losses
    assert compressed.loss(-1) < 0.85 * compressed.loss(0)
    for op, least, most in (("reduce_scatter", 30, 100), ("all_gather", 1.8 if example in KEEPS_FROZEN else 2.5, 4)):
        whole, traffic = identity.traffic[op], compressed.traffic[op]
        assert (traffic.calls, traffic.uncompressed) == (whole.calls, whole.uncompressed), "the same collectives"
        assert least < whole.sent / traffic.sent < most, f"{op}: 1 percent with indices, and 1 byte of 4 with scales"


@pytest.mark.parametrize("example", ["trainers.accelerate_loop", "trainers.fabric_loop"])
@pytest.mark.parametrize("compress", ["stock", "topk"])
def test_other_peoples_loops_do_what_the_plain_one_does(example: str, compress: str) -> None:
    """The same model, data and optimizer: so the same numbers, whoever calls `fully_shard` and the optimizer."""
    assert printed(example, compress) == printed("fsdp2", compress)


@pytest.mark.parametrize("compress", ["stock", "topk"])
def test_a_run_that_was_stopped_ends_as_the_one_that_was_not(compress: str) -> None:
    whole, resumed = printed("fsdp2", compress), printed("save_and_resume", compress)
    assert (resumed.losses, resumed.weights) == (whole.losses, whole.weights)


@pytest.mark.parametrize("example", DATA_PARALLEL)
def test_between_replicas_gradients_are_compressed_and_identity_is_stock(example: str) -> None:
    stock, identity, compressed = (printed(example, compress) for compress in ("stock", "identity", "topk"))
    assert (identity.losses, identity.weights) == (stock.losses, stock.weights)
    whole, sent = identity.traffic["all_reduce"].sent, compressed.traffic["all_reduce"].sent
    assert whole > 4 * sent > 0
    assert compressed.loss(-1) < 0.85 * compressed.loss(0)


def test_replicas_that_synchronise_now_and_then_send_little_and_identity_is_stock() -> None:
    outs = _said_by_choice("optimizers.diloco", *CHOICES)
    pattern = r"^(?:losses|loss|outer parameters): ?(.*)$"
    stock, identity, sparse = (re.findall(pattern, out.replace("losses ", "losses: "), re.M) for out in outs.values())
    assert stock == identity != sparse
    assert len(stock) == 2
    first = float(stock[0].split()[0])
    for losses, outer in (identity, sparse):
        assert float(losses.split()[-1]) < 0.5 * first
        assert float(outer.removeprefix("loss ")) < 0.5 * first
    assert "bytes a step" not in outs["stock"], "torch's own all-reduce is counted by nobody"
    found = {}
    for compress in ("identity", "topk"):
        sent, bits, ddp = re.findall(
            r"^(\d+) bytes a step, ([\d.]+) bits a parameter; DDP: (\d+) ", outs[compress], re.M
        )[0]
        found[compress] = int(sent), float(bits), int(ddp)
    sent, bits, ddp = found["identity"]
    assert (5 * sent, bits) == (ddp, 12.8), "what DDP sends, every fifth step"
    assert 20 * found["topk"][0] < sent


def test_activations_are_compressed_and_identity_is_stock() -> None:
    stock, identity, compressed = (printed(TENSOR_PARALLEL, compress) for compress in ("stock", "identity", "topk"))
    assert (identity.losses, identity.weights) == (stock.losses, stock.weights)
    for op in ("activations", "activation_gradients"):
        whole, sent = identity.traffic[op], compressed.traffic[op]
        assert whole.sent == whole.uncompressed > 3.5 * sent.sent > 0
        assert whole.calls == sent.calls == 2 * tiny.STEPS, "one a block in each direction"
    assert compressed.loss(-1) < 0.85 * compressed.loss(0)


def test_lora_reduces_the_adapters_gradients_alone() -> None:
    plain, lora = printed("fsdp2", "identity").traffic, printed("trainers.lora", "identity").traffic
    assert lora["reduce_scatter"].uncompressed < 0.15 * plain["reduce_scatter"].uncompressed
    assert lora["reduce_scatter"].calls == plain["reduce_scatter"].calls


def test_the_byte_audit_shows_what_the_optimizer_still_sends() -> None:
    (out,) = _said("byte_audit", ("--compress", "topk"))
    claimed, seen = re.findall(r"the ledgers claim ([\d.]+) MB; comm_compress was seen to send ([\d.]+) MB", out)[0]
    (optimizers,) = re.findall(r"([\d.]+) MB \(.*%\) through torch.distributed.tensor", out)
    assert claimed == seen
    assert float(optimizers) > float(claimed) > 0
    assert "through torch.distributed.fsdp" not in out, "nothing is left to stock collectives"
    assert re.search(r"examples/byte_audit.py:\d+ muon.step\(\)$", out, re.M)


def test_a_pipelines_identity_is_stock_and_a_method_sends_less() -> None:
    said = _said_by_choice("parallel.pipeline_parallel", "stock", "identity", "tahquant tile_size=16")
    stock, identity, compressed = said.values()
    losses = [re.findall(r"^(?:losses|stage \d: weights) .*$", out, re.M) for out in (stock, identity, compressed)]
    assert losses[0] == losses[1] != losses[2]
    assert len(losses[0]) == 3
    assert "bytes sent" not in stock
    pattern = r"^(\w+): (\d+) calls, (\d+) bytes sent, (\d+) in float32$"
    whole, sent = (
        {op: tuple(map(int, numbers)) for op, *numbers in re.findall(pattern, out, re.M)}
        for out in (identity, compressed)
    )
    for op, ratio in (("activations", 32 / (0.8 * 4 + 0.2 * 3 + 40 / 16)), ("activation_gradients", 2)):
        calls, bytes_sent, in_float32 = whole[op]
        assert calls == 4 * tiny.STEPS, "one message a micro-batch"
        assert bytes_sent == in_float32 == 4 * tiny.STEPS * 16 * 16 * tiny.WIDTH
        assert in_float32 / sent[op][1] == pytest.approx(ratio, rel=0.01)
    first, last = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", compressed, re.M)[0]
    assert float(last) < 0.85 * float(first)


def test_a_method_of_ones_own_keeps_the_laws_and_trains() -> None:
    (out,) = _said("my_method", ())
    assert "holds feedback_loses_nothing" in out
    first, last = re.findall(r"^loss ([\d.]+) -> ([\d.]+),", out, re.M)[0]
    assert float(last) < 0.5 * float(first)
    sent, whole = re.findall(r"^reduce_scatter: \d+ calls, (\d+) bytes sent, (\d+) in float32$", out, re.M)[0]
    assert 3.9 < int(whole) / int(sent) <= 4, "a byte an element, and the scales"
