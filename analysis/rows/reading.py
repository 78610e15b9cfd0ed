"""Results rows as they are read: what is no sound row is left out by line, and a selection says what emptied it.

A row holds whatever the trainer wrote (`python -m fsdp_lab.results fields`); the columns that comparisons cannot do
without are checked here, so that nothing after this has to ask whether ``seed`` is a number.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from analysis.rows.garbage import collector_disabled
from analysis.rows.nearest import nearest

SCHEMA_VERSIONS = (3, 4)  # that are read as they are; those before 3 have to be converted
_NUMBER = (int, float)
_ALWAYS: dict[str, Any] = {
    "status": str,
    "run_name": str,
    "time_utc": str,
    "world_size": int,
    "compress_method": str,
    "seed": int,
    "config": dict,
}
_WHEN_OK: dict[str, Any] = {"steps": int, "num_parameters": int}
_OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(("val_loss", "val_ppl", "train_loss", "tokens_per_s", "comm_ratio"), _NUMBER),
    **dict.fromkeys(("step_time_ms_mean", "step_time_ms_p50", "wall_time_s", "train_time_s"), _NUMBER),
    **dict.fromkeys(("time_to_target_ppl_s", "ppl_at_fixed_time", "link_rate_asked", "link_delay_ms"), _NUMBER),
    **dict.fromkeys(("bytes_compressed_total", "tokens_seen", "dataset_tokens", "val_tokens"), _NUMBER),
    **dict.fromkeys(("bytes_compressed_by_op", "bytes_raw_by_op", "elements_by_op", "hardware", "versions"), dict),
    **dict.fromkeys(("warmup_steps_excluded", "interface_steps", "interface_bytes_total", "grad_rel_error"), _NUMBER),
    **dict.fromkeys(("tau", "tau_step", "tau_prompts"), _NUMBER),
    "draft_target": str,
    **dict.fromkeys(("nonfinite_fields", "side_settings"), list),
    **dict.fromkeys(("compress_config", "param_compress_config", "arm_settings"), dict),
    **dict.fromkeys(("loss_curve", "param_compress_method", "comm_dtype", "git_commit", "data_digest"), str),
    "git_dirty": bool,
}
_CONFIG: dict[str, Any] = {
    **dict.fromkeys(("comm_compress", "param_compress", "comm_dtype"), str),
    **dict.fromkeys(("comm_config_json", "param_config_json"), dict),
    "fsdp_prefetch": int,
    "fsdp_reshard": bool,
}
_LARGEST = 2**63  # of a whole number: beyond it is no count
_SHOWN = 8  # values in a message
_NAMED = 10  # lines that were left out


@dataclass(frozen=True, eq=False)
class Row(Mapping[str, Any]):
    """One run. ``file`` and ``line`` say where it stood, for messages and to find what lies beside it."""

    values_by_name: Mapping[str, Any]
    file: Path = Path()
    line: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or ``default`` where there is no such column."""
        return self.values_by_name.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.values_by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    @property
    def curve(self) -> Path | None:
        """The file of its loss curve, which need not exist; None when the row names none."""
        name = self.get("loss_curve")
        return self.file.parent / name if name else None

    def setting(self, name: str) -> Any:
        """A column or, where there is none of that name, a setting of ``config``; None where it has neither."""
        return self[name] if name in self else self["config"].get(name)


@dataclass(frozen=True)
class Read:
    """The rows of some files. ``rows`` are of language models, ``drafts`` of drafts, which have no perplexity.

    ``left_out`` has one line of text, with file and line number, for each line that is no sound row."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    drafts: list[Row] = field(default_factory=list)


def read(paths: str | Path | Iterable[str | Path]) -> Read:
    """The sound rows of JSON-lines files, in order. ValueError when a file cannot be read at all.

    Rows that failed are rows. A NaN (which our own writer never writes) stays one, so that the run counts as diverged.
    """
    result, shared = Read(), _Shared()
    for path in [paths] if isinstance(paths, str | Path) else paths:
        file = Path(path)
        try:
            with file.open("rb") as lines, collector_disabled():
                _read_lines(lines, file, result, shared)
        except OSError as error:
            raise ValueError(f"cannot read {file} ({error.strerror}); name a results file (JSON lines)") from None
    return result


def _read_lines(lines: Iterable[bytes], file: Path, result: Read, shared: _Shared) -> None:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row, why = _parse(line, shared)
            if why is None:
                (result.drafts if is_draft(row) else result.rows).append(Row(row, file, number))
            else:
                result.left_out.append(f"{file}, line {number}: {why}")


class _Shared:
    """Keeps one copy of every text that many rows have: above all names of columns, most of a row's memory."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self.decoder = json.JSONDecoder(object_pairs_hook=self._object)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        one = self._texts.setdefault
        return {one(name, name): one(value, value) if type(value) is str else value for name, value in pairs}


def read_all(paths: str | Path | Iterable[str | Path]) -> list[Row]:
    """The sound rows of both kinds; what was left out is printed to stderr. ValueError when no row is sound."""
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    result = read(paths)
    _say_what_was_left_out(result)
    rows = [*result.rows, *result.drafts]
    if not rows:
        first = f"; the first: {result.left_out[0]}" if result.left_out else ""
        count = counted(len(result.left_out), "line")
        raise ValueError(f"{', '.join(map(str, paths))} holds no sound row ({count} left out{first})")
    return rows


