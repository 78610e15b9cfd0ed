"""The devices file: what is written is read again, and what is wrong in one written by hand is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdp_lab.parallel.planning.devices import Device, Devices, LinearTime, LinkSpeed

BY_HAND: dict[str, Any] = {
    "devices": [{"gflops": 900, "memory_mb": 16000}, {"gflops": 300}],
    "link": {"mbit_per_s": 940, "latency_ms": 0.2},
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    parts = {"tp.mlp": LinearTime(1e-3, 2e-3)}
    link = LinkSpeed(190.0, 0.2, 125.0, {"all_reduce none": LinearTime(1e-4, 1e-9)})
    measured = {"model": "gpt2-mini", "sequences": 4, "length": 128}
    written = Devices([Device("a", 40.0, 1e3, 300.0, 2.0, parts), Device("b", 13.0)], link, measured)
    path = tmp_path / "devices.json"
    written.write(path)
    assert Devices.read(path) == written
    assert written.are_measured_for("gpt2-mini", 4, 128)
    assert not written.are_measured_for("gpt2-mini", 8, 128)


def test_the_file_may_be_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(BY_HAND))
    devices = Devices.read(path)
    assert [device.gflops for device in devices.devices] == [900, 300]
    assert devices.link.bytes_per_s == 940e6 / 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": [{"gflops": 1}]}, "list of 2 or more"),
        ({"devices": [{"gflops": 1}, {"speed": 1}]}, r"devices\[1\]: 'speed' is not known"),
        ({"devices": [{"gflops": 0}, {"gflops": 1}]}, r"devices\[0\]: gflops is 0, wants a number above 0"),
        ({"devices": [{"gflops": True}, {"gflops": 1}]}, "gflops is True"),
        ({"devices": [{"gflops": 1, "parts": {"tp.mlp": [1]}}, {"gflops": 1}]}, "wants two numbers"),
        ({"devices": [{"gflops": 1, "parts": {"tp.mlp": [1, -1]}}, {"gflops": 1}]}, "slope is -1"),
        ({"link": {}}, "link: mbit_per_s is None"),
        ({"link": {"mbit_per_s": float("nan")}}, "mbit_per_s is nan"),
        ({"link": []}, "link: wants an object"),
        ({"extra": 1}, "'extra' is not known"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    Devices.of(BY_HAND)
    with pytest.raises(ValueError, match=message):
        Devices.of({**BY_HAND, **change})


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"devices: .*devices.json cannot be read as JSON"):
        Devices.read(path)
