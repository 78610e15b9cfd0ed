"""Importing a file with a method in it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import comm_compress as cc
from comm_compress.registry import registered
from experiments.judge.subject.plugin import module_name


class Loaded(NamedTuple):
    """``module``: what the file became. ``names``: the methods that it registered."""

    module: ModuleType
    names: list[str]


def load(path: Path) -> Loaded:
    """Import the file once; files beside it can be imported by it, behind all packages. Raises whatever it raises."""
    before = set(cc.available())
    installed = next((m for m in list(sys.modules.values()) if _file_of(m) == path), None)
    if installed is not None:  # as a plugin: it has registered its methods already
        return Loaded(installed, sorted(name for name in before - {"none"} if _module_of(name) == installed.__name__))
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: is no Python file (its name must end in .py)")
    sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return Loaded(module, sorted(set(cc.available()) - before))


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _module_of(name: str) -> str:
    return str(getattr(registered(name).build, "__module__", ""))


def chosen(names: list[str], wanted: str | None, path: Path) -> str:
    """The label of the method to judge. ValueError: the file registers none, or several and none is named."""
    if not names:
        raise ValueError(f"{path}: registers no method; it needs @cc.register(NAME, CONFIG): docs/library/plugins.md")
    if wanted is not None:
        name, _ = cc.labels.parse_label(wanted)
        if name not in names:
            raise ValueError(f"--method {wanted}: {path} registers {', '.join(names)}, and no {name!r}")
        return wanted
    if len(names) > 1:
        raise ValueError(f"{path}: registers {', '.join(names)}; say which one with --method")
    return names[0]
