"""What of this project works here: by what is installed, and by trying it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import comm_compress as cc
from fsdp_lab.commands.machine.finding import Finding, needed, useful
from fsdp_lab.commands.machine.hardware import can_emulate_links
from fsdp_lab.commands.main import ROOT
from fsdp_lab.extras import PACKAGES
from fsdp_lab.files.user_cache import cache_dir

_LIBRARY = ("torch", "numpy", "numba", "zstandard")
_FOR = {
    "lab": "training, sweeps, benchmarks",
    "analysis": "reports, figures, statistics, timelines",
    "eagle": "draft models with chat templates",
}


def findings() -> Iterator[Finding]:
    """What can be said without torch."""
    yield _installed()
    yield _library()
    missing = {extra: [name for name in names if find_spec(name) is None] for extra, names in PACKAGES.items()}
    yield needed("training", not missing["lab"], _said("lab", missing), _install("lab"))
    for name, extra in (("figures", "analysis"), ("drafts", "eagle")):
        yield useful(name, not missing[extra], _said(extra, missing), _install(extra))
    is_checkout = all((ROOT / package / "__init__.py").exists() for package in ("experiments", "analysis"))
    said = f"in {ROOT}" if is_checkout else "no: sweeps, links, benchmarks and reports are not in the wheel"
    yield useful("checkout", is_checkout, said, "get the source, and there: pip install -e '.[lab,analysis]'")
    works = is_checkout and not missing["lab"] and can_emulate_links()
    said = "networks of any rate between ranks can be emulated" if works else "not here"
    yield useful("links", works, said, "needs a checkout, root, iproute2 and namespaces (above)")
    yield _tokens()


def findings_with_torch() -> Iterator[Finding]:
    """What takes torch to be known; nothing where it cannot be imported."""
    start = time.monotonic()
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # a broken build fails in many ways
        yield needed("torch", False, f"{type(error).__name__}: {error}", "pip install torch")
        return
    said = f"{torch.__version__}, imported in {time.monotonic() - start:.1f} s"
    yield useful("torch", True, said)
    yield needed("gloo", dist.is_available() and dist.is_gloo_available(), "ranks on CPUs", "a torch built with gloo")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    yield useful("CUDA", count > 0, names or "no device", "without it, training runs on the CPU")
    nccl = dist.is_available() and dist.is_nccl_available()
    number = ".".join(map(str, torch.cuda.nccl.version())) if nccl and count else ""  # type: ignore[no-untyped-call]
    yield useful("NCCL", nccl, number or ("there" if nccl else "not in this torch"), "ranks on GPUs need it")
    yield _kernels()


def _kernels() -> Finding:
    """Send a tensor by a method whose kernels are compiled, and see whether they can be kept."""
    import torch

    start = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen = cc.roundtrip(torch.linspace(-1, 1, 4096), "int8")
        except Exception as error:  # whatever a compiler or its cache may raise
            return needed("kernels", False, f"{type(error).__name__}: {error}", "pip install --force-reinstall numba")
    told = [str(warning.message) for warning in caught if "compiled kernels" in str(warning.message)]
    said = f"int8 works ({seen.bits_per_element:.3f} bits an element), in {time.monotonic() - start:.1f} s with imports"
    return useful("kernels", not told, told[0] if told else said, "set NUMBA_CACHE_DIR to a folder that is writable")


def _installed() -> Finding:
    try:
        said = f"fsdp-comm-compress {version('fsdp-comm-compress')}"
    except PackageNotFoundError:
        return useful("package", False, f"{cc.__version__}, run from {ROOT}", "pip install -e '.[lab,analysis]'")
    return useful("package", True, said)


def _library() -> Finding:
    missing = [name for name in _LIBRARY if find_spec(name) is None]
    said = f"{', '.join(missing)} not installed" if missing else f"{', '.join(_LIBRARY)} are installed"
    return needed("library", not missing, said, f"pip install {' '.join(missing)}")


def _tokens() -> Finding:
    """Is the folder of tokenised corpora there, or can it be made?"""
    try:
        folder = cache_dir(None)
    except ValueError as error:
        return useful("token cache", False, str(error), "give --cache_dir FOLDER")
    finished = len(list(folder.glob("*/meta.json")))
    above = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    said = (
        f"{finished} tokenised corp{'us' if finished == 1 else 'ora'} in {folder}"
        if folder.exists()
        else f"none yet; will be made in {folder}"
    )
    return useful("token cache", os.access(above, os.W_OK), said, f"{above} is not writable: give --cache_dir FOLDER")


def _said(extra: str, missing: dict[str, list[str]]) -> str:
    return f"{', '.join(missing[extra])} not installed: no {_FOR[extra]}" if missing[extra] else _FOR[extra]


def _install(extra: str) -> str:
    return f"pip install 'fsdp-comm-compress[{extra}]'"
