"""``python -m experiments.links``: see `experiments.links.command`."""

import sys

from experiments.links.command import main
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
