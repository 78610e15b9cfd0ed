"""What results mean: tables, figures, predictions. Reads files only and needs no torch."""

from fsdp_lab.extras import explain_missing_packages

explain_missing_packages()
