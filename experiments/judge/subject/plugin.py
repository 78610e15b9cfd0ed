"""Offering a file with a method in it to other processes as an installed package would. It is not imported here."""

from __future__ import annotations

import re
from pathlib import Path

PLUGIN = "judged_method"


def module_name(path: Path) -> str:
    """The name under which the file is imported: it cannot hide a package of the same name."""
    return "judged_" + re.sub(r"\W", "_", path.stem)


def write_plugin(folder: Path, path: Path) -> None:
    """Fill ``folder`` with a package that registers the file's method wherever the folder is on Python's path.

    It is an entry point of `comm_compress.methods`, as a plugin has one (docs/library/plugins.md): trainer and sweeps
    need to know nothing of it.
    """
    info = folder / f"{PLUGIN}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[comm_compress.methods]\n{PLUGIN} = {PLUGIN}\n")
    text = f"import importlib.util\nimport sys\n\nsys.path.append({str(path.parent)!r})\n"
    text += f"spec = importlib.util.spec_from_file_location({module_name(path)!r}, {str(path)!r})\n"
    text += "module = importlib.util.module_from_spec(spec)\nsys.modules[spec.name] = module\n"
    (folder / f"{PLUGIN}.py").write_text(text + "spec.loader.exec_module(module)\n")
