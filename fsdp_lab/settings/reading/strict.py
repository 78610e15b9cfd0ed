"""JSON and YAML without their surprises: no NaN, no duplicate keys, and no text read as something else.

Python's ``json`` takes NaN and lets the last of two equal keys win; YAML 1.1 reads ``no`` as false, ``010`` as 8 and
``1e-3`` as text. A setting that is misread costs a training run, so both formats are read strictly here. A stranger may
have written the file: what is nested deeper, is larger or has larger numbers than any setting is refused before it
costs memory or breaks other code.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_FLOAT_TAG = "tag:yaml.org,2002:float"
_DEEPEST = 100  # levels of lists and mappings
_MOST_VALUES = 10_000  # of a YAML document, each counted as often as aliases (*name) repeat it
_LARGEST_YAML = 1 << 20  # bytes
_SHOWN = 100  # characters of a wrong value that a message shows
WHOLE_NUMBERS = range(-(2**63), 2**64)
"""The whole numbers that fit in 64 bits, with or without a sign: torch, numpy and floats take them without overflow."""


class NotJSONError(ValueError):
    """Text that is no JSON at all."""


class _TooLargeError(ValueError):
    """A whole number of more than 64 bits."""


def load_json(text: str | bytes) -> Any:
    """The value of one JSON document.

    ValueError for bad syntax, NaN, Infinity, numbers that overflow (whole ones: 64 bits), duplicate keys, deep nesting.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
        )
    except json.JSONDecodeError as error:
        raise NotJSONError(f"not valid JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("not usable JSON (nested too deeply)") from None
    if _may_be_deep(text) and _depth_exceeds(value, _DEEPEST):
        raise ValueError(f"not usable JSON (nested too deeply: more than {_DEEPEST} levels)")
    return value


def load_yaml(text: str) -> Any:
    """The value of one YAML document, by YAML 1.2's rules for numbers and booleans.

    ValueError for bad syntax, for whole numbers beyond 64 bits, and for more nesting, text or repetition (aliases)
    than settings can have.
    """
    if len(text) > _LARGEST_YAML:
        raise ValueError(f"not usable YAML ({len(text):,} characters; {_LARGEST_YAML:,} are the most)")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML ({short(' '.join(str(error).split()), 400)})") from None
    except _TooLargeError as error:
        raise ValueError(f"not usable YAML ({error})") from None
    except Exception as error:  # PyYAML's constructors raise any exception, for `!!bool x`
        raise ValueError(f"not valid YAML (a value is not what its tag says: {short(str(error), 400)})") from None


def read_yaml(path: Path) -> Any:
    """`load_yaml` of a UTF-8 file, of which no more is read than settings can have. Raises OSError or ValueError."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_YAML + 1)
    if len(content) > _LARGEST_YAML:
        raise ValueError(f"not usable YAML (more than {_LARGEST_YAML:,} bytes)")
    return load_yaml(content.decode("utf-8"))


def dump_yaml(values: dict[str, Any]) -> str:
    """YAML text in the order of ``values``, quoted so that YAML 1.1 and 1.2 readers agree on it."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def short(text: str, most: int = _SHOWN) -> str:
    """``text`` for a message: no longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError(f"key {_twice(key for key, _ in pairs)!r} appears twice")
    return unique


def _twice(keys: Iterable[str]) -> str:
    return next(key for key, count in Counter(keys).items() if count > 1)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{short(text)} is too large for a float")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or int(text) not in WHOLE_NUMBERS:  # 20: the sign and 19 digits, or 20 of an unsigned one
        raise _TooLargeError(f"{short(text)} is too large for a whole number of 64 bits")
    return int(text)


def _may_be_deep(text: str | bytes) -> bool:
    opened = (text.count(b"[") + text.count(b"{")) if isinstance(text, bytes) else (text.count("[") + text.count("{"))
    return opened > _DEEPEST


def _depth_exceeds(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        inner = [item for item in level if isinstance(item, dict | list)]
        if not inner:
            return False
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return True


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - replaces YAML 1.1's; filled just below

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}  # values below a node that is whole, by the node's id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes the next node; an alias counts as all values that it stands for."""
        before, is_alias = self._values, self.check_event(yaml.AliasEvent)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._values, self._depth = self._values + 1, self._depth + 1
        if self._depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"more than {_DEEPEST} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:
            if id(node) not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias of what it lies in", event.start_mark)
            self._values += self._sizes[id(node)]
        if self._values > _MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_VALUES:,} values", event.start_mark)
        if not is_alias:
            self._sizes[id(node)] = self._values - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            name = _twice(keys)
            mark = next(key.start_mark for key, _ in node.value if key.value == name)
            raise yaml.constructor.ConstructorError(None, None, f"key {name!r} appears twice", mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return _whole(text.removeprefix("+"))


class _Dumper(yaml.SafeDumper):
    """Keeps YAML 1.1's resolvers, so that text such as "no" is quoted, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_NUMBER_START = list("-+.0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), _NUMBER_START)
_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _NUMBER_START)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _NUMBER_START)
