"""Checkpoints alone: what is on the disk, what is refused, and what a failing disk leaves. Two real ranks."""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from fsdp_lab.checkpoint import CheckpointError, Checkpoints, Content
from fsdp_lab.checkpoint.files import folder as on_disk
from fsdp_lab.checkpoint.files.folder import Manifest
from fsdp_lab.checkpoint.files.safe_load import load_own, read_index
from fsdp_lab.ranks.distributed import Ranks
from tests.distributed import preload, run_ranks

preload("fsdp_lab.checkpoint")
WHOLE = torch.arange(21, dtype=torch.float32).view(7, 3)  # 7 rows: no number of ranks but 1 and 7 shares them evenly


def checkpoints(folder: Path, keep: int = 2, said: list[str] | None = None) -> Checkpoints:
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    mesh = init_device_mesh("cpu", (world,))
    ranks = Ranks(rank, world, rank, torch.device("cpu"), "gloo", mesh)
    return Checkpoints(folder, ranks, keep, {"seed": 1}, (said if said is not None else []).append)


def content(value: float = 0.0) -> Content:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    rank = torch.distributed.get_rank()
    tensors = {"w": distribute_tensor(WHOLE + value, mesh, [Shard(0)]), "step": torch.tensor(float(value))}
    return Content(tensors, {"rank": rank, "compressors": [{"residual": torch.full((3,), float(value + rank))}]})


def loaded(saves: Checkpoints) -> tuple[int, float, list[tuple[int, list[float]]]]:
    """Step and value of what is loaded, and of every process's own that was read its rank and its residual."""
    found = saves.reader.latest()
    assert found is not None
    target = content(-1.0)
    saves.reader.load_tensors(found, target.tensors)
    w = target.tensors["w"]
    assert isinstance(w, DTensor)
    value = float(target.tensors["step"])
    assert torch.equal(w.full_tensor(), WHOLE + value)
    own = [(own["rank"], own["compressors"][0]["residual"].tolist()) for own in saves.reader.load_own(found)]
    return found.manifest.step, value, own


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_four(folder: Path) -> dict[str, Any]:
    saves = checkpoints(folder)
    for step in (1, 2, 3, 4):
        saves.save(step, state := content(step))
        with torch.no_grad():
            for tensor in (*state.tensors.values(), state.own["compressors"][0]["residual"]):
                tensor.mul_(7)  # training goes on while it is written
    saves.wait()
    step, value, own = loaded(saves)
    return {"step": step, "value": value, "own": own, "saved": saves.saved, "failed": saves.failed}


def test_what_is_saved_comes_back_and_the_newest_two_stay(tmp_path: Path) -> None:
    for rank, said in enumerate(run_ranks(2, save_four, tmp_path)):
        assert (said["step"], said["value"], said["saved"], said["failed"]) == (4, 4.0, 4, 0)
        assert said["own"] == [(rank, [4.0 + rank] * 3)]
    assert listing(tmp_path) == ["latest", "step-00000003", "step-00000004"]
    assert os.readlink(tmp_path / "latest") == "step-00000004"
    # on other numbers of ranks: the tensors move, and everyone gets to see what each rank had of its own
    for world in (1, 3):
        for step, value, own in run_ranks(world, load, tmp_path):
            assert (step, value) == (4, 4.0)
            assert [rank for rank, _ in own] == [0, 1]


def load(folder: Path) -> Any:
    return loaded(checkpoints(folder))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_and_load(folder: Path) -> list[tuple[str, int, list[str]]]:
    """Damage each file of the newest checkpoint in turn: what was damaged, the step loaded, and what was said."""
    found = []
    rank = torch.distributed.get_rank()
    newest = folder / "step-00000002"
    for step in (1, 2):
        saves = checkpoints(folder)
        saves.save(step, content(step))
        saves.wait()
    names = [entry.name for entry in Manifest.read(newest).files] + ["manifest.json"]
    damages: list[Callable[[Path], None]] = [flip, halve, Path.unlink]
    for i, name in enumerate(names):
        damage = damages[i % 3] if name != "manifest.json" else flip
        whole = (newest / name).read_bytes()
        torch.distributed.barrier()
        if rank == 0:
            damage(newest / name)
        torch.distributed.barrier()
        said: list[str] = []
        step, value, _ = loaded(checkpoints(folder, said=said))
        assert value == step
        found.append((name, step, said))
        torch.distributed.barrier()
        if rank == 0:
            (newest / name).write_bytes(whole)
        torch.distributed.barrier()
    saves = checkpoints(folder)
    if rank == 0:
        for step in (1, 2):
            flip(folder / f"step-0000000{step}" / "rank-0.pt")
    torch.distributed.barrier()
    try:
        saves.reader.latest()
    except CheckpointError as error:
        found.append((str(error), 0, []))
    return found


def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    for said in run_ranks(2, damage_and_load, tmp_path):
        *damaged, (error, _, _) = said
        assert {name for name, _, _ in damaged} >= {"weights/.metadata", "rank-1.pt", "manifest.json"}
        for name, step, lines in damaged:
            assert step == 1
            assert f"step-00000002/{name}" in lines[0]
            assert "step-00000001" in lines[1]
        assert "no checkpoint" in error
        assert "step-00000001/rank-0.pt" in error


