"""Other people's code for what our methods do, on the same data: torch, numpy, and libraries that may be there.

A peer may do less than the method beside it (torch.topk packs no positions, numpy.packbits knows no scales), never
more. It is called the way its users call it, so it allocates its results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from comm_compress.methods.projections.powersgd import PowerSGDConfig
from experiments.bench.traffic.codecs.timing import DECODE, ENCODE, ROUNDS, ROUNDS_FEEDBACK, WORLDS, Run, Sample, sum_of
from experiments.bench.traffic.codecs.unit import Unit, timed

Calls = dict[str, Callable[[], Any]]  # by operation
INT8_BLOCK, INT4_BLOCK, SIGN_GROUP, CHUNK = 256, 128, 1024, 4096  # our defaults
SUM = sum_of(WORLDS[0])


def peers(method: str, config: dict[str, Any], unit: Unit) -> tuple[list[Run], set[str]]:
    """The peers of a method with these settings, and the names of those that are not installed, or do not work here."""
    known: list[Run] = []
    missing: set[str] = set()
    for name, build in _peers_of(method, config, unit.device.type):
        try:
            known += [_run(name, operation, call, unit) for operation, call in build(unit).items()]
        except ImportError:
            missing.add(name)
        except Exception as error:  # another version of it, or none for this device: ours are measured all the same
            missing.add(f"{name} ({type(error).__name__}: {' '.join(str(error).split())[:100]})")
    return known, missing


def _run(name: str, operation: str, call: Callable[[], Any], unit: Unit) -> Run:
    def once() -> list[Sample]:
        copy_seconds = unit.copy_seconds()
        _, seconds = timed(unit.device, call)
        return [Sample(operation, seconds, copy_seconds, unit.nbytes, None)]

    return Run(name, once)


def _peers_of(method: str, config: dict[str, Any], device: str) -> list[tuple[str, Callable[[Unit], Calls]]]:
    """The peers of a method with these settings; numpy's only where its arrays can lie."""
    numpy = device == "cpu"
    if not config:
        known = {
            "bf16": [("torch .to", lambda unit: _cast(unit, torch.bfloat16))],
            "fp16": [("torch .to", lambda unit: _cast(unit, torch.float16))],
            "int8": [
                ("torch.quantize_per_tensor", _quantize_per_tensor),
                ("bitsandbytes 8-bit", _bitsandbytes_8bit),
                ("torchao int8", _torchao),
            ],
            "int4": [("bitsandbytes nf4", _bitsandbytes_4bit)],
            "topk": [("torch.topk", lambda unit: _topk(unit, 0.01, None)), ("torch index_add_", _index_add)],
            "powersgd": [("torch DDP PowerSGD", _power_sgd)],
        }.get(method, [])
        on_numpy: dict[str, Callable[[Unit], Calls]] = {
            "int8": _numpy_int8,
            "topk": _numpy_partition,
            "signsgd": _numpy_scaled_signs,
            "onebit": _numpy_signs,
        }
        return [*known, *([("numpy", on_numpy[method])] if numpy and method in on_numpy else [])]
    if (method, config) == ("int8", {"scale": "global"}):
        return [("torch.quantize_per_tensor", lambda unit: _without(DECODE, _quantize_per_tensor(unit)))]
    if method == "topk" and config.get("selection") == "chunked":
        return [("torch.topk", lambda unit: _topk(unit, config["ratio"], CHUNK))]
    if (method, config) == ("signsgd", {"mode": "majority"}) and numpy:
        return [("numpy", _numpy_signs)]
    return []


def _cast(unit: Unit, dtype: torch.dtype) -> Calls:
    rows = unit.rows(WORLDS[0])
    received = rows.to(dtype)
    return {
        ENCODE: lambda: rows.to(dtype),
        SUM: lambda: torch.sum(received, 0, dtype=torch.float32),
        DECODE: lambda: received.float(),
    }


def _quantize_per_tensor(unit: Unit) -> Calls:
    """torch's own 8-bit quantiser, with one scale for the unit. It is deprecated."""
    rows = unit.rows(WORLDS[0])

    def quantize() -> torch.Tensor:
        low, high = torch.aminmax(rows)
        peak = max(-float(low), float(high))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.quantize_per_tensor(rows, peak / 127, 0, torch.qint8)

    received = quantize()
    return {ENCODE: quantize, SUM: lambda: received.dequantize().sum(0), DECODE: received.dequantize}


def _without(operation: str, calls: Calls) -> Calls:
    return {name: call for name, call in calls.items() if name != operation}


def _bitsandbytes_8bit(unit: Unit) -> Calls:
    import bitsandbytes.functional as F

    rows = unit.rows(WORLDS[0])
    codes, state = F.quantize_blockwise(rows, blocksize=INT8_BLOCK)
    return {
        ENCODE: lambda: F.quantize_blockwise(rows, blocksize=INT8_BLOCK),
        SUM: lambda: F.dequantize_blockwise(codes, state).sum(0),
        DECODE: lambda: F.dequantize_blockwise(codes, state),
    }


