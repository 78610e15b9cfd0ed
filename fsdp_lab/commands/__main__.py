"""``python -m fsdp_lab.commands``: the command ``fsdp-lab`` where it is not installed."""

import sys

from fsdp_lab.commands.main import main
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
