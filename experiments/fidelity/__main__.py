"""What each method really sends, and what arrives: bits per element, relative error, cosine.

    python -m experiments.fidelity [--gradients FOLDER] [--methods int8 topk] [--json FILE] [--markdown FILE]

Two virtual ranks exchange Gaussian and Laplace elements, and real gradients when ``--gradients`` names what
`experiments.fidelity.capture` saved. Bits are what one rank sends to the other, apart by values, indices and
metadata, over the elements that had to reach it; the error compares every rank's contribution with its input, error
feedback off. The last of two (synthetic) or of all captured collectives counts, so that warm starts are warm. dgc
accumulates momentum and majority votes carry no magnitude: their errors say little.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from experiments.fidelity.method_settings import GRADIENT_METHODS
from fsdp_lab.settings.flag_values import a_folder, new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main() -> int:
    """Measure, print, and write the file."""
    parser = program("experiments.fidelity", __doc__)
    parser.add_argument("--methods", nargs="*", choices=list(GRADIENT_METHODS), default=list(GRADIENT_METHODS))
    parser.add_argument("--elements", type=whole(1), default=1 << 20, help="synthetic elements per rank")
    parser.add_argument("--gradients", type=a_folder, help="folder of captured gradients")
    parser.add_argument("--json", type=new_file())
    parser.add_argument("--markdown", type=new_file())
    options = parser.parse_args()
    from experiments.fidelity.table import HEADER, lines, markdown  # torch and kernels: not for --help

    with user_errors("fidelity"):
        print(HEADER)
        done = []
        for line in lines(options.methods, options.elements, options.gradients):
            done.append(line)
            print(markdown(line), flush=True)
        if options.json is not None:
            options.json.write_text("\n".join(json.dumps({**asdict(x), "bits": x.bits}) for x in done) + "\n")
        if options.markdown is not None:
            options.markdown.write_text("\n".join([HEADER, *map(markdown, done)]) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
