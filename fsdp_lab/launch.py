"""torchrun with an exit code one can act on, and without its traceback when a rank has said what is wrong.

    python -m fsdp_lab.launch [torchrun's flags] -m -- fsdp_lab.train [training's flags]

Exits with the first failed rank's own code (2: the user's mistake), 1 when a rank was killed, 128 + n when
torchrun itself was told to stop by signal n. torchrun would say 1 in all these cases.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import get_args_parser, run

from fsdp_lab.rank_environment import rank_environment


def main(argv: list[str]) -> int:
    """Run torchrun on its command line; returns the exit code."""
    arguments = get_args_parser().parse_args(argv)
    if arguments.nproc_per_node.isdecimal():
        os.environ.update(rank_environment(int(arguments.nproc_per_node)))
    for name in ("multiprocessing.api", "multiprocessing.errors", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)
        print(f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}", file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
