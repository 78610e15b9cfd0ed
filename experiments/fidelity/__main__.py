"""``python -m experiments.fidelity``: see `experiments.fidelity.table`."""

import sys

from experiments.fidelity.table import main
from fsdp_lab.settings.user_errors import unix_pipes

if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main())
