"""Bitmaps with few ones; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.packing.bitmap.interface import BitmapKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.packing.bitmap import cpu, reference

    _checked: tuple[BitmapKernels, ...] = (reference, cpu)

bitmap = Topic[BitmapKernels](__name__)
