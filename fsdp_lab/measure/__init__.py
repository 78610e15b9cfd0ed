"""What is measured while a run trains: step times, memory, profiles, bytes on the network interface.

Read `clock` first: it says which steps count. The files know nothing of each other but for `Claim`, a number of bytes
that somebody says were sent, which `profiling` hands to `wire_check`.
"""
