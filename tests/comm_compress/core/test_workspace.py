"""Memory that is used again, and never by two at once."""

from __future__ import annotations

import torch

from comm_compress.core.workspace import Workspace, WorkspacePool
from comm_compress.kernels.tools.scratch import apart, fresh

CPU = torch.device("cpu")


def test_a_name_means_the_same_memory_that_grows_and_stays() -> None:
    workspace = Workspace()
    first = workspace.take("rows", (2, 3), torch.float32, CPU)
    assert workspace.num_bytes == 24
    assert workspace.take("rows", (6,), torch.float32, CPU).data_ptr() == first.data_ptr()
    smaller = workspace.take("rows", (3,), torch.int16, CPU)
    assert (smaller.shape, smaller.dtype, workspace.num_bytes) == ((3,), torch.int16, 24)
    assert smaller.data_ptr() == first.data_ptr()
    workspace.take("rows", (7,), torch.float32, CPU)
    assert workspace.num_bytes == 28
    other = workspace.take("others", (2,), torch.float64, CPU)
    assert workspace.num_bytes == 28 + 16
    assert other.data_ptr() != workspace.take("rows", (1,), torch.float64, CPU).data_ptr()


def test_what_is_asked_for_again_is_the_same_view() -> None:
    """Unless it was taken in inference mode: such a view cannot be written to outside of it."""
    workspace = Workspace()
    small = workspace.take("rows", (2, 3), torch.float32, CPU)
    assert workspace.take("rows", (2, 3), torch.float32, CPU) is small
    large = workspace.take("rows", (9,), torch.float32, CPU)
    again = workspace.take("rows", (2, 3), torch.float32, CPU)
    assert again.data_ptr() == large.data_ptr() != small.data_ptr()
    with torch.inference_mode():
        assert workspace.take("rows", (4,), torch.float32, CPU).data_ptr() == large.data_ptr()
    workspace.take("rows", (4,), torch.float32, CPU).zero_()
    assert workspace.take("rows", (2, 3), torch.float32, CPU).data_ptr() == large.data_ptr()


def test_names_apart_and_fresh_memory_are_nobody_elses() -> None:
    workspace = Workspace()
    mine = apart(workspace.take, "mine")("rows", (2,), torch.float32, CPU)
    assert mine.data_ptr() != workspace.take("rows", (2,), torch.float32, CPU).data_ptr()
    assert mine.data_ptr() == apart(workspace.take, "mine")("rows", (2,), torch.float32, CPU).data_ptr()
    a, b = (fresh("rows", (2,), torch.int32, CPU) for _ in range(2))
    assert a.data_ptr() != b.data_ptr()
    assert a.dtype == torch.int32


def test_a_pool_has_as_many_as_run_at_once() -> None:
    pool = WorkspacePool()
    first = pool.acquire(CPU)
    second = pool.acquire(CPU)
    assert first is not second
    first.take("a", (3,), torch.uint8, CPU)
    second.take("a", (4,), torch.uint8, CPU)
    assert pool.num_bytes == 7
    pool.release(second)
    assert pool.acquire(CPU) is second
    pool.release(first)
    pool.release(second)
    assert {pool.acquire(CPU), pool.acquire(CPU)} == {first, second}
    assert pool.num_bytes == 7


def test_small_collectives_do_not_take_the_memory_of_large_ones() -> None:
    pool = WorkspacePool()
    large = pool.acquire(CPU, 1000)
    pool.release(large)
    small = pool.acquire(CPU, 100)
    assert small is not large
    other = pool.acquire(CPU, 110)
    pool.release(small)
    pool.release(other)
    assert pool.acquire(CPU, 900) is large
    assert pool.acquire(CPU, 120) is other
    assert pool.acquire(CPU, 390) is small
    assert small.size == 390
    assert pool.acquire(CPU) not in (large, small, other)


def test_a_pool_of_one_gives_it_again_and_again() -> None:
    pool = WorkspacePool()
    first = pool.acquire(CPU)
    pool.release(first)
    assert pool.acquire(CPU) is first