def _bitsandbytes_4bit(unit: Unit) -> Calls:
    import bitsandbytes.functional as F

    rows = unit.rows(WORLDS[0])
    codes, state = F.quantize_4bit(rows, blocksize=INT4_BLOCK, quant_type="nf4")
    return {
        ENCODE: lambda: F.quantize_4bit(rows, blocksize=INT4_BLOCK, quant_type="nf4"),
        SUM: lambda: F.dequantize_4bit(codes, state).view_as(rows).sum(0),
        DECODE: lambda: F.dequantize_4bit(codes, state),
    }


def _torchao(unit: Unit) -> Calls:
    from torchao.quantization import quant_primitives as q

    rows, block = unit.rows(WORLDS[0]), (1, INT8_BLOCK)

    def quantize() -> tuple[Any, Any, Any]:
        scale, zero = q.choose_qparams_affine(rows, q.MappingType.SYMMETRIC, block, torch.int8)
        return q.quantize_affine(rows, block, scale, zero, torch.int8), scale, zero

    codes, scale, zero = quantize()

    def dequantize() -> Any:
        return q.dequantize_affine(codes, block, scale, zero, torch.int8, output_dtype=torch.float32)

    return {ENCODE: quantize, SUM: lambda: dequantize().sum(0), DECODE: dequantize}


def _topk(unit: Unit, ratio: float, chunk: int | None) -> Calls:
    """torch.topk: values and positions, which are not packed."""
    rows = unit.rows(WORLDS[0])
    parts = rows if chunk is None else rows.view(-1, chunk)
    k = round(ratio * parts.shape[1])

    def select() -> tuple[torch.Tensor, torch.Tensor]:
        places = parts.abs().topk(k, sorted=False).indices
        return parts.gather(1, places), places

    return {ENCODE: select}


def _index_add(unit: Unit) -> Calls:
    """The sum of what torch.topk gave, positions unpacked."""
    rows = unit.rows(WORLDS[0])
    values, places = _topk(unit, 0.01, None)[ENCODE]()

    def add() -> torch.Tensor:
        total = torch.zeros(rows.shape[1], device=rows.device)
        for value, place in zip(values, places, strict=True):
            total.index_add_(0, place, value)
        return total

    return {SUM: add}


def _power_sgd(unit: Unit) -> Calls:
    """The products of torch's DDP hook on the same matrix and rank.

    There is no feedback, and rank 0's rows alone are decoded, as in a reduce-scatter."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    matrix, world = unit.matrix.unsqueeze(0), WORLDS[0]
    _, a, b = matrix.shape
    rank = min(PowerSGDConfig().rank, a, b)
    left, right = matrix.new_empty(1, a, rank), torch.rand(1, b, rank).to(matrix)
    own, target, error = matrix.new_zeros(1, a // world, b), torch.zeros_like(matrix), torch.zeros_like(matrix)

    def project(given: torch.Tensor) -> None:
        _orthogonalize(right)
        torch.bmm(given, right, out=left)
        _orthogonalize(left)
        torch.bmm(given.transpose(1, 2), left, out=right)

    def all_rounds() -> None:
        project(matrix)
        torch.bmm(left[:, : a // world], right.transpose(1, 2), out=own)

    def with_feedback() -> None:
        torch.add(matrix, error, out=target)
        project(target)
        torch.bmm(left, right.transpose(1, 2), out=error)
        torch.sub(target, error, out=error)

    return {ROUNDS: all_rounds, ROUNDS_FEEDBACK: with_feedback}


def _numpy_int8(unit: Unit) -> Calls:
    rows = unit.rows(WORLDS[0]).numpy()

    def quantize() -> tuple[Any, Any]:
        blocks = rows.reshape(-1, INT8_BLOCK)
        scales = np.abs(blocks).max(1, keepdims=True) / 127
        return np.rint(blocks * (1 / scales)).astype(np.int8), scales

    codes, scales = quantize()
    return {
        ENCODE: quantize,
        SUM: lambda: (codes * scales).reshape(rows.shape).sum(0),
        DECODE: lambda: (codes * scales).reshape(rows.shape),
    }


def _numpy_partition(unit: Unit) -> Calls:
    rows = unit.rows(WORLDS[0]).numpy()
    k = round(0.01 * rows.shape[1])

    def select() -> tuple[Any, Any]:
        places = np.argpartition(np.abs(rows), -k, axis=1)[:, -k:]
        return np.take_along_axis(rows, places, 1), places

    return {ENCODE: select}


def _numpy_signs(unit: Unit) -> Calls:
    """numpy's signs, without marks, means or a vote's zeros."""
    rows = unit.rows(WORLDS[0]).numpy()
    packed = np.packbits(rows >= 0, axis=1)
    return {
        ENCODE: lambda: np.packbits(rows >= 0, axis=1),
        SUM: lambda: np.sign(np.unpackbits(packed, axis=1).sum(0, dtype=np.int8) * 2 - len(rows)).astype(np.float32),
    }


def _numpy_scaled_signs(unit: Unit) -> Calls:
    rows = unit.rows(WORLDS[0]).numpy()

    def encode() -> tuple[Any, Any]:
        return np.packbits(rows >= 0, axis=1), np.abs(rows).reshape(-1, SIGN_GROUP).mean(1, keepdims=True)

    packed, means = encode()

    def add() -> Any:
        signs = np.unpackbits(packed, axis=1).reshape(-1, SIGN_GROUP).astype(np.float32)
        return ((signs * 2 - 1) * means).reshape(rows.shape).sum(0)

    return {ENCODE: encode, SUM: add}
