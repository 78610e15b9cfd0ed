"""What a run ran on: source revision, versions, hardware and launcher, as fields of the results row.

Reads files and environment variables and starts one ``git``; it imports nothing heavy, and asks torch only when the
program has loaded it already.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "numpy", "numba", "transformers", "tokenizers", "triton", "fsdp-comm-compress")
_LAUNCHER = {
    "run_id": "TORCHELASTIC_RUN_ID",
    "restarts": "TORCHELASTIC_RESTART_COUNT",
    "max_restarts": "TORCHELASTIC_MAX_RESTARTS",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "nodes": "GROUP_WORLD_SIZE",
}


def environment() -> dict[str, Any]:
    """git_commit, git_dirty, versions, hardware and torchrun, ready to be merged into a results row."""
    commit, dirty = git_revision(Path(__file__).resolve().parents[2])
    launcher = {name: os.environ[key] for name, key in _LAUNCHER.items() if key in os.environ}
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": versions(),
        "hardware": hardware(),
        "torchrun": launcher if "run_id" in launcher else None,
    }


def git_revision(root: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout at ``root`` and whether it has changes; (None, None) when it is not one.

    Changes in its ``results`` do not count: a sweep writes its rows there, and they change nothing of the next run.
    An installed package may lie inside a foreign checkout (a .venv): only a ``root`` with its own .git counts.
    """
    if not (root / ".git").exists():
        return None, None
    command = ["git", "-C", str(root), "--no-optional-locks", "status", "--porcelain=v2", "--branch"]
    command += ["--", ".", ":(exclude)results"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None, None
    lines = done.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    return commit, any(not line.startswith("#") for line in lines)


def versions() -> dict[str, str]:
    """The versions of Python and of those packages that are installed, by name; ``malloc``: what gives memory."""
    by_package = {"python": platform.python_version(), "malloc": _malloc()}
    for package in _PACKAGES:
        try:
            by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        by_package["torch"] = str(torch.__version__)  # with the build's suffix: 2.13.0+cpu
        by_package |= {"cuda": str(torch.version.cuda)} if torch.version.cuda else {}
    return by_package


def _malloc() -> str:
    try:
        mallctl = ctypes.CDLL(None).mallctl  # jemalloc's own function, where it was loaded before the program
    except AttributeError:
        return " ".join(platform.libc_ver()).strip()
    version, size = ctypes.c_char_p(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_char_p))
    mallctl(b"version", ctypes.byref(version), ctypes.byref(size), None, 0)
    return f"jemalloc {(version.value or b'').decode().partition('-')[0]}"


def hardware() -> dict[str, Any]:
    """The machine: cpu (name), cores (that we may use), ram_gb (1e9 bytes), gpus (names), host (a hash of its name)."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gb": round(pages * page_bytes / 1e9, 1),
        "gpus": _gpu_names(),
        "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpu_names() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [str(torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