def fail_and_go_on(folder: Path) -> dict[str, Any]:
    """A full disk at rank 1, a NaN at rank 1, and a disk that fails once."""
    import torch.distributed.checkpoint as dcp

    from fsdp_lab.checkpoint.files import writing

    writing._PAUSE_S = 0.0
    rank = torch.distributed.get_rank()
    said: list[str] = []
    saves = checkpoints(folder, said=said)
    saves.save(1, content(1))
    saves.wait()
    write = dcp.FileSystemWriter.write_data
    errors = [errno.ENOSPC]

    def failing(self: Any, plan: Any, planner: Any) -> Any:
        if rank == 1 and errors:
            raise OSError(number := errors.pop(), os.strerror(number), "weights/__1_0.distcp")
        return write(self, plan, planner)

    dcp.FileSystemWriter.write_data = failing
    saves.save(2, content(2))
    saves.wait()
    after_full = listing(folder)
    state = content(3)
    if rank == 1:
        state.own["compressors"][0]["residual"][1] = torch.nan
    saves.save(3, state)
    saves.wait()
    errors.append(errno.EIO)
    saves.save(4, content(4))
    saves.wait()
    return {"full": after_full, "said": said, "failed": saves.failed, "saved": saves.saved, "step": loaded(saves)[0]}


def test_a_save_that_fails_leaves_nothing_and_training_goes_on(tmp_path: Path) -> None:
    for found in run_ranks(2, fail_and_go_on, tmp_path):
        assert found["full"] == ["latest", "step-00000001"]
        assert "rank 1" in found["said"][0]
        assert "No space left on device" in found["said"][0]
        assert "the last good one is of step 1" in found["said"][0]
        assert "not finite: compressors/0/residual" in found["said"][1]
        assert (found["failed"], found["saved"], found["step"]) == (2, 2, 4), "the input/output error went by"
    assert listing(tmp_path) == ["latest", "step-00000001", "step-00000004"]


class Evil:
    """Pickles into a call that makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def load_planted(folder: Path, marker: Path) -> list[tuple[str, str]]:
    """Plant a pickle in each file of a checkpoint, with a manifest that fits: the file, and what loading says."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    found = []
    saves = checkpoints(folder)
    saves.save(1, content(1))
    saves.wait()
    path = folder / "step-00000001"
    manifest = Manifest.read(path)
    index = dcp.FileSystemReader(path / "weights").read_metadata()
    index.state_dict_metadata["step"] = BytesStorageMetadata()  # an entry that torch would unpickle with full powers
    as_bytes = pickle.dumps(index)
    for entry in manifest.files:
        evils = [pickle.dumps(Evil(marker))]
        if entry.name.endswith(".metadata"):
            evils.append(as_bytes)
        if entry.name.endswith("distcp"):
            evils = [evils[0] + bytes(entry.bytes)]
        for evil in evils:
            whole = (path / entry.name).read_bytes()
            (path / entry.name).write_bytes(evil)
            files = tuple(on_disk.entry_of(path, known.name) for known in manifest.files)
            on_disk.write(path / "manifest.json", Manifest(**{**vars(manifest), "files": files}).to_bytes())
            try:
                loaded(checkpoints(folder))
                found.append((entry.name, "loaded"))
            except CheckpointError as error:
                found.append((entry.name, str(error)))
            (path / entry.name).write_bytes(whole)
    return found


def test_no_pickle_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "its code ran"
    (said,) = run_ranks(1, load_planted, tmp_path / "c", marker)
    assert len(said) == 4
    for name, error in said:
        assert name in error or "__0_0.distcp" in name, error
        assert error != "loaded"
        assert "weights_only" not in error, "torch advises to read it in the way that runs code"
        assert len(error) < 400, error
    assert not marker.exists()
    os.mkdir(marker)  # the marker would have been seen
    with pytest.raises(FileExistsError):
        pickle.loads(pickle.dumps(Evil(marker)))


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    index = Metadata({}, None, {MetadataIndex("w"): _StorageInfo("../../secret", 0, 1)})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointError, match=r"\.\./\.\./secret"):
        read_index(tmp_path / ".metadata")


def test_a_manifest_names_only_files_of_its_own(tmp_path: Path) -> None:
    for name in ("/etc/passwd", "../other/rank-0.pt"):
        manifest = Manifest(1, 1, "2", {}, (on_disk.FileEntry(name, 1, ""),))
        (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
        with pytest.raises(CheckpointError, match="outside"):
            Manifest.read(tmp_path)
    content = json.loads(manifest.to_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps({**content, "step": 7}))
    with pytest.raises(CheckpointError, match="sha256"):
        Manifest.read(tmp_path)


def test_a_ranks_own_file_holds_plain_values_only(tmp_path: Path) -> None:
    torch.save({"a": [1, (2.5, None)], "b": torch.ones(2)}, tmp_path / "good.pt")
    assert load_own(tmp_path / "good.pt")["a"] == [1, (2.5, None)]
    torch.save([1], tmp_path / "list.pt")
    for name, word in (("list.pt", "list"), ("none.pt", "missing")):
        with pytest.raises(CheckpointError, match=word):
            load_own(tmp_path / name)


def test_going_back_takes_the_newer_ones_out_of_the_way(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / on_disk.name_of(step)).mkdir()
    unfinished = tmp_path / "step-00000002.tmp"
    unfinished.mkdir()
    (unfinished / "new").touch()
    assert (on_disk.publish(unfinished) / "new").exists()
    assert listing(tmp_path) == ["latest", "step-00000001", "step-00000002", "step-00000002.replaced"]
    on_disk.prune(tmp_path, keep=1)
    assert listing(tmp_path) == ["latest", "step-00000002"]
