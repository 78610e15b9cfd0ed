"""Count-sketches; what its functions are, `interface` says."""

from typing import TYPE_CHECKING

from comm_compress.kernels.dispatch import Topic
from comm_compress.kernels.projections.sketch.interface import SketchKernels

if TYPE_CHECKING:  # mypy checks that each of them has all that the interface asks
    from comm_compress.kernels.projections.sketch import cpu, reference

    _checked: tuple[SketchKernels, ...] = (reference, cpu)

sketch = Topic[SketchKernels](__name__)
