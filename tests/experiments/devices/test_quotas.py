"""A rank with a quota gets no more of a processor, by whatever holds it, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.devices.quotas import Quotas, _writable, check_quotas

SPINNING = """
import time
end = time.perf_counter() + 1.0
while time.perf_counter() < end:
    pass
print(time.process_time())
"""


def seconds_of_a_spinning_process(quotas: Quotas) -> float:
    """Processor seconds that it got in one second of real time."""
    with quotas:
        command = [sys.executable, "-c", SPINNING]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        quotas.hold(1, process)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return float(out)


def test_a_quota_is_kept_by_signals(tmp_path: Path) -> None:
    quotas = Quotas([1.0, 0.3], root=tmp_path)  # where there are no control groups
    assert quotas.how == "signals"
    assert seconds_of_a_spinning_process(quotas) < 0.5


@pytest.mark.skipif(_writable(Path("/sys/fs/cgroup"))[0] is None, reason="no control group can be made here")
def test_a_quota_is_kept_by_a_control_group() -> None:
    quotas = Quotas([1.0, 0.3])
    assert quotas.how.startswith("cgroup")
    assert seconds_of_a_spinning_process(quotas) < 0.42
    assert quotas._parent is not None
    assert not list(quotas._parent.glob(f"{quotas._name}*"))


def test_both_versions_of_control_groups_are_known(tmp_path: Path) -> None:
    second, first, neither = (tmp_path / name for name in ("v2", "v1", "none"))
    second.mkdir()
    (second / "cgroup.subtree_control").write_text("cpu memory")
    (first / "cpu").mkdir(parents=True)
    (first / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    neither.mkdir()
    assert _writable(second) == (second, "cgroup v2")
    assert _writable(first) == (first / "cpu", "cgroup v1")
    assert _writable(neither) == (None, "signals")
    quotas = Quotas([0.5], root=second)
    quotas._make(0)
    assert (quotas._group(0) / "cpu.max").read_text() == "5000 10000"


@pytest.mark.parametrize(("quotas", "message"), [([1.0], "1 given for 2"), ([1.0, 0.0], "got 0, wants processors")])
def test_what_is_no_quota_is_refused(quotas: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_quotas(quotas, 2)
