"""What optimizers between replicas are made of, each used by several or read by itself.

`adam` is Adam's arithmetic, `two_way` a mean compressed on both ways, `intervals` which steps come how often, `servers`
which replica keeps what for all, `whole` what must not be sharded.
"""
