"""``fsdp-lab conformance``: see `comm_compress.conformance`, which knows nothing of this command."""

import sys

import comm_compress as cc
from fsdp_lab.settings.flags import as_typed
from fsdp_lab.settings.user_errors import unix_endings

if __name__ == "__main__":
    with unix_endings():
        sys.exit(cc.conformance.main(as_typed("python -m fsdp_lab.commands.conformance")))
