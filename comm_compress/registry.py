"""Methods by name, built from checked settings: the one place where what a user wrote becomes a method."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.labels import named, parse_label, spelled_out, with_settings
from comm_compress.wrappers.by_layer import ByLayer
from comm_compress.wrappers.entropy import EntropyCoded
from comm_compress.wrappers.error_feedback import ErrorFeedback, FeedbackConfig
from comm_compress.wrappers.warmup import Sparing

Builder = TypeVar("Builder", bound=Callable[[Any], Compressor])


PLUGINS = "comm_compress.methods"
"""The entry-point group under which other packages offer methods (docs/library/plugins.md)."""

AnyMethod = str | Mapping[str, Any] | Compressor
"""A method as it may be given: its name, a label such as ``"topk ratio=0.01"`` (`comm_compress.labels`), a mapping such
as ``{"method": "topk", "ratio": 0.01}``, or what `make` built."""


class Entry(NamedTuple):
    """One registered method: its settings' dataclass, its builder, and whether feedback is on unless told otherwise."""

    config: type
    build: Callable[[Any], Compressor]
    error_feedback: bool


@dataclass(frozen=True)
class CommonConfig:
    """Settings that every method takes beside its own.

    ``entropy``: code the encoded bytes further, without loss, by "rans" or "zstd"; null: not. Methods whose bytes are
    no codes refuse it (`comm_compress.wrappers.entropy.EntropyCoded`).
    ``error_feedback``: add what one step left out to the next one. True, false, or settings of the residual
    (`comm_compress.wrappers.error_feedback.FeedbackConfig`); null: as the method has it by default.
    ``warmup_steps``: so many first collectives of each unit go uncompressed.
    ``min_numel``: units of fewer elements always go uncompressed.
    ``layers``: other methods for some parameters, by patterns of their names; the rest goes by this method.
    """

    entropy: Literal["zstd", "rans"] | None = None
    error_feedback: bool | Mapping[str, Any] | None = None
    warmup_steps: int = 0
    min_numel: int = 0
    layers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(self.min_numel >= 0, "min_numel", self.min_numel, "0 or more")


COMMON = tuple(f.name for f in dataclasses.fields(CommonConfig))
_METHODS: dict[str, Entry] = {}
_BROKEN_PLUGINS: list[str] = []


def register(name: str, config: type, *, error_feedback: bool = False) -> Callable[[Builder], Builder]:
    """Make ``name`` known to `make`: a decorator for a class or a function.

    ``config`` is a frozen dataclass whose fields are int, float, bool, str, Mapping, Literal or optional forms
    of these, each with a default; it may refuse values in ``__post_init__`` with `require`.
    Raises ValueError when the name is taken.
    """
    if name in _METHODS or name == "none":
        raise ValueError(f"compression method {name!r} is already registered")

    def add(build: Builder) -> Builder:
        _METHODS[name] = Entry(config, build, error_feedback)
        return build

    return add


def available() -> list[str]:
    """Return the names that `make` accepts, "none" first."""
    _load()
    return ["none", *sorted(_METHODS)]


def make(method: AnyMethod, config: Mapping[str, Any] | None = None) -> Compressor | None:
    """Build a compressor from any way to say it; "none" gives None, which registers no hook at all.

    ``config``: settings beside those that ``method`` says itself. Every method also takes the settings of
    `CommonConfig`. Raises ValueError that names the offending key.
    """
    if isinstance(method, Compressor):
        if config:
            raise ValueError(f"{method.name or method!r} is built already and takes no settings, got {sorted(config)}")
        return method
    name, settings = spelled(method, config)
    if name == "none":
        if settings:
            raise ValueError(f"none takes no settings, got {sorted(settings)}: name the method that they are for")
        return None
    entry = registered(name)
    try:
        return _build(name, entry, settings)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None


def chosen(key: str, method: AnyMethod | None) -> Compressor | None:
    """Return what ``method`` builds, for the argument ``key`` of a function that takes any of its forms.

    None and "none" are no compressor. Raises ValueError that begins with ``key``.
    """
    try:
        return None if method is None else make(method)
    except ValueError as e:
        raise ValueError(f"{key}: {e}") from None


