"""A rank with a quota gets no more of a processor, by whatever holds it, and nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.runs.quotas import Quotas, _writable, check_quotas

SPINNING = """
import time
end = time.perf_counter() + 1.0
while time.perf_counter() < end:
    pass
print(time.process_time())
"""


def spinning() -> subprocess.Popen[str]:
    """Prints the processor seconds that it got in one second of real time."""
    return subprocess.Popen([sys.executable, "-c", SPINNING], stdout=subprocess.PIPE, text=True, start_new_session=True)


def is_stopped(pid: int) -> bool:
    """Is it stopped, or will it be before it gets a processor again?"""
    status = Path(f"/proc/{pid}/status").read_text()
    (waiting,) = re.findall(r"ShdPnd:\s*(\w+)", status) or ["0"]
    return "(stopped)" in status or bool(int(waiting, 16) >> (signal.SIGSTOP - 1) & 1)


def test_a_quota_is_kept_by_signals(tmp_path: Path) -> None:
    stopped, looks = 0, 0
    with Quotas([1.0, 0.3], root=tmp_path) as quotas:  # where there are no control groups
        assert quotas.how == "signals"
        process = spinning()
        quotas.hold(1, process)
        while process.poll() is None:
            stopped += is_stopped(process.pid)
            looks += 1
            time.sleep(0.002)
        out, _ = process.communicate()
    assert float(out) < 0.5
    assert stopped > 0.4 * looks  # on a busy machine it might get no more without a quota, either


@pytest.mark.skipif(_writable(Path("/sys/fs/cgroup"))[0] is None, reason="no control group can be made here")
def test_a_quota_is_kept_by_a_control_group() -> None:
    with Quotas([1.0, 0.3]) as quotas:
        assert quotas.how.startswith("cgroup")
        process = spinning()
        quotas.hold(1, process)
        group = quotas._group(1)
        assert (group / "cgroup.procs").read_text().split() == [str(process.pid)]
        if quotas.how == "cgroup v1":  # as the kernel has it
            limit = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        else:
            limit = (group / "cpu.max").read_text().split()
        assert limit == ["3000", "10000"]
        out, _ = process.communicate(timeout=60)
    assert float(out) < 0.42
    assert not group.exists()


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
