"""Where the time of a profiled run goes: compute, communication or compression, and what hides what.

    chrome        a trace file -> spans
    labels        nested spans -> what a thread does at each moment
    host, cuda    spans -> activity, by the rules that `activity` states
    breakdown     activity -> milliseconds by step, phase and class, and the traffic of collectives
    profile       all ranks; table and timeline show it

`python -m fsdp_lab.trace DIR` does all of it. Needs no torch.
"""

from fsdp_lab.trace.profile import Profile, RankProfile, rank_profile
from fsdp_lab.trace.reading.chrome import read
from fsdp_lab.trace.table import short_table

__all__ = ["Profile", "RankProfile", "rank_profile", "read", "short_table"]
