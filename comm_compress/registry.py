"""Methods by name, built from checked settings."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from comm_compress.compressor import Compressor
from comm_compress.feedback import ErrorFeedback, FeedbackConfig

Builder = TypeVar("Builder", bound=Callable[[Any], Compressor])


class Entry(NamedTuple):
    """One registered method: its settings' dataclass, its builder, and whether feedback is on unless told otherwise."""

    config: type
    build: Callable[[Any], Compressor]
    error_feedback: bool


_METHODS: dict[str, Entry] = {}


def register(name: str, config: type, *, error_feedback: bool = False) -> Callable[[Builder], Builder]:
    """Class or function decorator: make ``name`` known to `make`.

    ``config`` is a frozen dataclass whose fields are int, float, bool, str, Literal or optional forms of
    these, each with a default; it may refuse values in ``__post_init__`` with `require`.
    Raises ValueError when the name is taken.
    """
    if name in _METHODS or name == "none":
        raise ValueError(f"compression method {name!r} is already registered")

    def add(build: Builder) -> Builder:
        _METHODS[name] = Entry(config, build, error_feedback)
        return build

    return add


def available() -> list[str]:
    """The names `make` accepts, "none" first."""
    return ["none", *sorted(_METHODS)]


def make(name: str, config: Mapping[str, Any] | None = None) -> Compressor | None:
    """Build a compressor from its name and settings; "none" gives None, which registers no hook at all.

    Every method also takes ``error_feedback``: true, false, or the settings of
    `comm_compress.feedback.FeedbackConfig`. Raises ValueError that names the offending key.
    """
    settings = dict(config or {})
    if name == "none":
        if settings:
            raise ValueError(f"none takes no settings, got {sorted(settings)}")
        return None
    entry = _METHODS.get(name)
    if entry is None:
        raise ValueError(
            f"unknown compression method {name!r}{_hint(name, available())}; known: {', '.join(available())}"
        )
    try:
        return _build(name, entry, settings)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None


def _build(name: str, entry: Entry, settings: dict[str, Any]) -> Compressor:
    wants_feedback = settings.pop("error_feedback", entry.error_feedback)
    method_config = parse(entry.config, settings, also_known=("error_feedback",))
    compressor = entry.build(method_config)
    compressor.name = name
    compressor.settings = dataclasses.asdict(method_config)
    if wants_feedback is False:
        if entry.error_feedback:
            compressor.settings["error_feedback"] = False
        return compressor
    if compressor.lossless:
        raise ValueError("error_feedback: this method loses nothing, there is no error to feed back")
    if wants_feedback is not True and not isinstance(wants_feedback, Mapping):
        raise ValueError(f"error_feedback = {wants_feedback!r}: must be true, false or an object of settings")
    try:
        feedback_config = parse(FeedbackConfig, {} if wants_feedback is True else wants_feedback)
    except ValueError as e:
        raise ValueError(f"error_feedback: {e}") from None
    return ErrorFeedback(compressor, feedback_config)


def parse(config: type, settings: Mapping[str, Any], also_known: tuple[str, ...] = ()) -> Any:
    """An instance of the dataclass ``config``; ValueError names every unknown or mistyped key."""
    hints = get_type_hints(config)
    names = [f.name for f in dataclasses.fields(config)]
    complaints = []
    for key, value in settings.items():
        if key not in names:
            known = ", ".join([*names, *also_known])
            complaints.append(f"unknown key {key!r}{_hint(key, [*names, *also_known])}; known: {known}")
        elif not _matches(value, hints[key]):
            complaints.append(f"{key} = {value!r}: must be {_describe(hints[key])}")
    if complaints:
        raise ValueError("; ".join(complaints))
    return config(**{key: float(v) if hints[key] is float else v for key, v in settings.items()})


def require(condition: bool, key: str, value: object, wanted: str) -> None:
    """Raise ValueError "key = value: must be wanted" unless the condition holds."""
    if not condition:
        raise ValueError(f"{key} = {value!r}: must be {wanted}")


def _matches(value: object, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_matches(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a string", type(None): "null"}
    return names[hint]


def _hint(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
