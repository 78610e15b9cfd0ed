"""Which layout, and which shares, make a step fastest on given devices: a prediction, and a search.

To read first: `devices` (what is known of the machines), `plan` (what is compared), then `division` (what one step of a
layout takes). All but `measure`, `stopwatch` and `link_times` are arithmetic and import no torch. They lie here and not
in ``analysis`` because a plan must round shares as `fsdp_lab.parallel.shares` does, and the trainer's side may not
import analysis.
"""
