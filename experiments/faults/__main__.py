"""``python -m experiments.faults``: see `experiments.faults.table`."""

import sys

from experiments.faults.table import main
from fsdp_lab.settings.user_errors import unix_pipes

if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
