"""``python -m experiments.faults``: see `experiments.faults.table`."""

import sys

from experiments.faults.table import main
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
