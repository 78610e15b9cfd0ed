"""The most floating-point operations a second that a rank's device can do: what MFU is a share of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fsdp_lab.measure.registers import peak_in_registers

_GPUS = (  # part of the device's name, dense bf16 FLOP/s without sparsity; the first that fits counts
    # https://www.nvidia.com/en-us/data-center/h100/ (half of the figures with sparsity)
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H800", 989e12),  # an H100 with slower links
    # https://www.nvidia.com/en-us/data-center/h200/
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("GH200", 989e12),
    # https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703
    ("B200", 2250e12),
    # https://www.nvidia.com/en-us/data-center/a100/
    ("A100", 312e12),
    ("A800", 312e12),  # an A100 with slower links
    # https://www.nvidia.com/en-us/data-center/products/a10-gpu/, a30-gpu/, l4/, l40/, l40s/
    ("A10G", 70e12),  # Amazon's A10, https://aws.amazon.com/ec2/instance-types/g5/
    ("A10", 125e12),
    ("A30", 165e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
    ("MI300X", 1307e12),
)
_SIZE, _TIMES = 512, 8


class Peak(NamedTuple):
    """What a device can do. ``flops``: a second; None where it is not known. ``source``: "published", "registers"
    (multiplications without memory) or "measured" (the best matrix product); None with ``flops``."""

    flops: float | None
    source: str | None


def peak_flops(device: torch.device, dtype: torch.dtype) -> Peak:
    """FLOP/s of one rank's ``device``: a GPU's published bf16 rate (None for one we do not know), a CPU's measured one.

    A CPU's is what it multiplies and adds in registers, in ``dtype``, on the threads that the rank has, so that no
    library's product is above it; where its instructions are not among those that we can measure so, it is the best of
    a few products of square matrices. Ranks of one machine should measure at the same time: they share it in training,
    too. Takes some 100 ms.
    """
    if device.type == "cuda":
        published = published_flops(torch.cuda.get_device_name(device))
        return Peak(published, None if published is None else "published")
    in_registers = peak_in_registers("fp32" if dtype == torch.float32 else "bf16", torch.get_num_threads())
    if in_registers is None or dtype == torch.float16:
        return Peak(best_product(dtype), "measured")
    return Peak(in_registers, "registers")


def published_flops(gpu: str) -> float | None:
    """The dense bf16 rate of a GPU by the name that CUDA gives it; None for one that is not in the table."""
    spaced = gpu.replace("-", " ")
    return next((flops for part, flops in _GPUS if _names(part, spaced)), None)


def row(peaks: Sequence[Peak]) -> dict[str, Any]:
    """The fields of a results row, of every rank's peak: their mean, or null where one is not known."""
    known = [peak.flops for peak in peaks if peak.flops is not None]
    if len(known) < len(peaks):
        return {"peak_flops": None, "peak_flops_source": None}
    sources = {peak.source for peak in peaks}
    return {
        "peak_flops": sum(known) / len(known),
        "peak_flops_source": sources.pop() if len(sources) == 1 else "measured",
    }


def best_product(dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of a few products of 512 x 512 matrices in ``dtype`` on all of torch's CPU threads."""
    a, b = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    seconds = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * _SIZE**3 / min(seconds)


def _names(part: str, gpu: str) -> bool:
    """Are all words of ``part`` words of ``gpu``? (An L4 is not an L40.)"""
    return set(part.split()) <= set(gpu.split())
