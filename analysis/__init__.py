"""What results mean: tables, figures, predictions. Reads files only and needs no torch.

`rows` reads results rows and sorts them into comparisons: begin with `rows/comparing`. `statistics` computes, `checks`
says what is unfair, `figures` and `tables` show it, `report` puts all of it on one page, and `predict`
computes step times behind links from a calibration.
"""

from fsdp_lab.extras import explain_missing_packages

explain_missing_packages()
