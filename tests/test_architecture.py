"""Imports go one way: the arrows of the design, held."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# what each package may import of ours
ALLOWED = {
    "comm_compress": {"comm_compress"},
    "fsdp_lab": {"fsdp_lab", "comm_compress"},
    "experiments": {"experiments", "fsdp_lab", "comm_compress"},
    "analysis": {"analysis"},
    "examples": {"examples", "comm_compress"},
}
# how every command begins and ends, and how arms are written: analysis may have these, and they need nothing themselves
SHARED = ("fsdp_lab.user_errors", "fsdp_lab.flags", "comm_compress.labels")
# inside comm_compress, lowest first: a file imports only files of lower layers (or its own)
LAYERS = [
    {"labels", "savers", "steps", "workspace"},
    {"encoded", "segments", "spans"},
    {"kernels", "rounds", "state", "_compat", "nonfinite", "loss_scale"},
    {"backward", "compressor", "ledger", "prefetch"},
    {"entropy", "feedback", "handle", "index_codes", "parts", "policy"},
    {"layers", "replicas"},
    {"registry"},
    {"methods"},
    {"transport", "simulate"},
    {"allreduce", "comparison", "frozen"},
    {"fsdp_hooks"},
    {"conformance", "ddp", "fsdp", "resharding", "virtual"},
    {"__init__"},
]


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_packages_import_downwards_only() -> None:
    for package, allowed in ALLOWED.items():
        for path in files(package):
            names = {name for name in imports(path) if package != "analysis" or not name.startswith(SHARED)}
            ours = {name.split(".")[0] for name in names} & ALLOWED.keys()
            assert ours <= allowed, f"{path.relative_to(ROOT)} imports {sorted(ours - allowed)}"


def test_the_trainer_and_the_examples_use_the_librarys_public_face_only() -> None:
    for path in [*files("fsdp_lab"), *files("examples")]:
        inner = {name for name in imports(path) if name.startswith("comm_compress.")}
        assert not inner, f"{path.relative_to(ROOT)} imports {sorted(inner)}"


def test_analysis_needs_no_torch() -> None:
    shared = [ROOT / f"{name.replace('.', '/')}.py" for name in SHARED]
    for path in [*files("analysis"), ROOT / "fsdp_lab" / "__init__.py"]:
        assert not any(name.split(".")[0] == "torch" for name in imports(path)), path
    for path in shared:
        assert {name.split(".")[0] for name in imports(path)} <= sys.stdlib_module_names, path
    program = f"import sys, {', '.join(SHARED)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def layer(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module in names)


def test_the_librarys_layers() -> None:
    for path in files("comm_compress"):
        own = path.relative_to(ROOT / "comm_compress").parts[0].removesuffix(".py")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "comm_compress" and len(parts) > 1 and own != "__init__":
                other = parts[1]
                assert other == own or layer(other) < layer(own), f"{path.relative_to(ROOT)} imports {name}"


def test_only_the_transport_calls_collectives() -> None:
    calls = ("all_to_all", "all_reduce(", "isend(", "irecv(", "all_gather", "reduce_scatter_single(", "broadcast(")
    for path in files("comm_compress"):
        if path.name not in ("transport.py", "_compat.py"):
            text = path.read_text()
            assert not any(f"dist.{call}" in text for call in calls), path
