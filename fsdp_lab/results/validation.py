"""Is a row what the schema asks for? Every complaint names its field."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fsdp_lab.results.derived import derived
from fsdp_lab.results.schema import BY_NAME, FIELDS, PERPLEXITY, SCHEMA_VERSION, TIMES, Field


def problems(row: Mapping[str, Any]) -> list[str]:
    """Why ``row`` is no row of this schema: one line for each reason, each naming its field; empty for a sound row."""
    unknown = [f"{name}: no such field" for name in row if name not in BY_NAME]
    missing = [f"{field.name}: missing" for field in FIELDS if _must_have(field, row) and row.get(field.name) is None]
    return unknown + missing + list(_mistyped(row)) + list(_inconsistent(row))


def _must_have(field: Field, row: Mapping[str, Any]) -> bool:
    if field.since > (row.get("migrated_from") or SCHEMA_VERSION):
        return False
    if field.required == "always":
        return True
    lost = field.name in (row.get("nonfinite_fields") or ())
    if row.get("virtual_ranks") and field.name in TIMES:
        return False
    if row.get("draft_target") and field.name in PERPLEXITY:
        return False
    return field.required == "ok" and row.get("status") == "ok" and not field.nullable and not lost


def _mistyped(row: Mapping[str, Any]) -> Iterator[str]:
    lost = row.get("nonfinite_fields") or ()
    for field in FIELDS:
        value = row.get(field.name)
        if isinstance(value, dict) and isinstance(lost, list):
            value = {key: item for key, item in value.items() if f"{field.name}.{key}" not in lost}
        if value is not None and not _fits(field.kind, value):
            yield f"{field.name}: got {str(value)[:80]!r} ({type(value).__name__}), wants {field.kind}"


def _fits(kind: str, value: Any) -> bool:
    if "|" in kind:
        return value in kind.split("|")
    if kind.startswith("object"):
        item = kind.removeprefix("object").removeprefix(" of ") or "any"
        return isinstance(value, dict) and all(isinstance(key, str) and _fits(item, value[key]) for key in value)
    if kind.startswith("list of "):
        return isinstance(value, list) and all(_fits(kind.removeprefix("list of "), item) for item in value)
    if kind == "any":
        return _is_json(value)
    types: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}
    return isinstance(value, types[kind]) and (kind == "bool" or not isinstance(value, bool))


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


def _inconsistent(row: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that contradict each other: a ratio the wrong way round, a row of another version."""
    if row.get("schema_version") not in (None, SCHEMA_VERSION):
        yield f"schema_version: got {row['schema_version']!r}, this program knows 1 to {SCHEMA_VERSION}"
    if virtual := row.get("virtual_ranks"):
        if virtual != row.get("world_size"):
            yield f"virtual_ranks: got {virtual}, but world_size is {row.get('world_size')}"
        for name in TIMES:
            if row.get(name) is not None:
                yield f"{name}: got {row[name]}, but ranks played by one process have no times"
    for name, expected in derived(row).items():
        value = row.get(name)
        if expected is None or not isinstance(value, float) or not math.isfinite(value):
            continue
        if not math.isclose(value, expected, rel_tol=1e-2):
            yield f"{name}: got {value}, but the row's counts give {expected:.4g} ({BY_NAME[name].unit})"
