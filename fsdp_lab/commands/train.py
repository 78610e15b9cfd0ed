"""Train a model on all GPUs of this machine, or on two ranks without one; a results row is written at the end.

    python -m fsdp_lab.commands.train --comm_compress topk --comm_config_json '{"ratio": 0.01}'
    python -m fsdp_lab.commands.train --nproc_per_node 4 --config my_run.yaml --max_steps 100
    python -m fsdp_lab.commands.train --rank 1 --world 2 --master 10.0.0.1:29500 --config rank1.yaml

It starts the ranks, each of which is fsdp_lab.train, and ends with the exit code of the first that failed; or, with
--rank, the one rank of this machine, which is this process then. Unlike ./run_safe_training.sh it makes no environment,
keeps no log of the terminal and starts no TensorBoard.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.ranks.meeting.by_hand import Place, environment_of, is_by_hand, place_of, split_address
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors

TRAINER = "fsdp_lab.train"


def main(argv: Sequence[str]) -> int:
    """Refuse what is wrong before anything is started, start the ranks, and return the exit code."""
    if not {"-h", "--help"}.isdisjoint(argv):
        _parser().print_help()
        print("\nEvery other flag goes to the trainer:\n", flush=True)
        checked(TrainConfig, ["--help"])  # ends the process
    options, flags = _parser().parse_known_args(list(argv))
    with user_errors("train"):
        config = checked(TrainConfig, flags)
        if (place := _place(options, config)) is not None:
            _become(place, flags)
        ranks = _ranks(options.nproc_per_node, config)
        meeting = _meeting(options, virtual=config.run.virtual_ranks > 0)
    from fsdp_lab import launch

    return launch.main([*meeting, f"--nproc-per-node={ranks}", "-m", "--", TRAINER, *flags])


def _parser() -> Parser:
    usage = (
        "python -m fsdp_lab.commands.train [--nproc_per_node N] [--nnodes N --node_rank N --master_addr HOST "
        "[--master_port PORT]] [--rank N --world N --master HOST:PORT] [--config FILE.yaml] [--FLAG VALUE]..."
    )
    parser = program("fsdp_lab.commands.train", __doc__, usage=usage, allow_abbrev=False, add_help=False)
    several = parser.add_argument_group("ranks")
    several.add_argument(
        "--nproc_per_node", type=whole(1), help="ranks on this machine (default: one for each GPU, or 2)"
    )
    several.add_argument("--nnodes", type=whole(1), default=1, help="machines; start this on each of them (default: 1)")
    several.add_argument("--node_rank", type=whole(0), help="which of the machines this is, from 0")
    several.add_argument("--master_addr", help="name or address of machine 0, as the others reach it")
    several.add_argument(
        "--master_port", type=whole(1, 65535), help="a port that is free on machine 0 (default: 29500)"
    )
    one = parser.add_argument_group(
        "one rank, started by hand on each machine (or RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"
    )
    one.add_argument("--rank", type=whole(0), help="which rank this is, from 0")
    one.add_argument("--world", type=whole(1), help="how many ranks there are")
    one.add_argument("--master", metavar="HOST:PORT", help="where they meet: an address of rank 0's machine")
    return parser


def _place(options: Namespace, config: TrainConfig) -> Place | None:
    """The rank that is to be started by hand; None where ranks are to be started by torchrun. ValueError."""
    by_torchrun = {"--nproc_per_node": options.nproc_per_node, "--node_rank": options.node_rank}
    by_torchrun |= {"--nnodes": None if options.nnodes == 1 else options.nnodes}
    given = [flag for flag, value in by_torchrun.items() if value is not None]
    if (options.rank, options.world, options.master) == (None, None, None):
        if given or not is_by_hand(os.environ):
            return None
    elif given:
        raise ValueError(f"{', '.join(given)}: torchrun's; with --rank each rank is started by itself, leave them out")
    host, port = options.master_addr, options.master_port
    if options.master is not None:
        if (host, port) != (None, None):
            raise ValueError("--master, --master_addr, --master_port: say where the ranks meet once")
        host, port = split_address(options.master)
    place = place_of(os.environ, rank=options.rank, world=options.world, master_addr=host, master_port=port)
    if place.world > 1 and config.run.virtual_ranks:
        raise ValueError("--world, --virtual_ranks: virtual ranks are one process on one machine; leave one out")
    return place


def _become(place: Place, flags: Sequence[str]) -> NoReturn:
    """Go on as the trainer, in this process, so that a signal to it reaches the rank; its allocator reads variables."""
    environment = environment_of(place, rank_environment(1))
    os.execve(sys.executable, [sys.executable, "-m", TRAINER, *flags], environment)


def _ranks(asked: int | None, config: TrainConfig) -> int:
    if asked is not None:
        return asked
    if config.run.virtual_ranks:
        return 1
    import torch

    return torch.cuda.device_count() or 2


def _meeting(options: Namespace, virtual: bool) -> list[str]:
    """How the ranks of all machines find each other, as flags of torchrun."""
    elsewhere = (options.node_rank, options.master_addr, options.master_port)
    if options.nnodes == 1:
        if elsewhere != (None, None, None):
            raise ValueError("--node_rank, --master_addr, --master_port: for several machines; give --nnodes as well")
        return ["--standalone", "--local-addr=127.0.0.1"]
    if options.node_rank is None or options.master_addr is None or not 0 <= options.node_rank < options.nnodes:
        raise ValueError(
            f"--nnodes {options.nnodes}: wants --master_addr, and a --node_rank from 0 to {options.nnodes - 1}"
        )
    if virtual:
        raise ValueError("--nnodes, --virtual_ranks: virtual ranks are one process on one machine; leave one out")
    return [
        f"--nnodes={options.nnodes}",
        f"--node-rank={options.node_rank}",
        f"--master-addr={options.master_addr}",
        f"--master-port={options.master_port or 29500}",
    ]


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
