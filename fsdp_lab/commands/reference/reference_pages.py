"""Writes docs/reference/: every method, setting, published system and field of a results row, from the code itself.

Methods and settings also in Chinese, docs/zh/reference/, by the table chinese.json. A sentence that the table lacks
stays English, and the Chinese page then counts as lagging (scripts/translations.py).

    python -m fsdp_lab.commands.reference.reference_pages             # writes the pages anew
    python -m fsdp_lab.commands.reference.reference_pages --check     # 1 when one is not what would be written

A test holds them up to date, so no setting can be without a line. After an English sentence was changed, this command
names the sentences that have no Chinese and the Chinese ones that nobody says any more.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import comm_compress as cc
from fsdp_lab.commands.reference import system_pages
from fsdp_lab.commands.reference.languages import TABLE, Language, chinese, english
from fsdp_lab.commands.reference.methods_file import Method, read
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.results.schema import SECTIONS
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.reading.cli import shown
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.reading.specs import Spec, specs_of
from fsdp_lab.settings.user_errors import unix_endings, user_errors

DOCS = Path(__file__).resolve().parents[3] / "docs"
_COMMAND = "python -m fsdp_lab.commands.reference.reference_pages"
_NOTE = f"<!-- made by `{_COMMAND}`; do not edit -->"
_LAGS = 64 * "0"  # no page has this SHA-256


def pages(zh: Language | None = None) -> dict[str, str]:
    """The text of each page by its file's name below docs/. ``zh``: the Chinese, by default that of the table."""
    made = {f"reference/{name}": text for name, text in _translated(english()).items()}
    about = "A row is one line of JSON in `results.jsonl`."
    made["reference/results.md"] = _page("Fields of a results row", _fields(), about)
    about = "What published systems mean in this project's settings. One on a terminal: `fsdp-lab systems sdp4bit`."
    made["reference/systems.md"] = _page("Published systems", system_pages.reference(), about)
    zh = chinese() if zh is None else zh
    for name, text in _translated(zh).items():
        source = f"reference/{name}"
        digest = _LAGS if zh.missing else hashlib.sha256(made[source].encode()).hexdigest()
        made[f"zh/{source}"] = f"<!-- translates: docs/{source} sha256:{digest} -->\n\n{text}"
    return made


