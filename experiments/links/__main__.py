"""``python -m experiments.links``: see `experiments.links.command`."""

import sys

from experiments.links.command import main
from fsdp_lab.settings.user_errors import unix_pipes

if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
