"""Who has died, where no launcher of this machine tells: a connection of every rank with rank 0, for the whole run.

The kernel closes it when a process ends, whatever ends it, and rank 0 passes the news on. A rank that leaves says so
before. Of a machine that is gone nothing closes, so the kernel asks for signs of life (TCP keepalive); it answers them
for a process that is busy, or stopped, too: that one is for the watchdog to find.

A healthy run sends nothing here but keepalives, an empty packet every two seconds. gloo says "Connection closed by
peer" of a peer that died as of one that left because another died; NCCL says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from typing import Any, Literal

from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.ranks.meeting.hosts import address_towards, host_key

_CONNECTING_S = 20.0
_KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 8}  # a machine that is gone: known after 10 s
_UNSENT_MS = 10_000  # and after as long where something was on its way
_LINE_BYTES = 4096
_WORDS = 300

How = Literal["died", "failed", "stopped", "left"]
"""``died``: without a word. ``failed``: of its own, with a reason. ``stopped``: told to, alone. ``left``: as all do."""


class Lifeline:
    """What becomes of the other ranks. Without ``is_on`` (one launcher has started all) it knows nothing, and costs
    nothing.

    As soon as another rank dies, fails or is stopped alone this process sends itself SIGTERM, which is what a launcher
    does to those that are left.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Connect this rank with all others; collective: every rank must come."""
        told = (host_key(), os.uname().nodename, _own_address())
        everyone = ranks.gather(told) if ranks.processes > 1 else [told]
        self.is_on = ranks.processes > 1 and (ranks.by_hand or len({key for key, _, _ in everyone}) > 1)
        self._rank = ranks.rank
        self._hosts = [name for _, name, _ in everyone]
        self._ended: dict[int, tuple[How, str]] = {}
        self._news = threading.Condition()
        self._is_over = False
        self._lines: dict[socket.socket, int] = {}
        if self.is_on:
            self._connect(ranks, everyone[1][2])
            threading.Thread(target=self._watch, daemon=True, name="lifeline").start()

    def dead(self) -> list[int]:
        """The ranks that have died, or failed of their own."""
        return [rank for rank, (how, _) in sorted(self._ended.items()) if how in ("died", "failed")]

    def died_silently(self, rank: int) -> bool:
        """Has the rank ended without a word, and so without a row?"""
        return self._ended.get(rank, ("left", ""))[0] == "died"

    def knows_of(self, rank: int) -> bool:
        """Has the rank ended, in whichever way?"""
        return rank in self._ended

    def has_left(self, rank: int) -> bool:
        """Has the rank ended as it should?"""
        return self._ended.get(rank, ("died", ""))[0] in ("left", "stopped")

    def obituary(self, rank: int) -> str:
        """``rank 1 died (on pi2)``, or why it failed."""
        how, why = self._ended[rank]
        return f"rank {rank} {how} (on {self._hosts[rank]}){f': {why}' if why else ''}"

    def wait(self, seconds: float) -> None:
        """Wait for the news of a rank that is dead, which a broken connection foretells."""
        with self._news:
            self._news.wait_for(lambda: bool(self.dead()) or not self.is_on, timeout=seconds)

    def leave(self, how: How, why: str = "") -> None:
        """Tell the others that this rank ends now, and how; once, further words are not sent."""
        if self.is_on and not self._is_over:
            self._is_over = True
            self._send({"rank": self._rank, "how": how, "why": why[:_WORDS]})

    # ---- connecting -----------------------------------------------------------------------------------------

    def _connect(self, ranks: Ranks, second: str | None) -> None:
        """Rank 0 listens at its address on the way to rank 1 until all have come; the word is for its own ranks."""
        listener, invitation = None, None
        if ranks.is_first and (own := address_towards(second or "127.0.0.1", 9)) is not None:
            listener = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
            invitation = (own, listener.getsockname()[1], secrets.token_hex(16))
        invited = ranks.broadcast(invitation)
        if invited is None:
            self.is_on = False
        elif listener is not None:
            with listener:
                self._accept(listener, invited[2], ranks.processes - 1)
        else:
            self._call(*invited)

    def _accept(self, listener: socket.socket, word: str, count: int) -> None:
        end = time.monotonic() + _CONNECTING_S
        while len(self._lines) < count and (rest := end - time.monotonic()) > 0:
            with contextlib.suppress(OSError, ValueError):
                listener.settimeout(rest)
                line, _ = listener.accept()
                line.settimeout(2)
                said = line.makefile("rb").readline(_LINE_BYTES).decode().split()
                if len(said) == 2 and secrets.compare_digest(said[0], word):
                    _keep_alive(line)
                    self._lines[line] = int(said[1])

    def _call(self, address: str, port: int, word: str) -> None:
        with contextlib.suppress(OSError):
            line = socket.create_connection((address, port), timeout=_CONNECTING_S)
            _keep_alive(line)
            line.sendall(f"{word} {self._rank}\n".encode())
            self._lines[line] = 0

    # ---- the thread -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with selectors.DefaultSelector() as ready:
            for line in self._lines:
                ready.register(line, selectors.EVENT_READ)
            unread = dict.fromkeys(self._lines.values(), b"")
            while ready.get_map():
                for key, _ in ready.select():
                    readable: Any = key.fileobj
                    rank = self._lines[readable]
                    try:
                        data = readable.recv(_LINE_BYTES)
                    except OSError:  # reset, or no sign of life
                        data = b""
                    *words, unread[rank] = (unread[rank] + data).split(b"\n")
                    for word in words:
                        self._hear(word)
                    if not data or len(unread[rank]) > _LINE_BYTES:
                        ready.unregister(readable)
                        self._note(rank, "died", "")

    def _hear(self, word: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(word)
            self._note(int(said["rank"]), said["how"], str(said["why"]))

    def _note(self, rank: int, how: How, why: str) -> None:
        """Remember the first that is heard of a rank's end, pass it on, and end too where that is no way to leave."""
        if rank in self._ended:
            return
        with self._news:
            self._ended[rank] = (how, why)
            self._news.notify_all()
        if self._rank == 0:
            self._send({"rank": rank, "how": how, "why": why}, but=rank)
        if how != "left" and not self._is_over:
            os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, word: dict[str, Any], but: int | None = None) -> None:
        for line, rank in self._lines.items():
            with contextlib.suppress(OSError):  # it has ended itself
                if rank != but:
                    line.sendall(json.dumps(word).encode() + b"\n")


def _own_address() -> str | None:
    """This machine's address on the way to where the ranks met."""
    return address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "9")))


def _keep_alive(line: socket.socket) -> None:
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Linux; others have their own times
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
