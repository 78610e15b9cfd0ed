"""What an all-reduce of activations costs: torch's own against `Place.all_reduce`, on two gloo ranks of this machine.

    fsdp-lab bench activations [--methods none identity int8 fp8] [--tokens 128 1024] [--features 768]
        [--repeats 50] [--threads 1]

Tensors are ``[1, tokens, features]`` in float32. The calls of all methods take turns, ``torch`` (a clone and
`torch.distributed.all_reduce`) among them, so that whatever else the machine does meets all of them. Columns: median
and least milliseconds of a call on rank 0, the bytes that a rank sent of those it would have sent uncompressed. Ranks
share memory and processor here: over a slow link fewer bytes take less time, which this does not show.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

import comm_compress as cc
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Start two ranks and print their table."""
    parser = program("experiments.bench.traffic.activations", __doc__)
    parser.add_argument("--methods", nargs="+", default=["none", "identity", "int8", "fp8"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    from experiments.bench.traffic.activations.ranks import start  # torch: not for --help

    with user_errors("bench_activations"), tempfile.TemporaryDirectory() as folder:
        for method in options.methods:
            cc.parallel.Activations(method)  # refused before ranks start
        if min(*options.tokens, options.features, options.repeats, options.threads) < 1:
            raise ValueError("--tokens, --features, --repeats and --threads must be 1 or more")
        arguments = (options.methods, options.tokens, options.features, options.repeats, options.threads)
        start(folder, *arguments)
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
