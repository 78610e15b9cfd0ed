"""What is known of the devices of a job and of the link between them: a small JSON file, measured or written by hand.

    {"devices": [{"name": "desktop", "gflops": 900, "memory_mb": 16000},
                 {"name": "laptop", "gflops": 300, "memory_mb": 8000}],
     "link": {"mbit_per_s": 940, "latency_ms": 0.2}}

is all that must be there. ``gflops``: what the device reaches in training (1e9 operations a second), not what its data
sheet says. A measured file (`measure`) also has, for each device, the seconds of a block's parts as straight lines over
the share of them, and for the link what each kind of collective takes beside the time of its bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class LinearTime(NamedTuple):
    """A time that grows with a size: ``fixed + slope * x`` seconds, both at least 0."""

    fixed: float
    slope: float

    def at(self, x: float) -> float:
        """The seconds for a size of ``x``."""
        return self.fixed + self.slope * x


@dataclass(frozen=True)
class Device:
    """What one rank has. ``memory_mb``: that it may use, ``base_mb``: what the program takes of it before there is a
    model (MB are 10^6 bytes; 0 memory: not limited). ``parts``: seconds of forward and backward by the name of a part
    (`division.PARTS`), over the share of it. ``update_ns``: nanoseconds of the optimizer for a parameter.
    """

    name: str
    gflops: float
    memory_mb: float = 0.0
    base_mb: float = 0.0
    update_ns: float = 0.0
    parts: Mapping[str, LinearTime] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkSpeed:
    """What a rank can send to the others. ``mbit_per_s``: payload, with one rank sending and receiving at once;
    ``latency_ms``: of a small message; ``burst_kb``: what passes at once after a silence (a shaper's bucket; 0 for a
    real link). ``costs``: by "kind method" (as "all_reduce none"): seconds beside the bytes' own time, over the bytes
    of the uncompressed tensor.
    """

    mbit_per_s: float
    latency_ms: float = 0.0
    burst_kb: float = 0.0
    costs: Mapping[str, LinearTime] = field(default_factory=dict)

    @property
    def bytes_per_s(self) -> float:
        """Bytes of payload that a rank can send in a second."""
        return self.mbit_per_s * 1e6 / 8


@dataclass(frozen=True)
class Devices:
    """The devices by rank, and their link. ``measured``: for which model and batch ``parts`` were (else empty)."""

    devices: Sequence[Device]
    link: LinkSpeed
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> int:
        """How many ranks there are, one a device."""
        return len(self.devices)

    def are_measured_for(self, model: str, sequences: int, length: int) -> bool:
        """Were the parts measured with this model and batch?"""
        return dict(self.measured) == {"model": model, "sequences": sequences, "length": length}

    def write(self, path: Path) -> None:
        """Write the devices as JSON, which `read` reads."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Devices:
        """Read a file. ValueError says what is missing or wrong in it."""
        try:
            document = json.loads(path.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"devices: {path} cannot be read as JSON: {error}") from None
        try:
            return cls.of(document)
        except ValueError as error:
            raise ValueError(f"devices: {path}: {error}") from None

    @classmethod
    def of(cls, document: Any) -> Devices:
        """From a file's content. ValueError says what is missing or wrong in it."""
        document = _object("the file", document, {"devices", "link", "measured"})
        listed = document.get("devices")
        if not isinstance(listed, list) or len(listed) < 2:
            raise ValueError("devices: wants a list of 2 or more, one for each rank")
        devices = [_device(f"devices[{i}]", given) for i, given in enumerate(listed)]
        return cls(devices, _link(document.get("link")), _object("measured", document.get("measured", {}), None))


def _device(where: str, given: Any) -> Device:
    given = _object(where, given, {"name", "gflops", "memory_mb", "base_mb", "update_ns", "parts"})
    return Device(
        name=str(given.get("name", where)),
        gflops=_number(where, given, "gflops", above_zero=True),
        memory_mb=_number(where, given, "memory_mb", 0.0),
        base_mb=_number(where, given, "base_mb", 0.0),
        update_ns=_number(where, given, "update_ns", 0.0),
        parts=_lines(f"{where}.parts", given.get("parts", {})),
    )


def _link(given: Any) -> LinkSpeed:
    given = _object("link", given, {"mbit_per_s", "latency_ms", "burst_kb", "costs"})
    return LinkSpeed(
        _number("link", given, "mbit_per_s", above_zero=True),
        _number("link", given, "latency_ms", 0.0),
        _number("link", given, "burst_kb", 0.0),
        _lines("link.costs", given.get("costs", {})),
    )


def _object(where: str, given: Any, known: set[str] | None) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: wants an object with names and values, got {given!r}")
    if known is not None and (strange := sorted(given.keys() - known)):
        raise ValueError(f"{where}: {strange[0]!r} is not known; known: {', '.join(sorted(known))}")
    return given


def _number(
    where: str, given: Mapping[str, Any], key: str, default: float | None = None, above_zero: bool = False
) -> float:
    value = given.get(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is None or not is_number or value < 0 or (above_zero and value == 0):
        raise ValueError(f"{where}: {key} is {value!r}, wants a number {'above 0' if above_zero else 'of 0 or more'}")
    return float(value)


def _lines(where: str, given: Any) -> dict[str, LinearTime]:
    lines = {}
    for name, pair in _object(where, given, None).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{where}: {name} is {pair!r}, wants two numbers, [fixed, slope]")
        both = {"fixed": pair[0], "slope": pair[1]}
        lines[name] = LinearTime(*(_number(f"{where}: {name}", both, key) for key in both))
    return lines
