"""What every forked rank would do by itself otherwise, at more than a second each: done by the server, once."""

import gc
import sys

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch._dynamo  # (FSDP2's and the optimizers' first call imports it)
import torch.distributed.fsdp  # noqa: F401
from numba.core.registry import cpu_target

import comm_compress
from tests.comm_compress.table import TABLE, build

gc.disable()  # until `tests.frozen`: all that is imported stays
sys.dont_write_bytecode = False  # as in conftest.py: files of tests follow, and the command line may say otherwise

for name in comm_compress.__all__:  # its parts are imported when they are asked for
    getattr(comm_compress, name)

for name, config in TABLE:  # a method's kernels are imported when it is built
    build(name, config)

cpu_target.target_context.refresh()  # what numba imports and compiles before the first kernel of a process is read
