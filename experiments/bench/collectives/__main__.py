"""The command: python -m experiments.bench.collectives."""

import sys

from experiments.bench.collectives.command import main
from fsdp_lab.settings.user_errors import unix_pipes

if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main())
