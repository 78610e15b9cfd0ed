"""An FSDP2 trainer that measures what compressed communication saves and costs."""

from fsdp_lab.extras import explain_missing_packages
from fsdp_lab.moved import run_what_moved

run_what_moved()
explain_missing_packages()
