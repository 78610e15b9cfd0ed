"""A rank that is started by hand on its machine, without torchrun: who it is, and where the ranks meet.

    fsdp-lab train --rank 1 --world 2 --master 10.0.0.1:29500 --config rank1.yaml
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python -m fsdp_lab.train --config rank1.yaml

torchrun says LOCAL_RANK besides, and so does every launcher that follows it; who starts ranks by hand need not know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fsdp_lab.settings.reading.fields import ConfigError

DEFAULT_PORT = 29500
_VARIABLES = {"rank": "RANK", "world": "WORLD_SIZE", "master_addr": "MASTER_ADDR", "master_port": "MASTER_PORT"}
_A_LAUNCHERS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "FSDP_LAB_LAUNCHER")


@dataclass(frozen=True)
class Place:
    """Rank ``rank`` of ``world``, which meet at ``host`` and ``port``: an address of rank 0's machine."""

    rank: int
    world: int
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def variables(self) -> dict[str, str]:
        """The environment variables that say the same."""
        values = (self.rank, self.world, self.host, self.port)
        return {variable: str(value) for variable, value in zip(_VARIABLES.values(), values, strict=True)}


def is_by_hand(environment: Mapping[str, str]) -> bool:
    """Does the environment name a rank that no launcher has started?"""
    return "RANK" in environment and "LOCAL_RANK" not in environment


def environment_of(place: Place, environment: Mapping[str, str]) -> dict[str, str]:
    """The ``environment`` in which a trainer knows that it was started by hand for ``place``."""
    inherited = {name: value for name, value in environment.items() if name not in _A_LAUNCHERS}
    return {**inherited, **place.variables()}


def place_of(environment: Mapping[str, str], **flags: str | int | None) -> Place:
    """The place that the ``environment`` and ``flags`` (rank, world, master_addr, master_port) name together.

    ConfigError lists what is missing, no number, out of range, or said twice and not alike.
    """
    complaints: list[str] = []
    said = {name: _one_of(name, flags.get(name), environment, complaints) for name in _VARIABLES}
    rank, world = _number("rank", said, 0, complaints), _number("world", said, 1, complaints)
    port = _number("master_port", {"master_port": said["master_port"] or str(DEFAULT_PORT)}, 1, complaints)
    if rank is not None and world is not None and rank >= world:
        complaints.append(f"rank: got {rank}, wants 0 to {world - 1}, as there are {world} ranks (--world, WORLD_SIZE)")
    if port is not None and port > 65535:
        complaints.append(f"master_port: got {port}, wants 1 to 65535")
    host = said["master_addr"]
    if host is None and world != 1:
        complaints.append("no master address: give --master HOST:PORT (or MASTER_ADDR), an address of rank 0's machine")
    if complaints or rank is None or world is None or port is None:
        raise ConfigError(complaints)
    return Place(rank, world, host or Place.host, port)


def split_address(text: str) -> tuple[str, str | None]:
    """``HOST:PORT``, ``HOST`` or ``[IPv6]:PORT`` as host and port (None: not given). ValueError for anything else."""
    if (match := re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+))(?::(\d{1,5}))?", text)) is None:
        raise ValueError(f"--master: got {text!r}, wants HOST:PORT, such as 10.0.0.1:29500, or [fe80::1]:29500")
    return match[1] or match[2], match[3]


def _one_of(name: str, flag: str | int | None, environment: Mapping[str, str], complaints: list[str]) -> str | None:
    variable = _VARIABLES[name]
    in_environment = environment.get(variable)
    if flag is not None and in_environment is not None and str(flag) != in_environment:
        complaints.append(f"{name}: --{name} is {flag}, {variable} in the environment is {in_environment}; say one")
    return str(flag) if flag is not None else in_environment


def _number(name: str, said: Mapping[str, str | None], least: int, complaints: list[str]) -> int | None:
    text = said[name]
    if text is None:
        complaints.append(f"{name}: not given; say it with --{name} or {_VARIABLES[name]}")
    elif not re.fullmatch(r"\d{1,6}", text) or int(text) < least:
        complaints.append(f"{name}: got {text!r}, wants a whole number, at least {least}")
    else:
        return int(text)
    return None
