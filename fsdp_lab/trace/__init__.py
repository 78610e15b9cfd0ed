"""Where the time of a profiled run goes: compute, communication or compression, and how much of it is hidden.

Read `reading.activity` first, which has the rules. Then, in the order of the work:

    reading.chrome                  a trace file -> spans
    reading.labels                  nested spans -> what a thread does at each moment
    reading.host, reading.cuda      spans -> activity, by the rules
    breakdown                       activity -> milliseconds by step, phase and class, and the traffic of collectives
    profile                         the breakdowns of all ranks together
    table, timeline                 a profile as text and as a picture

`python -m fsdp_lab.trace DIR` does all of it. Nothing here needs torch.
"""

from fsdp_lab.trace.profile import Profile, RankProfile, rank_profile
from fsdp_lab.trace.reading.chrome import read
from fsdp_lab.trace.table import short_table

__all__ = ["Profile", "RankProfile", "rank_profile", "read", "short_table"]
