"""A disk that is really full (a small tmpfs of its own): what a run loses by it, and what it says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab.checkpoint import Content
from fsdp_lab.files import disk
from tests.distributed import preload, run_ranks
from tests.fsdp_lab.checkpoint.test_checkpoints import checkpoints, content, listing
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")
preload("fsdp_lab.checkpoint")
NO_SPACE = "No space left on device"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that gives a disk of so many bytes (``4m``)."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    with ExitStack() as undo:

        def mount(size: str) -> Path:
            folder = tmp_path / f"disk-{size}"
            folder.mkdir()
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"cannot mount: {done.stderr}")
            undo.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            return folder

        yield mount


def fill(folder: Path, leave: int) -> Path:
    """Take all of a disk but ``leave`` bytes; the file that takes it."""
    stick = folder / "ballast"
    free = os.statvfs(folder)
    with stick.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, free.f_bavail * free.f_bsize - leave))
    return stick


def large(value: float) -> Content:
    small = content(value)
    more = torch.full((200_000,), float(value))  # 0.8 MB, of each rank's own and in the shared file
    return Content(small.tensors | {"more": more}, small.own | {"more": more})


def save_on(folder: Path, left: float) -> dict[str, Any]:
    """Three saves, the second with room for a part of it only."""
    said: list[str] = []
    saves = checkpoints(folder / "checkpoints", said=said)
    rank = torch.distributed.get_rank()
    saves.save(1, large(1))
    saves.wait()
    if rank == 0:
        size = sum(path.stat().st_size for path in (folder / "checkpoints/step-00000001").rglob("*"))
        ballast = fill(folder, int(left * size))
    torch.distributed.barrier()
    saves.save(2, large(2))
    saves.wait()
    after = listing(folder / "checkpoints")
    torch.distributed.barrier()
    if rank == 0:
        ballast.unlink()
    torch.distributed.barrier()
    saves.save(3, large(3))
    saves.wait()
    return {"said": said, "after": after, "saved": saves.saved, "failed": saves.failed, "newest": saves.newest}


@pytest.mark.parametrize("left", [0.0, 0.2, 0.6, 0.97])
def test_a_full_disk_costs_one_checkpoint_and_no_rank(mounted: Callable[[str], Path], left: float) -> None:
    folder = mounted("16m")
    for found in run_ranks(2, save_on, folder, left):
        assert found["after"] == ["latest", "step-00000001"], "half a checkpoint gives its room back"
        assert (found["saved"], found["failed"], found["newest"]) == (2, 1, 3)
        (line,) = found["said"]
        assert NO_SPACE in line
        assert "unexpected pos" not in line


@dataclass(frozen=True)
class FillAfter:
    """Nothing more can be written from the end of a step on."""

    step: int
    folder: Path

    def __call__(self, run: Any, step: int) -> None:
        if step == self.step and run.ranks.is_first:
            fill(self.folder, leave=0)


@pytest.fixture
def trained(mounted: Callable[[str], Path], tmp_path: Path) -> tuple[Lab, dict[str, str | None]]:
    """Runs whose disk is full from step 2 on, or too small for a model; what each ended with."""
    lab = Lab(tmp_path)
    common: dict[str, Any] = {"eval_steps": 4, "max_steps": 8, "tensorboard": "true", "log_interval": 1}
    common |= {"save_steps": 3, "vocab_size": None}  # all ids: a model of 1.6 MB
    common |= {"timeout_s": 20}  # rank 1 waits so long for rank 0, which could not save: these processes outlive a run
    full, small = mounted("8m"), mounted("1m")
    runs = {
        "full": Training(
            lab.flags(run_name="full", output_dir=full, save_model="false", **common), event=FillAfter(2, full)
        ),
        "small": Training(lab.flags(run_name="small", output_dir=small, **common)),
        "fault": Training(lab.flags(run_name="fault", **common), fault="full_disk:at=model"),
    }
    return lab, dict(zip(runs, train_all(list(runs.values()), tiny=True), strict=True))


def test_training_goes_on_without_room(trained: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = trained
    assert ended["full"] is None
    rows = {row["run_name"]: row for row in lab.rows()}
    assert (rows["full"]["status"], rows["full"]["steps"]) == ("ok", 8)
    assert (rows["full"]["saves"], rows["full"]["failed_saves"]) == (0, 2)
    for name in ("small", "fault"):
        assert str(ended[name]).startswith("OSError: [Errno 28] No space left on device: ")
        assert "final_model" in str(ended[name])
        assert rows[name]["status"] == "ok", "what was measured stands"
    for output in (lab.folder / "disk-1m", lab.folder / "out"):
        (run,) = (output / "runs").iterdir()
        assert "final_model" not in listing(run), "half a model looks like a model"


def test_what_rust_says_of_a_disk_is_a_disks_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '/a/b'") as found, disk.refusals(Path("/a/b")):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    assert found.value.errno == 28
    with pytest.raises(RuntimeError, match="else"), disk.refusals(tmp_path):
        raise RuntimeError("something else")
    with pytest.raises(OSError, match="No space left on device"), disk.writing(Path("/dev/full")) as file:
        torch.save({"a": torch.ones(100_000)}, file)
