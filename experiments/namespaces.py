"""A network for ranks on one machine: a namespace and an address for each, all joined by a switch, links shaped.

    rank 0: eth0 --tbf--> p0 \
    rank 1: eth0 --tbf--> p1  br0      (the switch is a namespace of its own, so nothing touches the host's network)
    rank 2: eth0 --tbf--> p2 /

tbf limits what a rank sends, which is what a full-duplex card of that rate looks like; a delay (netem) is added on the
switch's side, once a direction. The interface's own counters are the independent check of any byte count.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Self

from experiments.ranks import wait_together

_MASTER_PORT = 29500  # free by construction: every run has its own network
_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class UnavailableError(ValueError):
    """This machine or user cannot have network namespaces or the shaping that was asked for."""


class Namespaces:
    """Context manager: ``with Namespaces(ranks=2, rate="200mbit") as net: net.run(["python", "program.py"])``.

    ``rate`` is a rank's sending rate ("none": unlimited), ``delay`` one way's extra latency. ValueError for malformed
    ones, UnavailableError (a ValueError too) when the machine cannot do it. Names are unique; all is removed at exit.
    """

    def __init__(self, ranks: int = 2, rate: str = "none", delay: str = "0ms") -> None:
        if not 1 <= ranks <= 200:
            raise ValueError(f"ranks: got {ranks}, wants 1 to 200")
        self.ranks, self.rate, self.delay = ranks, rate, delay
        self._bits_per_s = parse_rate(rate)
        self._delay_s = parse_delay(delay)
        self._tag = f"links{os.getpid()}-{secrets.token_hex(3)}"

    def __enter__(self) -> Self:
        _require_tools()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._remove()

    def name(self, rank: int) -> str:
        """The rank's namespace, as ``ip netns`` lists it."""
        return f"{self._tag}-r{rank}"

    def address(self, rank: int) -> str:
        """The rank's IPv4 address, reachable from every other rank."""
        return f"10.77.0.{rank + 1}"

    def environment(self, rank: int) -> dict[str, str]:
        """What torch.distributed and the communication libraries must know to use the rank's link.

        Ranks share this machine's cores and GPUs, hence LOCAL_RANK and LOCAL_WORLD_SIZE; NCCL's short cuts past the
        network are closed.
        """
        threads = max(1, len(os.sched_getaffinity(0)) // self.ranks)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(_MASTER_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        }

    def start(
        self, rank: int, command: Sequence[str], env: Mapping[str, str] | None = None, **popen: Any
    ) -> "subprocess.Popen[Any]":
        """Starts the command in the rank's namespace, in a process group of its own (``popen``: as for Popen)."""
        environment = {**os.environ, **self.environment(rank), **(env or {})}
        line = ["ip", "netns", "exec", self.name(rank), *command]
        return subprocess.Popen(line, env=environment, start_new_session=True, **popen)

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, grace_s: float = 5) -> int:
        """Runs the command once per rank; returns 0, or the exit code of the first rank that failed.

        When one fails, the others have ``grace_s`` seconds to notice before they are ended.
        """
        return wait_together((self.start(rank, command, env) for rank in range(self.ranks)), grace_s)

    def tx_bytes(self, rank: int) -> int:
        """Bytes that the rank's interface has sent so far, headers included."""
        return int(self._statistics(rank)["tx"]["bytes"])

    def rx_bytes(self, rank: int) -> int:
        """Bytes that the rank's interface has received so far, headers included."""
        return int(self._statistics(rank)["rx"]["bytes"])

    def _statistics(self, rank: int) -> dict[str, Any]:
        text = _command("ip", "-n", self.name(rank), "-s", "-j", "link", "show", "dev", "eth0")
        found: dict[str, Any] = json.loads(text)[0]["stats64"]
        return found

    def _build(self) -> None:
        switch = f"{self._tag}-sw"
        _command("ip", "netns", "add", switch)
        _command("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _command("ip", "-n", switch, "link", "set", "br0", "up")
        for rank in range(self.ranks):
            self._plug_in(rank, switch)

    def _plug_in(self, rank: int, switch: str) -> None:
        namespace, port = self.name(rank), f"p{rank}"
        _command("ip", "netns", "add", namespace)
        _command("ip", "-n", namespace, "link", "set", "lo", "up")
        _command("ip", "-n", namespace, *f"link add eth0 type veth peer name {port} netns {switch}".split())
        _command("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
        _command("ip", "-n", namespace, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0")
        _command("ip", "-n", namespace, "link", "set", "eth0", "addrgenmode", "none")  # no IPv6 chatter in the counters
        _command("ip", "-n", namespace, "link", "set", "eth0", "up")
        if self._bits_per_s is not None:
            # The bucket holds 5 ms: small enough for short messages to be shaped, not below one 64 KiB segment.
            burst = max(int(self._bits_per_s / 8 * 5e-3), 1 << 16)
            rate = f"rate {int(self._bits_per_s)}bit burst {burst}b latency 400ms"
            _command("tc", "-n", namespace, *f"qdisc add dev eth0 root tbf {rate}".split())
        if self._delay_s:
            delay = f"delay {round(self._delay_s * 1e6)}us limit 100000"
            _command("tc", "-n", switch, *f"qdisc add dev {port} root netem {delay}".split())

    def _remove(self) -> None:
        for name in (*map(self.name, range(self.ranks)), f"{self._tag}-sw"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)  # those that were made


def parse_rate(text: str) -> float | None:
    """Bits per second of ``200mbit``, ``1gbit``, ``500kbit``; None for ``none``. ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if text == "none":
        return None
    if not found or float(found[1]) * _BITS[found[2]] < 8000:
        raise ValueError(f"rate: got {text!r}, wants a number with a unit such as 200mbit or 1gbit, or none")
    return float(found[1]) * _BITS[found[2]]


def parse_delay(text: str) -> float:
    """Seconds of ``5ms``, ``100us``, ``0.1s``. ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text.lower())
    if not found:
        raise ValueError(f"delay: got {text!r}, wants a number with a unit such as 5ms or 100us")
    return float(found[1]) * _SECONDS[found[2]]


def unavailable() -> str | None:
    """Why shaped links cannot be had here; None when they can."""
    try:
        with Namespaces(ranks=1, rate="1gbit"):
            return None
    except UnavailableError as error:
        return str(error)


def _require_tools() -> None:
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root; start this with sudo")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise UnavailableError(f"{' and '.join(missing)} not found; install iproute2")


def _command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout
    if "netem" in words:
        raise UnavailableError("this kernel has no netem, so it cannot add a delay; leave --delay out")
    raise UnavailableError(f"`{' '.join(words)}` failed: {' '.join(done.stderr.split())}")
