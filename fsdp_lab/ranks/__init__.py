"""The processes of a run: how they meet, agree, watch each other and stop.

Read `distributed` first: who the ranks are and how they join. `preempt` and `watchdog` are for a run that is told to
stop or that hangs, `faults` makes both happen on purpose.
"""
