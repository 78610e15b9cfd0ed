"""The audit of a program that knows nothing of it: `cc.audit_program`. Begin with `running`.

`running` starts the program with ``start`` on its PYTHONPATH, where Python finds a ``sitecustomize`` that waits for
`torch.distributed` in every process. When a process has become a rank, `rank` counts in it, into files that
`count_files` describes, and `summing` makes one table of all ranks' files. Nothing but `rank` needs torch.
"""
