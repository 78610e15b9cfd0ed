"""What every forked rank would import by itself otherwise, at more than a second each: imported by the server, once."""

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch._dynamo  # (FSDP2's and the optimizers' first call imports it)
import torch.distributed.fsdp  # noqa: F401

import comm_compress
from tests.comm_compress.table import TABLE, build

for name in comm_compress.__all__:  # its parts are imported when they are asked for
    getattr(comm_compress, name)

for name, config in TABLE:  # a method's kernels are imported when it is built
    build(name, config)
