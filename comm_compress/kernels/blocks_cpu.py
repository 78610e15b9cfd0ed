"""Being written."""

from comm_compress.kernels.blocks_reference import decode_blocks, encode_blocks, sum_blocks  # noqa: F401
