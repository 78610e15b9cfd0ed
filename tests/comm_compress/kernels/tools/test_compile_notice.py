"""Who waits for a kernel to be compiled is told, and only then."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comm_compress.kernels.coding import frequencies
from comm_compress.kernels.quantisers.blocks import cpu as blocks_cpu
from comm_compress.kernels.quantisers.matrix_scales import loops as matrix_loops
from comm_compress.kernels.tools import compiled as numba_tools
from comm_compress.kernels.tools.compile_notice import name_of
from comm_compress.kernels.tools.compiled import compiled


def kernel() -> Any:
    """A kernel of a program that has just started: in memory there is nothing yet."""

    @compiled
    def _doubled(x: Any) -> Any:
        return 2 * x

    return _doubled


def test_compiling_is_said_once_for_all_programs_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba_tools, "CACHE_FOLDER", str(tmp_path))
    with caplog.at_level(logging.INFO, "comm_compress"):
        first = kernel()
        assert first(np.float32(2)) == 4
        before, after = caplog.records
        assert before.getMessage() == "compiling kernels (once for this version): test_compile_notice.doubled"
        assert after.getMessage().startswith("compiled test_compile_notice.doubled in ")
        assert before.seconds is None  # type: ignore[attr-defined]
        assert after.seconds > 0  # type: ignore[attr-defined]
        caplog.clear()
        assert first(np.float32(3)) == 6
        assert kernel()(np.float32(4)) == 8, "found on disk"
        assert not caplog.records
        assert kernel()(np.float64(4)) == 8, "of other types"
        assert len(caplog.records) == 2


def test_a_kernel_is_called_by_its_topic() -> None:
    """Every topic has a cpu.py."""
    assert name_of(blocks_cpu.encode) == "blocks.encode"
    assert name_of(matrix_loops.encode.py_func) == "matrix_scales.encode"  # type: ignore[attr-defined]
    assert name_of(frequencies.starts_of) == "frequencies.starts_of"


def test_the_library_itself_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numba_tools, "CACHE_FOLDER", str(tmp_path))
    kernel()(np.float32(2))
    assert capfd.readouterr() == ("", "")
