"""Which extra of pyproject.toml brings which package: said in one line where a command would end in a traceback."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType

PACKAGES = {
    "lab": ("filelock", "safetensors", "tensorboard", "tokenizers", "tqdm", "transformers", "yaml"),
    "analysis": ("matplotlib", "pandas", "scipy"),
    "eagle": ("jinja2",),
    "lora": ("peft",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
    "liger": ("liger_kernel",),
    "flash": ("flash_attn",),
}
"""The names under which each extra's packages are imported."""


def advice(error: BaseException | None) -> str | None:
    """What to install where ``error`` is that a package of an extra is missing; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    for extra, packages in PACKAGES.items():
        if package in packages:
            return f"{package} is not installed: pip install 'fsdp-comm-compress[{extra}]'"
    return None


def missing(extra: str) -> str | None:
    """What to install where a package of ``extra`` is not there; None where all are. Imports none of them."""
    absent = next((package for package in PACKAGES[extra] if find_spec(package) is None), None)
    return advice(ModuleNotFoundError(name=absent)) if absent else None


def explain_missing_packages() -> None:
    """A command ends with `advice` and exit code 2, not with a traceback, where a package is missing.

    Its imports run before any code of its own could catch their errors, so this is a hook of the process, which each
    package with commands asks for as it is imported. Other processes than ``python -m PACKAGE...`` are left alone.
    """
    if sys.argv[:1] != ["-m"]:  # what Python has there while it imports a command's package, and then no more
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        message = advice(error)
        if message is None:
            before(kind, error, traceback)
        else:
            print(message, file=sys.stderr)
            raise SystemExit(2)  # Python takes a hook's SystemExit as its own

    sys.excepthook = hook
