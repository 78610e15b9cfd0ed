"""torchrun's own library, told to heed every stop signal and to say what happened.

Exits with the first failed rank's own code (2: the user's mistake), 1 when a rank was killed, and 143 when it was told
to stop, by whichever signal. torchrun would say 1 in all these cases, and die of SIGUSR1 and SIGUSR2 while its ranks
run on. On one node nothing listens but on the loopback address (`ranks.loopback`); torchrun would open its store to
the network.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from types import FrameType

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.run import get_args_parser, parse_min_max_nnodes, run

from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.ranks.exit_codes import FAILED, PREEMPTED, USER_ERROR
from fsdp_lab.ranks.forked import FORKING, fork_ranks, started_by_torchrun
from fsdp_lab.ranks.meeting import loopback
from fsdp_lab.ranks.preempt import SAME_S, stop_signals
from fsdp_lab.ranks.processes import LAUNCHER
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flags import as_typed
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import user_errors


def launch(argv: list[str]) -> int:
    """Run torchrun on its command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    arguments.signals_to_handle = ""  # none: torchrun's own handler takes the second of two for an order to leave
    _refuse_early(arguments.training_script, arguments.training_script_args)
    if _is_one_node(arguments):
        _stay_on_this_machine(arguments)
    os.environ[LAUNCHER] = str(os.getpid())
    forking = os.environ.pop(FORKING, "") == arguments.nproc_per_node
    if not forking and arguments.nproc_per_node.isdecimal():
        os.environ.update(rank_environment(int(arguments.nproc_per_node)))
    for name in ("multiprocessing.api", "multiprocessing.errors", "agent.server.api", "rendezvous.dynamic_rendezvous"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    on_signal = _OneSignal()
    try:
        handlers = {number: signal.signal(number, on_signal) for number in stop_signals()}
        module = arguments.training_script
        waiting = fork_ranks(module, int(arguments.nproc_per_node), handlers) if forking else []
        with started_by_torchrun(module, waiting), tempfile.TemporaryDirectory(prefix="fsdp_lab_launch_") as folder:
            arguments.log_dir = arguments.log_dir or folder  # torchrun would leave one behind each time
            run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)
        print(f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}", file=sys.stderr)
        return 1
    except SignalException:
        return PREEMPTED
    except RendezvousConnectionError:
        print("launch: the launcher that kept the meeting place is gone, with its machine's ranks", file=sys.stderr)
        return FAILED
    except DistNetworkError as error:
        print(f"launch: {_network_trouble(str(error), arguments)}", file=sys.stderr)
        return USER_ERROR
    except OSError as error:
        if isinstance(error, socket.gaierror):
            trouble = _unknown_name(error, arguments)
        elif error.errno == errno.EADDRINUSE:
            trouble = _network_trouble("EADDRINUSE", arguments)
        else:
            raise
        print(f"launch: {trouble}", file=sys.stderr)
        return USER_ERROR
    return 0


class _OneSignal:
    """The handler that makes torchrun tell its ranks to stop, once for signals that come together (`SAME_S`)."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > SAME_S:
            raise SignalException(f"stopped by {signal.Signals(number).name}", signal.Signals(number))


def _is_one_node(arguments: Namespace) -> bool:
    """Are all ranks to be on this machine, and is that left to torch's own ways of meeting?"""
    alone = arguments.standalone or parse_min_max_nnodes(arguments.nnodes)[1] == 1
    return alone and (arguments.standalone or arguments.rdzv_backend in ("static", "c10d"))


def _stay_on_this_machine(arguments: Namespace) -> None:
    """Have the ranks meet on the loopback address, at the port that was asked for, if one was."""
    named = str(arguments.rdzv_endpoint or "").rpartition(":")[2]
    port = int(named) if named.isdecimal() else int(arguments.master_port or 0)
    arguments.rdzv_endpoint = f"{loopback.HOST}:{0 if arguments.standalone else port}"
    arguments.rdzv_backend, arguments.standalone = loopback.BACKEND, False
    loopback.keep_on_this_machine()


def _parser() -> ArgumentParser:
    """torchrun's parser, with our name in its usage."""
    parser: ArgumentParser = get_args_parser()
    parser.prog = as_typed("python -m fsdp_lab.launch")
    return parser


def _refuse_early(module: str, flags: list[str]) -> None:
    """Exit with code 2 and one message for what our trainers know to be wrong before any rank is started."""
    config: type[Config]
    if module == "fsdp_lab.train":
        config = TrainConfig
    elif module == "fsdp_lab.eagle.train":
        from fsdp_lab.eagle.draft.config import EagleConfig  # with all of drafts

        config = EagleConfig
    else:
        return
    with user_errors(module):
        checked(config, flags, module)


def _unknown_name(error: OSError, arguments: Namespace) -> str:
    """Which of the names that torchrun looks up is not known; it asks for this machine's own, too."""
    endpoint = str(arguments.rdzv_endpoint or arguments.master_addr).partition(":")[0]
    for name in (endpoint, os.uname().nodename):
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return f"no address of {name} is known ({error.strerror}); add a line of it to /etc/hosts"
    return f"a machine's name could not be looked up ({error.strerror})"


def _network_trouble(text: str, arguments: Namespace) -> str:
    if "EADDRINUSE" in text:
        asked = arguments.rdzv_endpoint or f"--master-port {arguments.master_port}"
        return f"the port of {asked} is taken by another program; name a free one, or use --standalone"
    return " ".join(text.split())
