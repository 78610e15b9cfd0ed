"""Which layout, and which shares, make a step fastest on given devices: a prediction, and a search.

To read first: `devices` (what is known of the machines), `plan` (what is compared), then `division` (what one step of a
layout takes). `measure` and what it needs (`stopwatch`, `link_times`, `meeting`, `models`) run models; all else is
arithmetic and imports no torch. It lies here and not in ``analysis`` because a plan must round shares as
`fsdp_lab.parallel.division.shares` does, which analysis may not import.
"""
