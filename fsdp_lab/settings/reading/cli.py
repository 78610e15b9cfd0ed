"""Flags and YAML files into settings: flags win over ``--config FILE``, the file over the defaults."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fsdp_lab.settings.flags import Parser, as_typed
from fsdp_lab.settings.reading.fields import Config, ConfigError
from fsdp_lab.settings.reading.specs import Spec, specs_of
from fsdp_lab.settings.reading.strict import read_yaml

C = TypeVar("C", bound=Config)
_NO_VALUE = object()  # a flag at the end of the line or before another flag


def parse_as(config: type[C], argv: Sequence[str], prog: str = "fsdp_lab.train") -> C:
    """The ``config`` that ``argv`` asks for; ConfigError lists all mistakes. ``--help`` prints all flags and exits."""
    values, complaints = read(config, argv, prog)
    groups, further = config.built(values)
    if complaints or further:
        raise ConfigError(complaints + further)
    return config(**groups)


def given_by(config: type[Config], argv: Sequence[str], prog: str) -> dict[str, Any]:
    """Only the settings that ``argv`` and its file give, by name. ConfigError lists all mistakes."""
    values, complaints = read(config, argv, prog)
    if complaints:
        raise ConfigError(complaints)
    return values


def read(config: type[Config], argv: Sequence[str], prog: str) -> tuple[dict[str, Any], list[str]]:
    """The settings that ``argv`` and its file give, by name, and complaints about those that cannot be read."""
    if not {"-h", "--help"}.isdisjoint(argv):
        _parser(config, prog, nargs=None).print_help()
        raise SystemExit(0)
    given, extras = _parser(config, prog, nargs="?").parse_known_args(list(argv))
    complaints = _unknown_flags(extras, config)
    file = vars(given).pop("config", None)
    values = _from_file(file, config.specs(), complaints) if file is not None else {}
    values |= _from_flags(_by_own_name(vars(given), config.specs(), complaints, "--"), config.specs(), complaints)
    return values, complaints


def _by_own_name(
    given: Mapping[Any, Any], specs: Mapping[str, Spec], complaints: list[str], prefix: str = ""
) -> dict[Any, Any]:
    """``given`` with every setting's own name in place of its other one; a setting given by both is complained of."""
    values = dict(given)
    for spec in specs.values():
        if spec.also in values:
            other = values.pop(spec.also)
            if spec.name in values:
                complaints.append(
                    f"{prefix}{spec.also}, {prefix}{spec.name}: two names of one setting; give one of them"
                )
            values[spec.name] = other
    return values


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


def _parser(config: type[Config], prog: str, nargs: str | None) -> _Parser:
    """A parser whose flags keep their texts: types are checked later, together with those of the file.

    With ``nargs="?"`` argparse accepts a missing value, so that it is reported with all other mistakes.
    """
    usage = as_typed(f"python -m {prog} [--config FILE.yaml] [--FLAG VALUE]...")
    epilog = (
        "A true|false flag may also be given as --FLAG and --no_FLAG. Flags win over the file. Dashes are as good as "
        "underscores."
    )
    parser = _Parser(prog=prog, usage=usage, epilog=epilog, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument(
        "--config",
        metavar="FILE",
        nargs=nargs,
        const=_NO_VALUE if nargs else None,
        help="YAML file of flag names and values",
    )
    for group in config.groups().values():
        section = parser.add_argument_group((group.__doc__ or "").rstrip("."))
        for spec in specs_of(group):
            _add_flag(section, spec, nargs)
    return parser


def _add_flag(section: Any, spec: Spec, nargs: str | None) -> None:
    text = f"{spec.help} (default: {shown(spec.default) or 'none'})".replace("%", "%%")
    if spec.base is bool:
        section.add_argument(f"--{spec.name}", nargs="?", const="true", metavar="true|false", help=text)
        section.add_argument(
            f"--no_{spec.name}", dest=spec.name, action="store_const", const="false", help=argparse.SUPPRESS
        )
    else:
        metavar = "|".join(spec.limits["choices"]) if "choices" in spec.limits else _METAVARS[spec.base]
        for name in filter(None, (spec.name, spec.also)):
            help_text = text if name == spec.name else f"another name of --{spec.name}"
            section.add_argument(
                f"--{name}", nargs=nargs, const=_NO_VALUE if nargs else None, metavar=metavar, help=help_text
            )


_METAVARS = {int: "N", float: "X", str: "TEXT", dict: "JSON"}


def _from_flags(given: Mapping[str, Any], specs: Mapping[str, Spec], complaints: list[str]) -> dict[str, Any]:
    values = {}
    for name, text in given.items():
        if text is _NO_VALUE:
            complaints.append(f"--{name}: no value on the command line, wants {specs[name].wanted}")
            continue
        try:
            values[name] = specs[name].from_text(text)
        except ValueError as error:
            complaints.append(f"--{name}: got {text!r} on the command line, {error}")
    return values


def _from_file(file: Any, specs: Mapping[str, Spec], complaints: list[str]) -> dict[str, Any]:
    try:
        loaded = _load_file(file)
    except ValueError as error:
        complaints.append(f"--config: {error}")
        return {}
    values = {}
    for name, value in _by_own_name(loaded, specs, complaints).items():
        if name not in specs:
            complaints.append(f"{name}: no such setting (in {file}){closest(str(name), specs)}")
            continue
        try:
            values[name] = specs[name].check(value)
        except ValueError as error:
            complaints.append(f"{name}: got {value!r} in {file}, {error}")
    return values


def _load_file(file: Any) -> dict[Any, Any]:
    if file is _NO_VALUE:
        raise ValueError("no value on the command line, wants the path of a YAML file")
    try:
        loaded = read_yaml(Path(file))
    except OSError as error:
        raise ValueError(f"cannot read {file} ({error.strerror})") from None
    except ValueError as error:  # malformed YAML, or not UTF-8
        raise ValueError(f"{file}: {error}") from None
    if loaded is not None and not isinstance(loaded, dict):
        raise ValueError(f"{file}: wants lines such as `batch_size: 8`, got {type(loaded).__name__}")
    return loaded or {}


def _unknown_flags(extras: Sequence[str], config: type[Config]) -> list[str]:
    complaints, value_follows = [], False
    for word in extras:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            name = flag.lstrip("-").replace("-", "_")
            why = next((f"; {why}" for begin, why in config.foreign().items() if name.startswith(begin)), "")
            complaints.append(f"{flag}: no such flag{why or closest(name, config.specs(), '--')}")
        elif not value_follows:
            complaints.append(f"{word!r}: a word that belongs to no flag")
        value_follows = word.startswith("-") and "=" not in word
    return complaints


def closest(name: str, specs: Mapping[str, Spec], prefix: str = "") -> str:
    """``; did you mean --batch_size?``, or an empty text where no setting has a name like ``name``."""
    known = [*specs, *(spec.also for spec in specs.values() if spec.also)]
    if prefix:
        known += [f"no_{spec.name}" for spec in specs.values() if spec.base is bool]
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def shown(value: Any) -> str:
    """A value as text for a shell script or a help text; empty for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
