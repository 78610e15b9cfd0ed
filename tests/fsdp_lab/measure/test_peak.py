"""What a device can do, and who is asked."""

from __future__ import annotations

import pytest
import torch

from fsdp_lab.measure.peak import Peak, peak_flops, published_flops, row


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181),
        ("NVIDIA L4", 121),
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("AMD Instinct MI300X", 1307),
        ("NVIDIA GeForce GTX 1080", None),
        ("NVIDIA A1000 Laptop GPU", None),
    ],
)
def test_gpus_by_the_names_that_cuda_gives_them(name: str, tera: float | None) -> None:
    assert published_flops(name) == (None if tera is None else tera * 1e12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cpu_is_measured(dtype: torch.dtype) -> None:
    flops, source = peak_flops(torch.device("cpu"), dtype)
    assert source in ("registers", "measured")
    assert flops is not None
    assert 1e8 < flops < 1e15


def test_a_mean_over_ranks_and_nothing_where_one_is_unknown() -> None:
    registers, published, unknown = Peak(1e9, "registers"), Peak(989e12, "published"), Peak(None, None)
    assert row([registers, Peak(3e9, "registers")]) == {"peak_flops": 2e9, "peak_flops_source": "registers"}
    assert row([registers, Peak(3e9, "measured")]) == {"peak_flops": 2e9, "peak_flops_source": "measured"}
    assert row([published]) == {"peak_flops": 989e12, "peak_flops_source": "published"}
    assert row([published, unknown]) == {"peak_flops": None, "peak_flops_source": None}
