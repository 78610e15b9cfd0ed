"""An FSDP2 trainer that measures what compressed communication saves and costs."""

import sys

from fsdp_lab.extras import explain_missing_packages

if sys.argv[:1] == [
    "-m"
]:  # so Python imports the package of `python -m fsdp_lab.train`; nobody else's process is touched
    explain_missing_packages()