def _translated(say: Language) -> dict[str, str]:
    """The two pages that exist in every language."""
    methods = say("One method on a terminal: `fsdp-lab methods topk`.")
    settings = say("Each is a flag, `--NAME VALUE`, and a key of a `--config` file.")
    return {
        "methods.md": _page(say("Methods"), _methods(say), methods),
        "settings.md": _page(say("Settings"), _settings(say), settings),
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


def _methods(say: Language) -> Iterator[str]:
    content = read()
    yield from _table(
        list(map(say, ("method", "what it does", "bits", "carries", "error feedback"))),
        (
            [
                f"[`{method['name']}`](#{method['name']})",
                say(method["idea"]),
                f"{method['bits']:.4g}",
                _carries(method, say),
                say("on") if method["error_feedback"] else "-" if method["no_feedback"] else say("off"),
            ]
            for method in content["methods"]
        ),
    )
    yield say(
        "Bits: of an element, by default, measured on gradients of `gpt2-mini` or, where these were not measured, on "
        "Gaussian numbers. Error feedback: is it on unless told otherwise (-: it makes no sense there)?"
    )
    yield ""
    yield f"## {say('Settings of every method')}"
    yield ""
    yield from _settings_table(content["common"]["settings"], say)
    yield say("Inside `error_feedback`, where it is on:")
    yield ""
    yield from _settings_table(content["common"]["error_feedback"], say)
    for method in content["methods"]:
        yield from _method(method, say)


def _method(method: Method, say: Language) -> Iterator[str]:
    yield f"## {method['name']}"
    yield ""
    yield say(method["idea"]).replace("``", "`")
    yield ""
    carries = say("Carries {carries}; {bits} bits an element by default.")
    carries = carries.format(carries=_carries(method, say), bits=f"{method['bits']:.4g}")
    yield f"{carries} {say(method['source'])}".strip()
    if method["module"]:
        yield say("In full: `{file}`.").format(file=f"{method['module'].replace('.', '/')}.py")
    yield ""
    if method["settings"]:
        yield from _settings_table(method["settings"], say)


def _carries(method: Method, say: Language) -> str:
    changes = ["changes of parameters"] * (method["changes"] and not method["parameters"])
    carried = ["gradients"] * method["gradients"] + ["parameters"] * method["parameters"] + changes
    return say(", ").join(map(say, carried))


def _settings_table(settings: Sequence[cc.Setting], say: Language) -> Iterator[str]:
    yield from _table(
        list(map(say, ("setting", "meaning", "values", "default", "example"))),
        (
            [
                f"`{setting['name']}`",
                say(setting["meaning"]),
                say(", ").join(map(say, filter(None, (setting["type"], setting["limits"])))),
                f"`{_default(setting['default'])}`",
                f"`{setting['example']}`",
            ]
            for setting in settings
        ),
    )


def _default(value: Any) -> str:
    return cc.labels.label(*cc.labels.named(value)) if isinstance(value, Mapping) else json.dumps(value)


# ---- settings of the trainers


def _settings(say: Language) -> Iterator[str]:
    yield f"## {say('Of `fsdp-lab train` and `./run_safe_training.sh`')}"
    yield ""
    yield from _groups(TrainConfig, {}, say)
    yield f"## {say('Of `fsdp-lab eagle train`')}"
    yield ""
    yield say("Those above of the same name, where they are not listed here with another default or meaning, and:")
    yield ""
    yield from _groups(EagleConfig, TrainConfig.specs(), say)


def _groups(config: type[Config], known: Mapping[str, Spec], say: Language) -> Iterator[str]:
    for group in config.groups().values():
        specs = [spec for spec in specs_of(group) if known.get(spec.name) != spec]
        if specs:
            yield f"### {say((group.__doc__ or '').splitlines()[0].rstrip('.'))}"
            yield ""
            heads = list(map(say, ("setting", "meaning", "values", "default")))
            yield from _table(heads, (_setting(spec, say) for spec in specs))


def _setting(spec: Spec, say: Language) -> list[str]:
    names = f"`{spec.name}`" + (f", `{spec.also}`" if spec.also else "")
    return [names, say(spec.help), say(spec.wanted), f"`{shown(spec.default) or 'none'}`"]


# ---- results rows


def _fields() -> Iterator[str]:
    yield (
        "Required: in every row (always), in rows of runs that went well (ok; or null, where there was nothing to "
        "measure), or not (no). `fsdp-lab results fields` prints these tables; what each figure means and how it is "
        "obtained: [measuring.md](../comparing/measuring.md)."
    )
    yield ""
    for section, fields in SECTIONS.items():
        yield f"## {section}"
        yield ""
        yield from _table(
            ["field", "type", "unit", "meaning", "required"],
            ([f"`{f.name}`", f.type_words, f.unit, f.meaning, f.required_words] for f in fields),
        )


def main(argv: Sequence[str]) -> int:
    """Write the pages, or with ``--check`` compare them."""
    parser = program("fsdp_lab.commands.reference.reference_pages", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a page is out of date")
    check = parser.parse_args(argv).check
    with user_errors("reference_pages"):
        if not DOCS.is_dir():
            raise ValueError(f"no folder {DOCS}: run this in a checkout")
        zh = chinese()
        old = {name: text for name, text in pages(zh).items() if not _is(DOCS / name, text)}
    for text in zh.missing:
        print(f"{TABLE.name}: no Chinese for {text!r}", file=sys.stderr)
    for text in zh.unused:
        print(f"{TABLE.name}: nothing says {text!r} any more", file=sys.stderr)
    if check:
        for name in old:
            print(f"docs/{name} is out of date: {_COMMAND}", file=sys.stderr)
        return 1 if old else 0
    for name, text in old.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
