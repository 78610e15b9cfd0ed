"""What a device can do, and who is asked."""

from __future__ import annotations

import pytest
import torch

from fsdp_lab.measure.peak import peak_flops, published_flops, row


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


def test_a_cpu_is_measured() -> None:
    measured = peak_flops(torch.device("cpu"), torch.float32)
    assert measured is not None
    assert 1e8 < measured < 1e15


def test_a_mean_over_ranks_and_nothing_where_one_is_unknown() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert row([1e9, 3e9], cpu) == {"peak_flops": 2e9, "peak_flops_source": "measured"}
    assert row([989e12], cuda) == {"peak_flops": 989e12, "peak_flops_source": "published"}
    assert row([989e12, None], cuda) == {"peak_flops": None, "peak_flops_source": None}
