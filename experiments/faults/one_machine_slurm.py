"""Slurm on this machine alone: controller, node and munge as processes of ours, everything in one folder.

Nothing of an installed configuration is read or changed, and nothing is left: the daemons end with the context, and the
kernel ends them with this process. Control groups are off, so that it runs in a container. Needs root, and Debian's
slurm-wlm and munge, or what other systems call them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from experiments.runs.processes import Process, dying_with_this_process, end

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
_DAEMONS = 3
_UP_S, _SAVE_S = 60, 45
_REVOKED_S = 3.0

_CONFIGURATION = """\
ClusterName=drill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
JobRequeue=1
KillWait=30
MinJobAge=3600
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=drill Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class UnavailableError(ValueError):
    """This machine or user cannot run a Slurm of its own."""


class OneMachineSlurm:
    """A Slurm whose only node is this machine, as a context manager; `environment` is for all that talk to it.

    ``cpus`` are those that the node claims to have. UnavailableError (a ValueError) where it cannot be had."""

    def __init__(self, folder: Path, cpus: int = 2) -> None:
        self._folder, self._cpus = folder, cpus
        self._daemons: list[Process] = []
        self._pending: dict[tuple[str, str], float] = {}  # since when, by job and how often it began again
        self._leaving = ExitStack()

    def __enter__(self) -> OneMachineSlurm:
        require_tools()
        with ExitStack() as undo:
            undo.callback(self._stop)
            self._write()
            self._start("munged", *self._munge())
            self._wait_for((self._folder / "munge.socket").exists, "munged")
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D", "-c", "-N", _host())
            self._wait_for(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"), "slurmd")
            self._leaving = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._leaving.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this one; other jobs' variables are left out."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**inherited, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def ask(self, *words: str) -> str:
        """What a command of Slurm's prints; empty where it fails."""
        return subprocess.run(words, env=self.environment, capture_output=True, text=True).stdout.strip()

    def do(self, *words: str) -> str:
        """The same of a command that must succeed; RuntimeError with what it complains of."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job or of an array's element, such as RUNNING; empty for none."""
        return self._shown(job).get("JobState", "")

    def _shown(self, job: str) -> dict[str, str]:
        words = (word.partition("=") for word in self.ask("scontrol", "show", "job", "-o", job).split())
        return {name: value for name, _, value in words}

    def progress(self, job: str) -> str:
        """The job's `state`; one that was requeued waits a few seconds only, where Slurm gives it two minutes.

        At once would be too early: Slurm has just withdrawn the job's permission, and takes the new one for the old.
        """
        shown, now = self._shown(job), time.monotonic()
        state, start = shown.get("JobState", ""), (job, shown.get("Restarts", "0"))  # it may run between two looks
        if state == "PENDING" and now - self._pending.setdefault(start, now) > _REVOKED_S:
            self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        return state

    def _write(self) -> None:
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        self._folder.chmod(0o755)  # munge wants folders that others cannot write to
        key = self._folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = {"controller_port": _free_port(), "node_port": _free_port()}
        values = {"host": _host(), "folder": self._folder, "cpus": self._cpus, **ports}
        (self._folder / "slurm.conf").write_text(_CONFIGURATION.format(**values))

    def _munge(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        names["seed-file"] = "munge.seed"
        return ["--foreground", "--force", *(f"--{flag}={self._folder / name}" for flag, name in names.items())]

    def _start(self, *command: str) -> None:
        log = (self._folder / f"{command[0]}.out").open("wb")
        self._daemons.append(
            subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dying_with_this_process(),
            )
        )
        log.close()

    def _wait_for(self, is_up: Callable[[], bool], name: str) -> None:
        daemon = self._daemons[-1]
        self._wait_until(lambda: is_up() or daemon.poll() is not None, _UP_S)
        if daemon.poll() is not None or not is_up():
            raise UnavailableError(f"{name} does not come up: {self._last_words(name)}")

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.2)

    def _last_words(self, name: str) -> str:
        logs = [path.read_text(errors="replace") for path in self._folder.glob(f"{name}*.*") if path.suffix != ".pid"]
        return " ".join(" ".join(logs).split())[-500:]

    def _stop(self) -> None:
        if len(self._daemons) == _DAEMONS:  # what jobs have started is no child of ours
            self.ask("scancel", f"--user={os.getuid()}")
            self._wait_until(lambda: not self.ask("squeue", "--noheader"), _SAVE_S)
        end(list(reversed(self._daemons)), 10)


def require_tools() -> None:
    """UnavailableError where there is no Slurm, or its daemons could not be started by this user."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise UnavailableError(f"{', '.join(missing)} not found; on Debian: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        raise UnavailableError("a Slurm of one's own needs root; start this with sudo")


def _host() -> str:
    return os.uname().nodename.partition(".")[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
