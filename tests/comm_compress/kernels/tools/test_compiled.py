"""Where compiled kernels are kept when the checkout, and the home as well, cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import numpy as np
from comm_compress.kernels.tools import compiled
print(compiled.CACHE_FOLDER, compiled.peak_bits(np.arange(5, dtype=np.int32)))
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 99; exec "$@"'


def with_a_read_only_checkout(temporary: str) -> subprocess.CompletedProcess[str]:
    """The program in a mount namespace of its own, where nothing of this checkout and no home can be written."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount the checkout read-only")
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, str(ROOT), sys.executable, "-c", PROGRAM]
    environment = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "TMPDIR": temporary}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"cannot mount: {done.stderr}")
    return done


def test_a_read_only_checkout_and_home_keep_kernels_among_temporary_files(tmp_path: Path) -> None:
    done = with_a_read_only_checkout(str(tmp_path))
    folder, peak = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert Path(folder).parent == tmp_path / f"comm_compress-{os.getuid()}"
    assert int(peak) == 4
    assert list(Path(folder).rglob("*.nbi")), "they are kept"


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    shared = tmp_path / f"comm_compress-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    done = with_a_read_only_checkout(str(tmp_path))
    assert done.stdout.split() == ["None", "4"], done.stderr
    assert "every start compiles them anew" in done.stderr
    assert not list(shared.iterdir())
