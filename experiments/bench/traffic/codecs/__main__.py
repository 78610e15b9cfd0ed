"""``fsdp-lab bench codecs``: see `experiments.bench.traffic.codecs.command`."""

import sys

from experiments.bench.traffic.codecs.command import main
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(main())
