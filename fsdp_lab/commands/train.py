"""Train a model on all GPUs of this machine, or on two ranks without one; a results row is written at the end.

    python -m fsdp_lab.commands.train --comm_compress topk --comm_config_json '{"ratio": 0.01}'
    python -m fsdp_lab.commands.train --nproc_per_node 4 --config my_run.yaml --max_steps 100

It starts the ranks, each of which is fsdp_lab.train, and ends with the exit code of the first that failed. Unlike
./run_safe_training.sh it makes no environment, keeps no log of the terminal and starts no TensorBoard.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flag_values import whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

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
        ranks = _ranks(options.nproc_per_node, config)
        meeting = _meeting(options, virtual=config.run.virtual_ranks > 0)
    from fsdp_lab import launch  # with torch

    return launch.main([*meeting, f"--nproc-per-node={ranks}", "-m", "--", TRAINER, *flags])


def _parser() -> Parser:
    usage = (
        "python -m fsdp_lab.commands.train [--nproc_per_node N] [--nnodes N --node_rank N --master_addr HOST "
        "[--master_port PORT]] [--config FILE.yaml] [--FLAG VALUE]..."
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
    return parser


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
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
