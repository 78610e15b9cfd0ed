"""A package with a compression method of your own: installable, tested, and yours to change.

    python -m fsdp_lab.commands.new_method my_method [--out FOLDER]

FOLDER (default: ./my_method) gets my_method.py with a small method that works (signs in blocks, error feedback on),
its tests, a pyproject.toml whose entry point makes the name known wherever methods are named, and a README. Nothing is
installed, and no file is overwritten.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.commands.reference.methods_file import read
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.settings.flag_values import new_folder
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

TEMPLATE = Path(__file__).parent / "template"
FILES = {
    "method.txt": "{name}.py",
    "test.txt": "tests/test_{name}.py",
    "pyproject.txt": "pyproject.toml",
    "readme.txt": "README.md",
}
_TAKEN = ("comm_compress", "fsdp_lab", "torch", "numpy", "numba", "none", "test", "tests", "conftest")


def main(argv: Sequence[str]) -> int:
    """Write the package; 0, or exit code 2 for a name or folder that will not do."""
    parser = program("fsdp_lab.commands.new_method", __doc__)
    parser.add_argument("name", metavar="NAME", help="of method, module and package: small letters, digits, _")
    parser.add_argument("--out", type=new_folder, metavar="FOLDER", help="new or empty (default: ./NAME)")
    options = parser.parse_args(argv)
    with user_errors("new-method"):
        check_name(options.name)
        out: Path = options.out or Path(options.name)
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"--out: {out} is not empty; name a new folder")
        write(options.name, out)
    print(f"{out}: {', '.join(sorted(target.format(name=options.name) for target in FILES.values()))}")
    print(f"next: cd {out} && python -m pytest, then pip install -e . and fsdp-lab methods {options.name}")
    return 0


def check_name(name: str) -> None:
    """ValueError for a name that cannot be a module's, or that a method or a module has already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"NAME: got {name!r}, wants a Python name of small letters, digits and _, such as my_method")
    if name in _TAKEN or name in sys.stdlib_module_names:
        raise ValueError(f"NAME: {name!r} is the name of a module that Python would import in its place; take another")
    if name in {method["name"] for method in read()["methods"]}:
        raise ValueError(f"NAME: there is a method {name!r} already (fsdp-lab methods {name}); take another")


def write(name: str, out: Path) -> None:
    """Fill the folder ``out``. ValueError when it cannot be written."""
    words = {"@NAME@": name, "@DASHED@": name.replace("_", "-"), "@CLASS@": _class_name(name)}
    for source, target in FILES.items():
        text = (TEMPLATE / source).read_text()
        for word, value in words.items():
            text = text.replace(word, value)
        path = out / target.format(name=name)
        make_folder(path.parent, "out")
        path.write_text(text)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
