"""JSON and YAML without their surprises: no NaN, no duplicate keys, and words that mean what they say.

Python's ``json`` takes NaN and lets the last of two equal keys win; YAML 1.1 reads ``no`` as false, ``010`` as 8 and
``1e-3`` as text. A setting that means something else than it says costs a training run, so both are read strictly here.
"""

import json
import math
import re
from typing import Any

import yaml

_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_FLOAT_TAG = "tag:yaml.org,2002:float"


def load_json(text: str | bytes) -> Any:
    """The value of one JSON document; ValueError for bad syntax, NaN, Infinity, overflow and duplicate keys."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("not usable JSON (nested too deeply)") from None


def load_yaml(text: str) -> Any:
    """The value of one YAML document, by YAML 1.2's rules for numbers and booleans; ValueError when malformed."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML ({' '.join(str(error).split())})") from None


def dump_yaml(values: dict[str, Any]) -> str:
    """YAML text in the order of ``values``, quoted so that YAML 1.1 and 1.2 readers agree on it."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} appears twice")
    return unique


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a float")
    return value


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - replaces YAML 1.1's; filled just below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, keys, strict=True):
            if keys.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} appears twice", key.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    pass  # keeps YAML 1.1's resolvers, so that text such as "no" is quoted


_NUMBER_START = list("-+.0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), _NUMBER_START)
_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _NUMBER_START)
_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _NUMBER_START)
