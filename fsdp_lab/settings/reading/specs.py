"""One setting: its type, its limits, and how the text of a flag or a YAML value becomes its value."""

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsdp_lab.settings.reading.method_flags import text_of
from fsdp_lab.settings.reading.strict import NotJSONError, load_json

_NOUNS = {int: "a whole number", float: "a number", str: "some text", bool: "true or false", dict: "a JSON object"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_FLOAT_LIMIT = 10**308
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
}


def setting(default: Any, help: str, *, affects_training: bool = True, also: str | None = None, **limits: Any) -> Any:
    """A dataclass field with its help text; ``also`` is another name that its flag and its YAML key may have.

    ``limits`` are any of at_least, above, at_most, below (numbers), choices (texts), pattern (a regular expression
    and its description), method (a text that names one: an object with a method and its settings will do), numbers (a
    text of several, by commas: a list will do), exists ("file" or "folder", which has to be there when a run starts,
    and words that are no path), or others (words that an object may be replaced by: such a word becomes
    ``{"others": word}``). A setting with ``affects_training=False`` is left out of the config's digest.
    """
    unknown = limits.keys() - {*_COMPARE, "choices", "pattern", "method", "numbers", "exists", "others"}
    assert not unknown, f"no such limit: {unknown}"
    metadata = {"help": help, "affects_training": affects_training, "also": also, "limits": limits}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Spec:
    """One setting: its name, the values it takes, and its help text. ``base`` is int, float, str, bool or dict."""

    name: str
    base: type
    optional: bool
    default: Any
    help: str
    affects_training: bool
    also: str | None
    limits: Mapping[str, Any]

    @property
    def wanted(self) -> str:
        """The values that the setting takes, for a message: ``a whole number, at least 1``."""
        if "choices" in self.limits:
            return "one of " + ", ".join(self.limits["choices"])
        phrases = [f"{limit.replace('_', ' ')} {self.limits[limit]}" for limit in _COMPARE if limit in self.limits]
        if "pattern" in self.limits:
            phrases.append(self.limits["pattern"][1])
        if "others" in self.limits:
            phrases.append("or one of " + ", ".join(self.limits["others"]))
        none = " (or none)" if self.optional and self.base is not str else ""
        return ", ".join([_NOUNS[self.base], *phrases]) + none

    def from_text(self, text: str) -> Any:
        """The value that the text of a flag stands for; ValueError says what the setting takes."""
        if self.optional and self.base is not str and text.lower() in ("none", "null"):
            return None
        if self.base is dict and text not in self.limits.get("others", ()):
            try:
                return self.check(load_json(text))
            except NotJSONError as error:
                raise ValueError(f"{error}; wants {self.wanted}") from None
        return self.check(_number(text) if self.base in (int, float) else text)

    def check(self, value: Any) -> Any:
        """``value`` in the type of this setting, where the conversion is exact; ValueError when it does not fit."""
        if value is None and self.optional:
            return None
        if self.base is bool and isinstance(value, str):
            value = _BOOLEANS.get(value.lower(), value)
        if self.base is float and type(value) is int and abs(value) < _FLOAT_LIMIT:
            value = float(value)
        if "method" in self.limits:
            value = text_of(value)
        if "numbers" in self.limits and isinstance(value, list):
            value = ",".join(map(str, value))
        if isinstance(value, str) and value in self.limits.get("others", ()):
            value = {"others": value}
        if self.base is int and type(value) is int and value.bit_length() > 63:
            raise ValueError(f"wants {self.wanted}; it does not fit in 64 bits")
        if type(value) is not self.base or not self._within(value):
            raise ValueError(f"wants {self.wanted}")
        return value

    def _within(self, value: Any) -> bool:
        if self.base is dict:
            return _is_json_object(value)
        if self.base is float and not math.isfinite(value):
            return False
        if "choices" in self.limits:
            return bool(value in self.limits["choices"])
        if "pattern" in self.limits:
            return re.fullmatch(self.limits["pattern"][0], value) is not None
        if self.base is str:
            return bool(value)
        return all(holds(value, self.limits[name]) for name, holds in _COMPARE.items() if name in self.limits)


def specs_of(group: type[Any]) -> tuple[Spec, ...]:
    """The settings of one dataclass of ``setting`` fields, in the order of their definition."""
    return _specs_of(group)  # type: ignore[arg-type]  # a class has a hash, whatever its instances have


@functools.cache  # type hints take longer to resolve than a command line to read
def _specs_of(group: Any) -> tuple[Spec, ...]:
    hints = typing.get_type_hints(group)
    return tuple(_spec(field, hints[field.name]) for field in dataclasses.fields(group))


def _spec(field: "dataclasses.Field[Any]", hint: Any) -> Spec:
    optional = isinstance(hint, types.UnionType)
    inner = next(t for t in typing.get_args(hint) if t is not type(None)) if optional else hint
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return Spec(field.name, typing.get_origin(inner) or inner, optional, default, **field.metadata)


def _number(text: str) -> int | float | str:
    """Decimal text as a number; other text unchanged (also 1_000, which Python accepts and YAML and JSON do not)."""
    if re.fullmatch(r"[-+]?[0-9]{1,300}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text) else text


def _is_json_object(value: dict[Any, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)  # false also for keys that are not text
    except (TypeError, ValueError, RecursionError):
        return False
