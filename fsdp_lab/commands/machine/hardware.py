"""What this machine has: asked of the kernel, of files and of small programs, without torch."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_lab.commands.machine.finding import Finding, needed, useful
from fsdp_lab.ranks.environment import jemalloc
from fsdp_lab.run.environment import hardware

GB = 1e9
_SHAPING = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 16kb latency 400ms"


def findings() -> Iterator[Finding]:
    """Everything about the machine, in the order in which it is shown."""
    yield _system()
    yield _processor()
    yield _memory()
    yield _allocator()
    yield _shared_memory()
    yield _disk(Path.cwd())
    yield _gpus()
    yield _loopback()
    yield _meeting_port()
    yield from _namespaces()


def _system() -> Finding:
    said = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    good = sys.platform == "linux" and sys.version_info >= (3, 11)
    return needed("system", good, said, "needs Linux, and Python 3.11 or newer")


def _processor() -> Finding:
    machine = hardware()
    flags = _first("/proc/cpuinfo", "flags").split()
    best = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2")
    said = f"{machine['cpu']}, {machine['cores']} cores for this process, {best}"
    on_intel = platform.machine() in ("x86_64", "AMD64")
    return useful("processor", best != "no AVX2" or not on_intel, said, "codecs are slower without AVX2")


def _memory() -> Finding:
    kib = {name: int(_first("/proc/meminfo", name).split()[0] or 0) for name in ("MemTotal", "MemAvailable")}
    total, free = (1024 * kib[name] / GB for name in ("MemTotal", "MemAvailable"))
    remedy = "the smallest preset takes about 1 GB a rank: end other programs"
    return useful("memory", free >= 2, f"{total:.1f} GB, {free:.1f} GB of it free", remedy)


def _allocator() -> Finding:
    library, preloaded = jemalloc(), os.environ.get("LD_PRELOAD")
    if library is None and preloaded:
        return useful("allocator", True, f"ranks take memory as LD_PRELOAD says: {preloaded}", "")
    said = "ranks take memory from glibc" if library is None else f"ranks take memory from jemalloc, {library}"
    remedy = "steps on a CPU took up to a quarter less with jemalloc: apt install libjemalloc2"
    return useful("allocator", library is not None, said, remedy)


def _shared_memory() -> Finding:
    try:
        size = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return useful("shared memory", False, f"/dev/shm: {error.strerror}", "NCCL and data loaders want it")
    said = f"/dev/shm has {size.total / GB:.2g} GB, {size.free / GB:.2g} GB of it free"
    return useful("shared memory", size.free >= 0.5 * GB, said, "in a container: docker run --shm-size=2g")


def _disk(folder: Path) -> Finding:
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    said = f"{free / GB:.1f} GB free in {folder}{'' if writable else ', which is not writable'}"
    remedy = "start in a folder of yours with 1 GB free, or give --output_dir"
    return needed("disk", free >= GB and writable, said, remedy)


def _gpus() -> Finding:
    listed = _output(["nvidia-smi", "-L"]).splitlines() if shutil.which("nvidia-smi") else []
    names = [line.partition(": ")[2].partition(" (UUID")[0] for line in listed if line.startswith("GPU ")]
    said = ", ".join(names) or "none that nvidia-smi lists: training runs on the CPU, over gloo"
    return useful("GPU", bool(names), said, "a CUDA build of torch and NVIDIA's driver, where there is a card")


def _loopback() -> Finding:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                port = listener.getsockname()[1]
    except OSError as error:
        return needed("loopback", False, f"127.0.0.1: {error.strerror or error}", "ranks meet there: ip link set lo up")
    return needed("loopback", True, f"127.0.0.1 can be listened on and reached (port {port} was free)", "")


def _meeting_port() -> Finding:
    taken = [port for port in (29500, 6006) if not _is_free(port)]
    said = "29500 (several machines) and 6006 (TensorBoard) are free"
    if taken:
        said = f"{' and '.join(map(str, taken))} of 29500 (several machines) and 6006 (TensorBoard) taken"
    return useful("ports", not taken, said, "another one is looked for, or give --master_port")


def _namespaces() -> Iterator[Finding]:
    is_root = os.geteuid() == 0
    yield useful("root", is_root, "yes" if is_root else "no", "emulated links need it: start them with sudo")
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    said = f"no {' and no '.join(tools)}" if tools else "ip and tc are there"
    yield useful("iproute2", not tools, said, "Debian, Ubuntu: apt install iproute2")
    trouble = _trouble_with_namespaces()
    said = trouble or "a network of its own can be made, and its rate limited"
    yield useful("namespaces", not trouble, said, "in a container: docker run --privileged")


def can_emulate_links() -> bool:
    """Are emulated links possible here: root, iproute2, and a kernel that lets us limit a rate?"""
    return os.geteuid() == 0 and not _trouble_with_namespaces()


def _trouble_with_namespaces() -> str:
    """Why no network with a limited rate can be made, tried in a namespace that ends with the trial; empty: it can."""
    if os.geteuid() != 0:
        return "not tried, that takes root"
    if shutil.which("unshare") is None or shutil.which("tc") is None:
        return "not tried without unshare (util-linux) and tc (iproute2)"
    done = subprocess.run(["unshare", "--net", "sh", "-c", _SHAPING], capture_output=True, text=True)
    return " ".join(done.stderr.split()) or "failed" if done.returncode else ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _first(path: str, name: str) -> str:
    """What stands after ``name`` and a colon in a file of the kernel's; "0" where it does not."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "0"
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "0")


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
