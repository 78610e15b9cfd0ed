"""What the registry knows of a method, as plain data: for reference pages, help texts and pickers.

Everything comes from where it is decided: names, types and defaults from the settings' dataclass, limits from its own
refusals, descriptions from its docstring, the idea and the source from the method's docstring, directions from its
traits. So a page made of this cannot say anything else than the code does.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from comm_compress.description import Common, Description, Setting
from comm_compress.labels import label
from comm_compress.registry import CommonConfig, feeds_back, make, registered, said_type
from comm_compress.wrappers.error_feedback import FeedbackConfig

NONE = Description(
    name="none",
    module="",
    idea="Stock FSDP2, without any hook of ours.",
    details="",
    source="",
    arxiv=[],
    gradients=True,
    parameters=True,
    changes=False,
    error_feedback=False,
    no_feedback="nothing is compressed",
    unbiased=True,
    lossless=True,
    settings=[],
)


def describe(name: str) -> Description:
    """Return what is known of the method ``name``: one that `comm_compress.available` lists.

        cc.describe("topk")["settings"][0]
        # {"name": "ratio", "type": "a number", "default": 0.01, "limits": "above 0 and at most 1", ...}

    A plugin's method is described as ours are, as far as its docstrings say it: a line that begins with the setting's
    name between two backquotes each side and a colon, in its dataclass or one that this inherits from. Raises
    ValueError for a name that nobody registered.
    """
    if name == "none":
        return NONE
    entry = registered(name)
    built = entry.build(entry.config())
    idea, further = _paragraphs(entry.build)
    source, traits = _source(further, entry.build), built.traits
    return Description(
        name=name,
        module=entry.build.__module__,
        idea=idea,
        details="\n\n".join(part for part in further if not part.startswith(_SOURCE)),
        source=source,
        arxiv=_ARXIV.findall(source),
        gradients=traits.for_gradients,
        parameters=traits.for_parameters,
        changes=traits.for_changes or traits.for_parameters,
        error_feedback=feeds_back(entry, built),
        no_feedback=traits.no_feedback or ("it loses nothing" if traits.lossless else ""),
        unbiased=traits.unbiased,
        lossless=traits.lossless,
        settings=_settings(entry.config, name),
    )


def describe_common() -> Common:
    """Return the settings that every method takes beside its own, and those of error feedback; examples use `int4`."""
    feedback = _settings(FeedbackConfig, "topk", inside="error_feedback")
    return Common(settings=_settings(CommonConfig, "int4"), error_feedback=feedback)


_SOURCE = "Source: "
_ARXIV = re.compile(r"arXiv:? ?(\d{4}\.\d{4,5})")
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_DESCRIBED = re.compile(r"^``(\w+)``: (.+?)(?=^``\w+``: |^$|\Z)", re.MULTILINE | re.DOTALL)
_REFUSED = re.compile(r".*?: must be (.+)", re.DOTALL)


def _paragraphs(documented: object) -> tuple[str, list[str]]:
    """Return the first paragraph of a docstring as one line, and the others as they are."""
    first, *others = (inspect.getdoc(documented) or "").split("\n\n")
    return _joined(first), others


def _source(further: list[str], build: object) -> str:
    """Return what the method's docstring says after "Source: ", or what its module's does after the first paragraph.

    A module's paragraph is taken for a source where it names a year.
    """
    own = [_joined(part.removeprefix(_SOURCE)) for part in further if part.startswith(_SOURCE)]
    if own:
        return own[0]
    _, of_module = _paragraphs(inspect.getmodule(build))
    return next((_joined(part) for part in of_module if _YEAR.search(part)), "")


def _joined(text: str) -> str:
    return " ".join(text.split())


def _settings(config: type, method: str, inside: str = "") -> list[Setting]:
    """Return the fields of a settings' dataclass; ``inside`` is the setting of ``method`` that they stand in."""
    hints, meanings, defaults = get_type_hints(config), _meanings(config), config()
    names = [field.name for field in dataclasses.fields(config)]
    others = {name: _others(getattr(defaults, name), hints[name]) for name in names}
    return [
        Setting(
            name=name,
            type=said_type(hints[name]),
            default=_plain(getattr(defaults, name)),
            limits=_limits(config, name, hints[name]),
            meaning=meanings.get(name, ""),
            example=_example(method, name, others, inside),
        )
        for name in names
    ]


def _meanings(config: type) -> dict[str, str]:
    """Return what docstrings say of the fields: the class's own before those that it inherits from."""
    meanings: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        text = inspect.cleandoc(kind.__doc__ or "") if dataclasses.is_dataclass(kind) else ""
        meanings |= {name: _joined(said) for name, said in _DESCRIBED.findall(text)}
    return meanings


def _limits(config: type, name: str, hint: Any) -> str:
    """Return how ``config`` refuses a number that is too small or too large; empty where it takes any."""
    kinds = _options(hint)
    probes: tuple[float, ...] = (-1, 0, 1 << 40) if int in kinds else (-1.0, 0.0, 1e30) if float in kinds else ()
    for probe in probes:
        try:
            config(**{name: probe})
        except ValueError as refusal:
            told = _REFUSED.fullmatch(str(refusal))
            return told[1] if told else ""
    return ""


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _others(default: Any, hint: Any) -> list[Any]:
    """Return values worth trying in an example, the plainest first: as many as a method may refuse before one fits."""
    values: list[Any] = []
    for option in _options(hint):
        if get_origin(option) is Literal:
            values += get_args(option)
        elif option is bool:
            values += [True, False]
        elif option in (int, float):
            values += _numbers(default, option)
    if str in _options(hint) or any(get_origin(option) is Mapping for option in _options(hint)):
        values += ["int8", "bf16", "nc", {"*wte*": "int8"}]
    return [value for value in values if value != default]


def _numbers(default: Any, kind: type) -> list[Any]:
    if kind is float:
        return [default * 2, default / 2, 0.7] if default else [0.5, 1.0]
    return [default * 2, default // 2, default + 2] if default else [64, 8, 3, 100]


def _example(method: str, name: str, others: Mapping[str, list[Any]], inside: str) -> str:
    """Return the first label with another value of ``name`` that builds, if need be with one other setting changed."""
    for settings in _trials(name, others):
        written = label(method, {inside: settings} if inside else settings)
        try:
            make(written)
        except ValueError:
            continue
        return written
    return ""


def _trials(name: str, others: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    yield from ({name: value} for value in others[name])
    for other, values in others.items():
        if other != name:
            yield from ({other: changed, name: value} for value, changed in itertools.product(others[name], values))


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