def spelled(method: AnyMethod, config: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """The registered name and the settings of ``method``, those of ``config`` among them.

    Nothing is built. Raises ValueError when no method is named, and when a setting is said twice with two values.
    """
    method = _plain(method)
    if not isinstance(method, str | Mapping):
        raise ValueError(
            f"{method!r}: must be a method's name, a label such as 'topk ratio=0.01', an object with a method and its "
            "settings, or what make built"
        )
    said = parse_label(method) if isinstance(method, str) else named(method)
    name, settings = with_settings(said, config or {})
    return name, {key: spelled_out(_plain(value)) for key, value in settings.items()}


def _plain(value: Any) -> Any:
    """Return ``value`` with a mapping in place of every compressor in it."""
    if isinstance(value, Compressor):
        if not value.name:
            raise ValueError(f"{type(value).__name__}: not built by make, so it has no name that settings could say")
        return {"method": value.name, **value.settings}
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def nested(key: str, config: AnyMethod, **further: Any) -> Compressor:
    """A compressor named inside another one's settings, with ``further`` settings where it does not say them itself.

    "none" is `identity` there. Raises ValueError that begins with ``key``.
    """
    try:
        name, settings = spelled(config)
        made = make("identity" if name == "none" else name, {**further, **settings})
    except ValueError as e:
        raise ValueError(f"{key}: {e}") from None
    assert made is not None
    return made


def registered(name: str) -> Entry:
    """The method that is registered as ``name``. Raises ValueError that suggests the nearest name."""
    if name not in _METHODS:
        known = available()
        if name not in _METHODS:
            broken = f"; plugins that failed to load: {'; '.join(_BROKEN_PLUGINS)}" if _BROKEN_PLUGINS else ""
            raise ValueError(
                f"unknown compression method {name!r}{_hint(name, known)}; known: {', '.join(known)}{broken}"
            )
    return _METHODS[name]


@functools.cache
def _load() -> None:
    """Import our methods, and what other installed packages registered; a broken one must not take the others down."""
    importlib.import_module("comm_compress.methods")  # they register as a plugin's do, by being imported
    for point in importlib.metadata.entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as e:  # whatever a stranger's module raises
            _BROKEN_PLUGINS.append(f"{point.name} ({type(e).__name__}: {e})")
            warnings.warn(f"comm_compress: plugin {point.name} failed to load: {e}", stacklevel=3)


def _build(name: str, entry: Entry, settings: dict[str, Any]) -> Compressor:
    """Build the method itself, then its wrappers from the inside out."""
    complaints = []
    common: CommonConfig | None = None
    own: Any = None
    try:
        common = parse(CommonConfig, {k: settings.pop(k) for k in COMMON if k in settings})
    except ValueError as e:
        complaints.append(str(e))
    try:
        own = parse(entry.config, settings, also_known=COMMON)
    except ValueError as e:
        complaints.append(str(e))
    if complaints:
        raise ValueError("; ".join(complaints))
    assert common is not None

    compressor = entry.build(own)
    compressor.name, compressor.settings = name, dataclasses.asdict(own)
    if common.entropy is not None:
        refusal = EntropyCoded.refusal(compressor)
        require(not refusal, "entropy", common.entropy, f"null: {refusal}")
        assert isinstance(compressor, Codec)
        compressor = EntropyCoded(compressor, common.entropy)
    by_default = feeds_back(entry, compressor)
    wants_feedback = by_default if common.error_feedback is None else common.error_feedback
    if wants_feedback is False:
        if by_default:
            compressor.settings["error_feedback"] = False
    else:
        compressor = ErrorFeedback(compressor, _feedback_config(compressor, wants_feedback))
    if common.warmup_steps or common.min_numel:
        compressor = Sparing(compressor, nested("plain", "identity"), common.warmup_steps, common.min_numel)
    if common.layers is not None:
        methods = {pattern: nested(f"layers[{pattern!r}]", c) for pattern, c in common.layers.items()}
        compressor = ByLayer(methods, rest=compressor)
    return compressor


def feeds_back(entry: Entry, compressor: Compressor) -> bool:
    """Is error feedback on around ``compressor``, which ``entry`` built, unless told otherwise?"""
    by_default = compressor.traits.feedback_by_default
    return entry.error_feedback and not compressor.traits.no_feedback if by_default is None else by_default


def _feedback_config(compressor: Compressor, wanted: Any) -> FeedbackConfig:
    if compressor.traits.lossless:
        raise ValueError("error_feedback: this method loses nothing, there is no error to feed back")
    if compressor.traits.no_feedback:
        raise ValueError(f"error_feedback: not with this method: {compressor.traits.no_feedback}")
    try:
        config: FeedbackConfig = parse(FeedbackConfig, {} if wanted is True else wanted)
    except ValueError as e:
        raise ValueError(f"error_feedback: {e}") from None
    return config


def parse(config: type, settings: Mapping[str, Any], also_known: tuple[str, ...] = ()) -> Any:
    """An instance of the dataclass ``config``; ValueError names every unknown or mistyped key."""
    hints = _hints(config)
    names = [f.name for f in dataclasses.fields(config)]
    complaints = []
    for key, value in settings.items():
        if key not in names:
            known = ", ".join([*names, *also_known])
            complaints.append(f"unknown key {key!r}{_hint(key, [*names, *also_known])}; known: {known}")
        elif not _matches(value, hints[key]):
            complaints.append(f"{key} = {value!r}: must be {said_type(hints[key])}")
    if complaints:
        raise ValueError("; ".join(complaints))
    return config(**{key: float(v) if hints[key] is float else v for key, v in settings.items()})


@functools.cache  # annotations are text, which is compiled again for each call
def _hints(config: type) -> dict[str, Any]:
    return get_type_hints(config)


def require(condition: bool, key: str, value: object, wanted: str) -> None:
    """Raise ValueError "key = value: must be wanted" unless the condition holds."""
    if not condition:
        raise ValueError(f"{key} = {value!r}: must be {wanted}")


def _matches(value: object, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_matches(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if get_origin(hint) is collections.abc.Mapping:
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def said_type(hint: Any) -> str:
    """What a setting of this type may be, in words: ``a whole number or null``."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(said_type(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is collections.abc.Mapping:
        return "an object of settings"
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a string", type(None): "null"}
    return names[hint]


def _hint(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
