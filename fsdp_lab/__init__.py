"""An FSDP2 trainer that measures what compressed communication saves and costs."""

from fsdp_lab.extras import explain_missing_packages

explain_missing_packages()