def read_for_user(
    paths: Iterable[str | Path], wanted: Mapping[str, Any] | None = None, drafts: bool = False
) -> list[Row]:
    """`read` and `select` for a command line: what was left out, and how much, is printed to stderr.

    ``drafts``: the rows of drafts instead of those of language models. ValueError when no row remains."""
    paths = list(paths)
    result = read(paths)
    _say_what_was_left_out(result)
    mine, others = (result.drafts, result.rows) if drafts else (result.rows, result.drafts)
    what, program = ("language models", "tables") if drafts else ("drafts", "drafts")
    elsewhere = f"{len(others)} rows are of {what}: fsdp-lab {program} reads those"
    if not mine:
        kind = "row of a draft" if drafts else "row of a language model" if others else "sound row"
        raise ValueError(f"{', '.join(map(str, paths))} holds no {kind}" + (f"; {elsewhere}" if others else ""))
    if others:
        print(elsewhere, file=sys.stderr)
    return select(mine, **(wanted or {}))


def _say_what_was_left_out(result: Read) -> None:
    for line in result.left_out[:_NAMED]:
        print(f"left out: {line}", file=sys.stderr)
    if result.left_out:
        read_rows = len(result.rows) + len(result.drafts)
        print(f"{counted(len(result.left_out), 'line')} left out, rows read: {read_rows}", file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """A number of things in words: ``counted(1, "line")`` is "1 line", and of 1,200 "1,200 lines"."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows whose columns (or, by the same names, ``config`` settings) have the values asked for.

    ``seed=1`` or, for any of several, ``seed=[1, 2]``; None asks for null. ValueError names the first filter that
    leaves nothing, and which values there were."""
    left = list(rows)
    for name, value in wanted.items():
        if left and not any(name in row or name in row["config"] for row in left):
            known = {column for row in left for column in (*row, *row["config"])}
            raise ValueError(f"select {name}: no row has a column or setting of that name{nearest(name, known)}")
        allowed = list(value) if isinstance(value, list | tuple | set | frozenset | range) else [value]
        kept = [row for row in left if row.setting(name) in allowed]
        if left and not kept:
            there = list(dict.fromkeys(_shown(row.setting(name)) for row in left))
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            asked = ", ".join(_shown(v) for v in allowed)
            raise ValueError(
                f"select {name}={asked}: none of the {len(left)} rows left has it; they have "
                + ", ".join(there[:_SHOWN])
                + more
            )
        left = kept
    return left


def parse_selection(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Texts such as ``["seed=1,2", "model=gpt2-nano"]`` as `select` takes them.

    Values are JSON where they can be, otherwise text."""
    wanted: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--select: got {text!r}, wants COLUMN=VALUE or COLUMN=VALUE,VALUE")
        wanted.setdefault(name.strip(), []).extend(_values(values))
    return wanted


def _values(text: str) -> list[Any]:
    whole = _value(text)
    return [whole] if isinstance(whole, dict) else [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse(line: bytes, shared: _Shared) -> tuple[dict[str, Any], str | None]:
    """The row that the line holds and, where it holds no sound one, the reason."""
    try:
        row = shared.decoder.decode(line.decode("utf-8-sig" if line.startswith(b"\xef\xbb\xbf") else "utf-8"))
    except (ValueError, RecursionError):  # also bytes that are not UTF-8
        return {}, "not whole JSON (a run killed while writing leaves half a line)"
    if not isinstance(row, dict):
        return {}, f"not a JSON object but {type(row).__name__}"
    version = row.get("schema_version")
    if version not in SCHEMA_VERSIONS:
        if version is None:
            return {}, "no schema_version: not a results row"
        if isinstance(version, int) and version < SCHEMA_VERSIONS[0]:
            advice = "convert the file with fsdp-lab results migrate FILE --out NEW"
        else:
            advice = "it was written by a newer program; update this one"
        return {}, f"schema version {version!r}, this program reads {' and '.join(map(str, SCHEMA_VERSIONS))}; {advice}"
    complaints = list(_complaints(row))
    return row, "; ".join(complaints) or None


def _complaints(row: Mapping[str, Any]) -> Iterator[str]:
    ended_well = row.get("status") == "ok"
    required = _ALWAYS | (_WHEN_OK if ended_well else {})
    missing = [name for name in required if row.get(name) is None]
    if missing:
        yield f"no {', '.join(missing)}"
    yield from _mistyped(row, _ALWAYS | _WHEN_OK | _OPTIONAL)
    if isinstance(row.get("config"), dict):
        yield from _mistyped(row["config"], _CONFIG, "config.")
    quality = "tau" if is_draft(row) else "val_loss"
    if ended_well and row.get(quality) is None and quality not in (row.get("nonfinite_fields") or []):
        advice = " (trained without --eval_data?)" if quality == "tau" else ""
        yield f"no {quality} although it ended well{advice}"


def _mistyped(values: Mapping[str, Any], kinds: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name, kind in kinds.items():
        value = values.get(name)
        if value is None or (type(value) is kind and kind is not int):
            continue  # so nearly all are
        is_it = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not is_it or (isinstance(value, int) and abs(value) > _LARGEST):
            yield f"{within}{name} is {_shown(value)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def is_draft(row: Mapping[str, Any]) -> bool:
    """Is it the row of a draft's training?"""
    return row.get("draft_target") is not None


def is_number(value: Any) -> TypeGuard[float]:
    """Is it a finite number? Null, NaN, infinities, absurdly large whole numbers and truth values are not."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= _LARGEST
    return isinstance(value, float) and math.isfinite(value)
