"""torchrun with exit codes that say what happened, and without its traceback when a rank has said what is wrong.

    python -m fsdp_lab.launch [torchrun's flags] -m -- fsdp_lab.train [training's flags]

What is done with torchrun is in `launcher`; `ranks.forked` spares our own trainers' ranks their imports.
"""

from __future__ import annotations

import sys

from fsdp_lab.ranks.forked import importing, start_again


def main(argv: list[str]) -> int:
    """Run torchrun on its command line; returns the exit code. This process may be started anew first."""
    start_again(argv)
    with importing():
        from fsdp_lab.launcher import launch  # with torch, which reads what is in the environment by then

    return launch(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
