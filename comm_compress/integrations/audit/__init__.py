"""What any job moves by collectives, compressed or not: `cc.audit`, and `cc.audit_program` for a program as it is.

Begin with `session`, which counts in this process; `whole_program` starts another program and counts in its ranks.
"""
