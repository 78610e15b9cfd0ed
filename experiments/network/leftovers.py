"""Network namespaces that a killed run left behind: found by their names, and removed with all that runs in them.

A name begins with links<pid>-<start>-<pid namespace>: the process that made it, when that process started (clock ticks
since boot, so that a later process of the same number is not taken for it), and where the number holds.
"""

import os
import re
import secrets
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_FOLDER = Path("/run/netns")  # where `ip netns` keeps them
_NAME = re.compile(r"links(?P<pid>\d+)-(?P<start>\d+)-(?P<where>\d+)-[0-9a-f]+-\w+")


def own_tag() -> str:
    """What the names of this process's next network begin with; unique."""
    pid = os.getpid()
    return f"links{pid}-{_started(pid)}-{_pid_namespace()}-{secrets.token_hex(3)}"


def remove_leftovers() -> list[str]:
    """Remove the namespaces whose maker is dead and return their names; those of living runs are left alone."""
    names = sorted(path.name for path in _FOLDER.iterdir()) if _FOLDER.is_dir() else []
    dead = [name for name in names if (match := _NAME.fullmatch(name)) and not _may_live(match)]
    for name in dead:
        remove(name)
    return dead


def remove(name: str) -> None:
    """Kill what runs in the namespace and delete it; nothing happens when there is none."""
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    for pid in listed.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _may_live(name: "re.Match[str]") -> bool:
    if int(name["where"]) != _pid_namespace():
        return True  # another container's numbers say nothing here
    return _started(int(name["pid"])) == int(name["start"])


def _started(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(fields[18])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
