"""A network for ranks on one machine: a namespace and an address for each node, joined by a switch, links shaped.

    node 0: eth0 --tbf--> p0 \
    node 1: eth0 --tbf--> p1  br0      (the switch is a namespace of its own, so nothing touches the host's network)
    node 2: eth0 --tbf--> p2 /

A node is one rank, or several (``per_node``), which reach each other over the namespace's loopback at memory speed.
tbf limits what a node sends, which is what a full-duplex card of that rate looks like; a delay (netem) is added on the
switch's side, once a direction. The interface's own counters are the independent check of any byte count.

Nothing is left behind: at exit and on SIGINT, SIGTERM, SIGHUP and SIGQUIT all is removed; after kill -9 the kernel
ends the ranks, and the next start removes the rest (`leftovers`).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from experiments.network.leftovers import own_tag, remove, remove_leftovers
from experiments.network.rates_and_delays import parse_delay, parse_rate
from experiments.runs.processes import dying_with_this_process, leaving_tidily, wait_together
from fsdp_lab.ranks.link import Link

_MASTER_PORT = 29500  # free by construction: every run has its own network
_BUCKET_S = 5e-3  # of sending at the rate: short messages are shaped, too
_SEGMENT = 1 << 16  # bytes that the kernel hands to the shaper at once
_STREAM = Path(__file__).with_name("tcp_stream.py")


class UnavailableError(ValueError):
    """This machine or user cannot have network namespaces or the shaping that was asked for."""


class Namespaces:
    """A network as a context manager: ``with Namespaces(ranks=2, rate="200mbit") as net: net.run(["python",
    "program.py"])``.

    ``rate`` is a node's sending rate ("none": unlimited), ``delay`` the extra latency one way, ``per_node`` the number
    of ranks that share a node's link. ValueError for malformed values, UnavailableError (a ValueError, too) when the
    machine cannot do it. Ranks must be started by a thread that outlives them: they die with it."""

    def __init__(self, ranks: int = 2, rate: str = "none", delay: str = "0ms", per_node: int = 1) -> None:
        if not 1 <= ranks <= 200:
            raise ValueError(f"ranks: got {ranks}, wants 1 to 200")
        if per_node < 1 or ranks % per_node:
            raise ValueError(f"per_node: got {per_node}, wants a divisor of the number of ranks, {ranks}")
        self.ranks, self.rate, self.delay, self.per_node = ranks, rate, delay, per_node
        self.nodes = ranks // per_node
        self._bits_per_s = parse_rate(rate)
        self._delay_s = parse_delay(delay)
        self.measured: float | None = None
        self._tag = own_tag()
        self._leaving = ExitStack()

    def __enter__(self) -> Self:
        _require_tools()
        with ExitStack() as undo:
            undo.enter_context(leaving_tidily())
            if removed := remove_leftovers():
                print(f"removed what a killed run left: {', '.join(removed)}", file=sys.stderr)
            undo.callback(self._remove)
            self._build()
            self._leaving = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._leaving.close()

    def name(self, rank: int) -> str:
        """The namespace of the rank's node, as ``ip netns`` lists it."""
        return self._namespace(rank // self.per_node)

    def address(self, rank: int) -> str:
        """The IPv4 address of the rank's node, reachable from every other rank."""
        return f"10.77.0.{rank // self.per_node + 1}"

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that tell torch.distributed and the communication libraries to use the rank's link.

        LOCAL_RANK and LOCAL_WORLD_SIZE are those of the node; with one rank to a node they are those of this machine,
        whose cores and GPUs the ranks share (the trainer goes by `ranks.link`, which says both). NCCL's ways around the
        network are closed."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.ranks)
        local = self.per_node if self.per_node > 1 else self.ranks
        link = Link(self._bits_per_s, self.measured, self._delay_s * 1e3, self.ranks, self.per_node)
        return {
            **link.variables(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % local),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(local),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(_MASTER_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        }

    def whole_environment(self, rank: int, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's variables, the rank's own, and ``env``: what a process of the rank is started with."""
        own = self.environment(rank)
        environment = {**os.environ, **own, **(env or {})}
        # `env` may be made of this process's environment, which may name an interface that is not there
        return environment | {name: own[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}

    def start(
        self, rank: int, command: Sequence[str], env: Mapping[str, str] | None = None, **popen: Any
    ) -> "subprocess.Popen[Any]":
        """Start the command in the rank's namespace, in a process group of its own (``popen``: as for Popen)."""
        environment = self.whole_environment(rank, env)
        line = ["ip", "netns", "exec", self.name(rank), *command]
        tied = dying_with_this_process()
        return subprocess.Popen(line, env=environment, start_new_session=True, preexec_fn=tied, **popen)

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        grace_s: float = 5,
        on_start: Callable[[int, "subprocess.Popen[Any]"], None] | None = None,
        **popen: Any,
    ) -> int:
        """Run the command once per rank; returns 0, or the exit code of the first rank that failed.

        When one fails, the others have ``grace_s`` seconds to notice before they are ended. ``on_start`` is called
        with every rank and its process as soon as that is there."""

        def started() -> Iterator["subprocess.Popen[Any]"]:
            for rank in range(self.ranks):
                process = self.start(rank, command, env, **popen)
                yield process  # from here on it is ended with the others, whatever happens
                if on_start is not None:
                    on_start(rank, process)

        return wait_together(started(), grace_s)

    def measure(self) -> float | None:
        """Bits/s that a TCP stream gets between the first two nodes, each sending to the other, the slower direction.

        Headers not included (about 4 % of the rate). Ranks started from now on are told. None with one node.
        """
        if self.nodes < 2:
            return None
        bytes_per_s = (self._bits_per_s or 2e9) / 8
        skipped = int(max(4 * burst_bytes(bytes_per_s), 0 if self._bits_per_s else 1 << 24))
        counted = int(max(0.3 * bytes_per_s, 4 * _SEGMENT))
        ends = [0, self.per_node]
        streams = []
        for rank, peer in zip(ends, reversed(ends), strict=True):
            command = [sys.executable, str(_STREAM), self.address(peer), str(skipped), str(counted)]
            streams.append(self.start(rank, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        seconds = 30 + 4 * (skipped + counted) / bytes_per_s
        said = [stream.communicate(timeout=seconds) for stream in streams]
        if any(stream.returncode for stream in streams):
            raise UnavailableError(f"the link could not be measured: {' '.join(' '.join(e.split()) for _, e in said)}")
        self.measured = min(float(out) for out, _ in said)
        return self.measured

    def tx_bytes(self, rank: int) -> int:
        """Bytes that the interface of the rank's node has sent so far, headers included."""
        return int(self._statistics(rank, "eth0")["tx"]["bytes"])

    def rx_bytes(self, rank: int) -> int:
        """Bytes that the interface of the rank's node has received so far, headers included."""
        return int(self._statistics(rank, "eth0")["rx"]["bytes"])

    def inside_bytes(self, rank: int) -> int:
        """Bytes that the ranks of the rank's node have sent to each other so far, headers included."""
        return int(self._statistics(rank, "lo")["tx"]["bytes"])

    def _statistics(self, rank: int, device: str) -> dict[str, Any]:
        text = _command("ip", "-n", self.name(rank), "-s", "-j", "link", "show", "dev", device)
        counters: dict[str, Any] = json.loads(text)[0]["stats64"]
        return counters

    def _namespace(self, node: int) -> str:
        return f"{self._tag}-n{node}"

    def _build(self) -> None:
        switch = f"{self._tag}-sw"
        _command("ip", "netns", "add", switch)
        _command("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _command("ip", "-n", switch, "link", "set", "br0", "up")
        for node in range(self.nodes):
            self._plug_in(node, switch)

    def _plug_in(self, node: int, switch: str) -> None:
        namespace, port = self._namespace(node), f"p{node}"
        _command("ip", "netns", "add", namespace)
        _command("ip", "-n", namespace, "link", "set", "lo", "up")
        _command("ip", "-n", namespace, *f"link add eth0 type veth peer name {port} netns {switch}".split())
        _command("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
        address = self.address(node * self.per_node)
        _command("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _command("ip", "-n", namespace, "link", "set", "eth0", "addrgenmode", "none")  # no IPv6 chatter in the counters
        _command("ip", "-n", namespace, "link", "set", "eth0", "up")
        if self._bits_per_s is not None:
            rate = f"rate {int(self._bits_per_s)}bit burst {burst_bytes(self._bits_per_s / 8)}b latency 400ms"
            _command("tc", "-n", namespace, *f"qdisc add dev eth0 root tbf {rate}".split())
        if self._delay_s:
            delay = f"delay {round(self._delay_s * 1e6)}us limit 100000"
            _command("tc", "-n", switch, *f"qdisc add dev {port} root netem {delay}".split())

    def _remove(self) -> None:
        for name in (*map(self._namespace, range(self.nodes)), f"{self._tag}-sw"):
            remove(name)  # those that were made


def burst_bytes(bytes_per_s: float) -> int:
    """The bytes that the shaper lets through at once after a silence, on a link of so many bytes a second."""
    return max(int(bytes_per_s * _BUCKET_S), _SEGMENT)


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
