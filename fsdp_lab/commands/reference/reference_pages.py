"""Writes docs/reference/: every method, every setting and every field of a results row, from the code itself.

    python -m fsdp_lab.commands.reference.reference_pages             # writes the pages anew
    python -m fsdp_lab.commands.reference.reference_pages --check     # 1 when one is not what would be written

A test holds them up to date, so no setting can be without a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import comm_compress as cc
from fsdp_lab.commands.reference.methods_file import Method, read
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.results import FIELDS
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.reading.cli import shown
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.reading.specs import Spec, specs_of
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"
_NOTE = "<!-- made by `python -m fsdp_lab.commands.reference.reference_pages`; do not edit -->"


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {
        "methods.md": _page("Methods", _methods(), "One method on a terminal: `fsdp-lab methods topk`."),
        "settings.md": _page(
            "Settings", _settings(), "Each is a flag, `--NAME VALUE`, and a key of a `--config` file."
        ),
        "results.md": _page("Fields of a results row", _fields(), "A row is one line of JSON in `results.jsonl`."),
    }


def _page(title: str, lines: Iterable[str], about: str) -> str:
    return "\n".join([f"# {title}", "", _NOTE, "", about, "", *lines]).rstrip("\n") + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        cells = (" ".join(cell.replace("``", "`").replace("|", "\\|").split()) for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


# ---- methods


def _methods() -> Iterator[str]:
    content = read()
    yield from _table(
        ["method", "what it does", "bits", "carries", "error feedback"],
        (
            [
                f"[`{method['name']}`](#{method['name']})",
                method["idea"],
                f"{method['bits']:.4g}",
                _carries(method),
                "on" if method["error_feedback"] else "-" if method["no_feedback"] else "off",
            ]
            for method in content["methods"]
        ),
    )
    yield (
        "Bits: of an element, by default, measured on gradients of `gpt2-mini` or, where these were not measured, on "
        "Gaussian numbers. Error feedback: is it on unless told otherwise (-: it makes no sense there)?"
    )
    yield ""
    yield "## Settings of every method"
    yield ""
    yield from _settings_table(content["common"]["settings"])
    yield "Inside `error_feedback`, where it is on:"
    yield ""
    yield from _settings_table(content["common"]["error_feedback"])
    for method in content["methods"]:
        yield f"## {method['name']}"
        yield ""
        yield method["idea"].replace("``", "`")
        yield ""
        yield f"Carries {_carries(method)}; {method['bits']:.4g} bits an element by default. {method['source']}".strip()
        if method["module"]:
            yield f"In full: `{method['module'].replace('.', '/')}.py`."
        yield ""
        if method["settings"]:
            yield from _settings_table(method["settings"])


def _carries(method: Method) -> str:
    changes = ["changes of parameters"] * (method["changes"] and not method["parameters"])
    return ", ".join(["gradients"] * method["gradients"] + ["parameters"] * method["parameters"] + changes)


def _settings_table(settings: Sequence[cc.Setting]) -> Iterator[str]:
    yield from _table(
        ["setting", "meaning", "values", "default", "example"],
        (
            [
                f"`{setting['name']}`",
                setting["meaning"],
                ", ".join(filter(None, (setting["type"], setting["limits"]))),
                f"`{_default(setting['default'])}`",
                f"`{setting['example']}`",
            ]
            for setting in settings
        ),
    )


def _default(value: Any) -> str:
    return cc.labels.label(*cc.labels.named(value)) if isinstance(value, Mapping) else json.dumps(value)


# ---- settings of the trainers


def _settings() -> Iterator[str]:
    yield "## Of `fsdp-lab train` and `./run_safe_training.sh`"
    yield ""
    yield from _groups(TrainConfig, known={})
    yield "## Of `fsdp-lab eagle train`"
    yield ""
    yield "Those above of the same name, where they are not listed here with another default or meaning, and:"
    yield ""
    yield from _groups(EagleConfig, known=TrainConfig.specs())


def _groups(config: type[Config], known: Mapping[str, Spec]) -> Iterator[str]:
    for group in config.groups().values():
        specs = [spec for spec in specs_of(group) if known.get(spec.name) != spec]
        if specs:
            yield f"### {(group.__doc__ or '').splitlines()[0].rstrip('.')}"
            yield ""
            yield from _table(["setting", "meaning", "values", "default"], map(_setting, specs))


def _setting(spec: Spec) -> list[str]:
    names = f"`{spec.name}`" + (f", `{spec.also}`" if spec.also else "")
    return [names, spec.help, spec.wanted, f"`{shown(spec.default) or 'none'}`"]


# ---- results rows


def _fields() -> Iterator[str]:
    yield (
        "Required: in every row (always), in rows of runs that went well (ok), or not (no). `fsdp-lab results fields` "
        "prints this table; what each figure means and how it is obtained: [measuring.md](../measuring.md)."
    )
    yield ""
    yield from _table(
        ["field", "type", "unit", "meaning", "required"],
        (
            [f"`{field.name}`", field.kind.replace("|", " or "), field.unit, field.meaning, field.required]
            for field in FIELDS
        ),
    )


def main(argv: Sequence[str]) -> int:
    """Write the pages, or with ``--check`` compare them."""
    parser = program("fsdp_lab.commands.reference.reference_pages", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a page is out of date")
    check = parser.parse_args(argv).check
    with user_errors("reference_pages"):
        if not FOLDER.parent.is_dir():
            raise ValueError(f"no folder {FOLDER.parent}: run this in a checkout")
    FOLDER.mkdir(exist_ok=True)
    old = {name: text for name, text in pages().items() if not _is(FOLDER / name, text)}
    if check:
        for name in old:
            print(
                f"docs/reference/{name} is out of date: python -m fsdp_lab.commands.reference.reference_pages",
                file=sys.stderr,
            )
        return 1 if old else 0
    for name, text in old.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
