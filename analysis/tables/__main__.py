"""``python -m analysis.tables``: see `analysis.tables.comparison`."""

import sys

from analysis.tables.comparison import main
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
