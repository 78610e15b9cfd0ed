import hashlib
import os
import time
from pathlib import Path

import pytest

from fsdp_lab.files import fingerprints
from fsdp_lab.files.errors import DataError
from fsdp_lab.files.fingerprints import remembered_sha256


def old_file(folder: Path, content: bytes, age_s: float = 60.0) -> Path:
    path = folder / "data"
    path.write_bytes(content)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_second_start_does_not_read_the_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = old_file(tmp_path, b"abc"), list[str]()
    expected = hashlib.sha256(b"abc").hexdigest()
    assert remembered_sha256(path, tmp_path, said.append) == expected
    assert not said
    monkeypatch.setattr(fingerprints, "file_sha256", None)
    assert remembered_sha256(path, tmp_path, said.append) == expected
    assert len(said) == 1
    assert "not read again" in said[0]


@pytest.mark.parametrize("change", ["content", "inode", "size"])
def test_any_change_is_noticed(tmp_path: Path, change: str) -> None:
    path, said = old_file(tmp_path, b"abc"), list[str]()
    remembered_sha256(path, tmp_path, said.append)
    status = path.stat()
    content = b"abcd" if change == "size" else b"xyz"
    if change == "inode":
        (tmp_path / "other").write_bytes(content)
        (tmp_path / "other").replace(path)
    else:
        path.write_bytes(content)
    if change != "content":  # keep the time stamp, so that only size or inode tells
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered_sha256(path, tmp_path, said.append) == hashlib.sha256(content).hexdigest()
    assert not said


def test_a_file_written_just_now_is_not_remembered(tmp_path: Path) -> None:
    path, said = old_file(tmp_path, b"abc", age_s=0.0), list[str]()
    remembered_sha256(path, tmp_path, said.append)
    remembered_sha256(path, tmp_path, said.append)
    assert not said


@pytest.mark.parametrize("damage", [b"", b"[1]", b"{broken"])
def test_a_damaged_memory_is_repaired(tmp_path: Path, damage: bytes) -> None:
    path, said = old_file(tmp_path, b"abc"), list[str]()
    (tmp_path / "file_hashes.json").write_bytes(damage)
    for _ in range(2):
        assert remembered_sha256(path, tmp_path, said.append) == hashlib.sha256(b"abc").hexdigest()
    assert len(said) == 1


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        remembered_sha256(tmp_path / "x", tmp_path, print)
    with pytest.raises(DataError, match="is a folder"):
        remembered_sha256(tmp_path, tmp_path, print)
