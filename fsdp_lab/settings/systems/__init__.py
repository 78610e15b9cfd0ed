"""Published systems of compressed communication, as settings of this project: what each means here, and what differs.

Read `kinds` first: what is said of a system. `table` has all of them and finds one by its name. A system is nothing but
settings of `CommConfig`, as somebody would type them: `fsdp_lab.settings.reading.system_flag` puts them in place of
``--system NAME``. `missing` says which systems cannot be said so, and why. Nothing here imports torch.
"""
